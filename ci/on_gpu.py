"""Measures on a machine with a CUDA GPU, part by part; `ci/gpu` runs this.

All of it goes into one file, OUT/DEVICE.json, which is written after every part: what a
part found, that it failed, or that it was not measured and why; when, and on which
machine with which versions.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
from gpu_parts import Part, Result, list_parts, read_json, run

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


def measure(
    machine: Result, parts: Sequence[Part], chosen: Sequence[str], out: Path, limit: float
) -> int:
    """Runs the parts whose name begins with one of `chosen`, or all; 1 if one failed."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{machine['device'].replace(' ', '-')}.json"
    before = read_json(path)["parts"] if path.exists() else {}
    absent = {"status": "not measured", "why": "it was not asked for"}
    results = {part.name: before.get(part.name, absent) for part in parts}
    failed = 0
    for part in parts:
        if chosen and not part.name.startswith(tuple(chosen)):
            continue
        click.echo(f"== {part.name} on {machine['device']}")
        result = run(part, limit)
        results[part.name] = {**result, "date": str(date.today()), "machine": machine}
        failed += result["status"] == "failed"
        click.echo(f"{result['status']}{format_result(result)}")
        document = {"format": "lockstep-gpu/2", "parts": results}
        path.write_text(json.dumps(document, indent=1) + "\n")
    click.echo(f"written to {path}")
    return int(failed > 0)


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
def main(chosen: Sequence[str], out: Path, programs: int, limit: float) -> None:
    """Measures what is to be measured on a GPU: all parts, or those whose name begins so.

    Exit status: 0 all passed, 1 one failed, 2 there is no GPU.
    """
    try:
        machine = describe_machine()
    except RuntimeError as error:
        click.echo(f"ci/gpu: {error}: not measured on a GPU", err=True)
        sys.exit(2)
    parts = list_parts(programs, out / "failures")
    for name in chosen:
        if not any(part.name.startswith(name) for part in parts):
            names = ", ".join(part.name for part in parts)
            raise click.UsageError(f"no part begins with {name!r}; there are {names}")
    sys.exit(measure(machine, parts, chosen, out, limit))


if __name__ == "__main__":
    main()
