"""Measures on a machine with a CUDA GPU, part by part; `ci/gpu` runs this.

All of it goes into one file, OUT/DEVICE.json, which is written after every part: what a
part found, that it failed, or that it was not measured and why; when, on which machine
with which versions, and of which sources. A run that was cut off goes on where it
stopped: what has passed there with the same sources is not measured again. The programs
that failed are in OUT/failures.zip, for `lockstep replay`.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from pathlib import Path

import click
from gpu_parts import ROOT, Part, Result, list_parts, read_json, run
from sources import hash_folders

from lockstep.harness.cli.options import Seconds
from lockstep.harness.core.interrupts import signals

PACKAGES = ("torch", "triton", "mlx", "numpy", "hypothesis", "pytest")


def describe_machine() -> Result:
    """Raises RuntimeError if torch finds no CUDA device."""
    try:
        import torch
    except ImportError as error:
        raise RuntimeError(f"this python has no torch ({error})") from error
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device here")
    torch.cuda.init()  # says why, if the device cannot be used
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
    return hash_folders(root, SOURCES)


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
        1 if a part failed, 130 if Ctrl-C ended one, else 0.
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
        if left_out := pack(failures, part.name, out / "failures.zip"):
            result["failures_left_out"] = left_out
        status = result["status"]
        failed += status == "failed"
        click.echo(f"{status}{format_result(result)}")
        if status in LESS and results[part.name]["status"] == "passed":
            click.echo("what was measured before is kept")
        else:
            results[part.name] = {**result, "date": str(date.today()), **about}
        write(path, {"format": "lockstep-gpu/2", "parts": results})
        if status == "interrupted":
            return 130
    click.echo(f"written to {path}")
    return int(failed > 0)


LESS = ("interrupted", "not measured")
"""What does not take the place of a whole measurement."""


def write(path: Path, document: Result) -> None:
    """Writes a file whole or not at all."""
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(document, indent=1) + "\n")
    draft.replace(path)


MOST_PACKED = 2 << 20
"""Bytes of a part's programs that failed, before they are compressed."""


def pack(folder: Path, name: str, archive: Path) -> int:
    """Adds the files of a folder to an archive, below a name, in place of those that were
    there before; the folder is empty then.

    Returns:
        The number of files that were too much; those are the largest.
    """
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    smallest = sorted(files, key=get_size)
    fitting = sum(end <= MOST_PACKED for end in accumulate(map(get_size, smallest)))
    kept = {}
    if archive.exists():
        with zipfile.ZipFile(archive) as old:
            names = [one for one in old.namelist() if not one.startswith(f"{name}/")]
            kept = {one: old.read(one) for one in names}
    for file in smallest[:fitting]:
        kept[f"{name}/{file.relative_to(folder)}"] = file.read_bytes()
    for file in files:
        file.unlink()
    if kept:
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as new:
            for place, content in kept.items():
                new.writestr(place, content)
    else:
        archive.unlink(missing_ok=True)
    return len(files) - fitting


def get_size(file: Path) -> int:
    return file.stat().st_size


def format_result(result: Result) -> str:
    words = [f": {result['why']}"] if "why" in result else []
    words += [f" in {result['seconds']} s"] if "seconds" in result else []
    words += [f"\n{result['last_words']}"] if "last_words" in result else []
    return "".join(words)


@click.command()
@click.argument("chosen", nargs=-1, metavar="[PART]...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default="ci/bench/results",
    show_default=True,
    help="The folder of the results.",
)
@click.option(
    "--programs",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="For each kind.",
)
@click.option(
    "--limit",
    type=Seconds(1.0),
    default=480.0,
    show_default=True,
    help="Seconds for each part.",
)
@click.option("--again", is_flag=True, help="Those, too, that have passed.")
def main(
    chosen: Sequence[str], out: Path, programs: int, limit: float, again: bool
) -> None:
    """Measures what is to be measured on a GPU: the parts whose name begins so, or all
    that have not passed yet, on this machine and with these sources.

    Ctrl-C ends the part that is running, and keeps what was measured.

    Exit status: 0 all passed, 1 one failed, 2 there is no GPU, 130 Ctrl-C.
    """
    try:
        machine = describe_machine()
    except (RuntimeError, OSError) as error:
        why = str(error).strip().partition("\n")[0]
        click.echo(f"ci/gpu: {why}: not measured on a GPU", err=True)
        sys.exit(2)
    with signals(), tempfile.TemporaryDirectory() as failures:
        parts = list_parts(programs, Path(failures))
        for name in chosen:
            if not any(part.name.startswith(name) for part in parts):
                names = ", ".join(part.name for part in parts)
                raise click.UsageError(f"no part begins with {name!r}; there are {names}")
        try:
            own = machine, parts, chosen, out, limit, Path(failures), again
            sys.exit(measure(*own))
        except KeyboardInterrupt:  # between two parts
            sys.exit(130)


if __name__ == "__main__":
    main(prog_name="ci/gpu")
