"""Measures on a machine with a CUDA GPU, part by part; `ci/gpu` runs this.

All of it goes into one file, OUT/DEVICE.json, which is written after every part: what a
part found, that it failed, or that it was not measured and why; when, on which machine
with which versions, and of which sources. A run that was cut off goes on where it
stopped: what has passed there with the same sources is not measured again. The programs
that failed are in OUT/failures.zip, for `lockstep replay`.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
from gpu_parts import ROOT, Part, Result, list_parts, read_json, run

PACKAGES = ("torch", "triton", "mlx", "numpy", "hypothesis", "pytest")


def describe_machine() -> Result:
    """Raises RuntimeError if torch finds no CUDA device."""
    try:
        import torch
    except ImportError as error:
        raise RuntimeError("this python has no torch") from error
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device here")
    return {
        "device": torch.cuda.get_device_name(0),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
        "driver": ask_driver(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "packages": {name: get_version(name) for name in PACKAGES},
    }


def get_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def ask_driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[0].strip() or None


SOURCES = ("reference", "impl", "harness", "tests/impl", "ci")


def hash_sources(root: Path = ROOT) -> str:
    """A digest of what the parts run. The checkout may be a copy without a repository."""
    digest = hashlib.sha256()
    files = [file for folder in SOURCES for file in (root / folder).rglob("*.py")]
    for file in sorted(files):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def measure(
    machine: Result,
    parts: Sequence[Part],
    chosen: Sequence[str],
    out: Path,
    limit: float,
    failures: Path,
    again: bool = False,
) -> int:
    """Runs parts, and writes what they find.

    Args:
        machine: see `describe_machine`.
        parts: all that there are.
        chosen: how the names of those begin that are run; empty for all that have not
            passed on this machine with these sources.
        out: the folder of the results.
        limit: seconds for each part.
        failures: the folder in which parts leave the programs that failed.
        again: run those, too, that have passed.

    Returns:
        1 if a part failed, else 0.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{machine['device'].replace(' ', '-')}.json"
    before = read_json(path)["parts"] if path.exists() else {}
    absent = {"status": "not measured", "why": "it was not asked for"}
    results = {part.name: before.get(part.name, absent) for part in parts}
    about = {"machine": machine, "sources": hash_sources()}
    failed = 0
    for part in parts:
        if chosen and not part.name.startswith(tuple(chosen)):
            continue
        has_passed = {**about, "status": "passed"}.items() <= results[part.name].items()
        if has_passed and not chosen and not again:
            click.echo(f"== {part.name}: has passed; --again measures it once more")
            continue
        click.echo(f"== {part.name} on {machine['device']}")
        result = run(part, limit)
        results[part.name] = {**result, "date": str(date.today()), **about}
        pack(failures, part.name, out / "failures.zip")
        failed += result["status"] == "failed"
        click.echo(f"{result['status']}{format_result(result)}")
        document = {"format": "lockstep-gpu/2", "parts": results}
        path.write_text(json.dumps(document, indent=1) + "\n")
    click.echo(f"written to {path}")
    return int(failed > 0)


def pack(folder: Path, name: str, archive: Path) -> None:
    """Adds the files of a folder to an archive, below a name, in place of those that were
    there before; the folder is empty then."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    kept = {}
    if archive.exists():
        with zipfile.ZipFile(archive) as old:
            names = [one for one in old.namelist() if not one.startswith(f"{name}/")]
            kept = {one: old.read(one) for one in names}
    kept |= {f"{name}/{file.relative_to(folder)}": file.read_bytes() for file in files}
    for file in files:
        file.unlink()
    if kept:
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as new:
            for place, content in kept.items():
                new.writestr(place, content)
    else:
        archive.unlink(missing_ok=True)


def format_result(result: Result) -> str:
    words = [f": {result['why']}"] if "why" in result else []
    words += [f" in {result['seconds']} s"] if "seconds" in result else []
    words += [f"\n{result['last_words']}"] if "last_words" in result else []
    return "".join(words)


@click.command()
@click.argument("chosen", nargs=-1, metavar="[PART]...")
@click.option("--out", type=click.Path(path_type=Path), default="ci/bench/results")
@click.option("--programs", default=200, show_default=True, help="For each kind.")
@click.option("--limit", default=480.0, show_default=True, help="Seconds for each part.")
@click.option("--again", is_flag=True, help="Those, too, that have passed.")
def main(
    chosen: Sequence[str], out: Path, programs: int, limit: float, again: bool
) -> None:
    """Measures what is to be measured on a GPU: the parts whose name begins so, or all
    that have not passed yet, on this machine and with these sources.

    Exit status: 0 all passed, 1 one failed, 2 there is no GPU.
    """
    try:
        machine = describe_machine()
    except RuntimeError as error:
        click.echo(f"ci/gpu: {error}: not measured on a GPU", err=True)
        sys.exit(2)
    with tempfile.TemporaryDirectory() as failures:
        parts = list_parts(programs, Path(failures))
        for name in chosen:
            if not any(part.name.startswith(name) for part in parts):
                names = ", ".join(part.name for part in parts)
                raise click.UsageError(f"no part begins with {name!r}; there are {names}")
        sys.exit(measure(machine, parts, chosen, out, limit, Path(failures), again))


if __name__ == "__main__":
    main()
