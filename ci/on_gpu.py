"""Runs all measurements on a machine with a CUDA GPU, part by part; used by `ci/gpu`.

All results are in one file, OUT/DEVICE.json, which is written after every part. For each
part, the file contains the result, the failure, or the reason why the part was not
measured. It also contains the date, the machine, the versions and a digest of the
sources. An interrupted run continues where it stopped: parts that have passed on this
machine with the same sources do not run again. Failing programs are in OUT/failures.zip,
for `lockstep replay`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from glob import glob
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from lockstep.harness.cli.options import Seconds
from lockstep.harness.core.interrupts import signals

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "triton", "mlx", "numpy", "hypothesis", "pytest")
SOURCES = ("reference", "impl", "harness", "tests/impl", "ci")
TAIL = 4000
"""Characters of a failing part's output that are kept."""

GRACE = 20.0
"""The seconds that an interrupted part has to write its results."""

MAX_PACKED = 2 << 20
"""The maximal size of all failing programs in bytes, before compression."""

Result = dict[str, Any]


# --- a part -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A part of the measurement: a command and its result.

    Attributes:
        command: the command; "{file}" is replaced by the path of its output file. If the
            command writes no file, its standard output is used.
        read: returns the result from the output file.
        lacks: the reason why the part cannot run here, or None.
        variables: additional environment variables.
    """

    name: str
    command: Sequence[str]
    read: Callable[[Path], Any]
    lacks: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


def run(part: Part, limit: float) -> Result:
    """Runs a part for at most `limit` seconds.

    Returns:
        The result as JSON: "status" is "passed", "failed" or "not measured". The output
        of a failed part is kept, too.
    """
    if part.lacks:
        return {"status": "not measured", "why": part.lacks}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file, printed = Path(folder) / "out", Path(folder) / "printed"
        errors = Path(folder) / "errors"
        command = [word.replace("{file}", str(file)) for word in part.command]
        variables = {**os.environ, **part.variables}
        with printed.open("wb") as out, errors.open("wb") as err:
            streams = {"stdout": out, "stderr": err, "start_new_session": True}
            process = subprocess.Popen(command, cwd=ROOT, env=variables, **streams)
            status = wait(process, limit)
        result: Result = {"status": "passed" if status == 0 else "failed"}
        if status is None:
            result["why"] = f"it took more than {limit:g} s"
        result["seconds"] = round(time.monotonic() - started, 1)
        try:
            result["result"] = part.read(file if file.exists() else printed)
        except (ValueError, KeyError, StopIteration, xml.ParseError) as error:
            result = {"why": f"cannot be read: {error!r}", **result, "status": "failed"}
        if result["status"] == "failed":
            result["exit_status"] = status
            texts = [path.read_text(errors="replace") for path in (printed, errors)]
            result["last_words"] = "".join(texts)[-TAIL:]
    return result


def wait(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """Returns the exit status of a process; None if it took more than `limit` seconds.

    Ends all processes of its group, because a sanitizer would otherwise leave its child
    process on the device.
    """
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)  # the part writes its results
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# --- the result of a part ---------------------------------------------------------------


def read_json(file: Path) -> Any:
    return json.loads(file.read_text())


def read_checks(file: Path) -> Any:
    """Reads `lockstep check --json`: counts, and the signatures of failures."""
    names = ("kind", "programs", "steps", "errors")
    return [
        {
            **{name: pair[name] for name in names},
            "failures": [failure["signature"] for failure in pair["failures"]],
        }
        for pair in read_json(file)["pairs"]
    ]


def read_faults(file: Path) -> Any:
    """Reads `lockstep faults --json`: counts, and the mistakes that were not found."""
    outcome = read_json(file)
    missed = [row["planted"]["id"] for row in outcome["faults"] if not row["found"]]
    return {**outcome["summary"], "not_found": missed}


def read_tests(file: Path) -> Any:
    """Reads a JUnit XML file: counts and failed tests."""
    suite = next(xml.parse(file).getroot().iter("testsuite"))
    counts = ("tests", "failures", "errors", "skipped")
    cases = suite.iter("testcase")
    broken = [
        case.get("name")
        for case in cases
        if {"failure", "error"} & {child.tag for child in case}
    ]
    return {**{name: int(suite.get(name, 0)) for name in counts}, "broken": broken}


def read_sanitizer(file: Path) -> Any:
    """Reads the summary of the sanitizer, and the number of comparisons."""
    lines = file.read_text().splitlines()
    summary = [line for line in lines if "SUMMARY" in line]
    if not summary:
        raise ValueError("there is no summary")
    same = sum(line.endswith(": same") for line in lines)
    return {"summary": summary[-1].strip("= "), "same": same}


# --- the parts --------------------------------------------------------------------------

PYTHON = sys.executable
LOCKSTEP = (PYTHON, "-m", "lockstep.harness")
JSON = ("--json", "{file}")
SANITIZED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""An allocation for each array, so that a tool sees an access beyond one."""


def list_parts(programs: int, failures: Path) -> list[Part]:
    """Lists all parts, in the order in which they run.

    Args:
        programs: the number of conformance programs for each kind.
        failures: the folder for programs that fail.
    """
    devices = {
        "torch-cuda": ("lockstep.impl.torch.backend:cuda", None),
        "mlx-gpu": ("lockstep.impl.mlx.backend:gpu", is_missing("mlx")),
    }
    parts = []
    for verb, name, more in (
        ("check", "conformance", ("--programs", str(programs))),
        ("faults", "faults", ()),
    ):
        read = read_checks if verb == "check" else read_faults
        for device, (backend, lacks) in devices.items():
            folder = failures / f"{name} {device}"
            options = ("--json", "--step-time", "120", "--failures", str(folder), *more)
            command = (*LOCKSTEP, verb, "--backend", backend, *options)
            parts.append(Part(f"{name} {device}", command, read, lacks))
    parts += list_kernel_parts()
    for device, (backend, lacks) in devices.items():
        few = ("--backend", backend, "--programs", "40", "--rounds", "3", *JSON)
        command = (PYTHON, "ci/bench/harness.py", *few)
        parts.append(Part(f"speed of checking {device}", command, read_json, lacks))
    kernels = (PYTHON, "ci/bench/kernels.py", *JSON)
    caches = (PYTHON, "ci/bench/caches.py", "compare", "--device", "cuda")
    narrow = ("--dtype", "bfloat16", "--form", "grouped", *JSON)
    return [
        *parts,
        Part("speed of kernels", kernels, read_json, is_missing("triton")),
        Part("speed of caches", (*caches, *narrow), read_json),
    ]


def list_kernel_parts() -> list[Part]:
    """Lists the parts that need Triton."""
    triton, sanitizer = is_missing("triton"), find_sanitizer()
    tests = [f"tests/impl/test_torch_{name}.py" for name in ("kernels", "graphs")]
    command = (PYTHON, "-m", "pytest", "-q", "--junitxml", "{file}", *tests)
    parts = [Part("kernels", command, read_tests, triton or is_missing("pytest"))]
    lacks = triton or (None if sanitizer else "compute-sanitizer: not found, not run")
    for tool in ("memcheck", "initcheck", "racecheck"):
        options = ("--tool", tool, "--error-exitcode", "9", PYTHON, "ci/sanitize.py")
        command = (sanitizer or "", *options)
        part = Part(f"sanitizer {tool}", command, read_sanitizer, lacks, SANITIZED)
        parts.append(part)
    return parts


def is_missing(package: str) -> str | None:
    return None if find_spec(package) else f"there is no {package} here"


def find_sanitizer() -> str | None:
    """Finds the sanitizer on the PATH or in the usual folder of CUDA."""
    homes = [os.environ.get("CUDA_HOME", ""), *sorted(glob("/usr/local/cuda*"))[::-1]]
    folders = [
        f"{home}/{name}" for name in ("bin", "compute-sanitizer") for home in homes
    ]
    path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    return shutil.which("compute-sanitizer", path=path)


# --- the machine, and the file ----------------------------------------------------------


def describe_machine() -> Result:
    """Returns the names and versions of device, driver and packages.

    Raises:
        RuntimeError: torch finds no CUDA device.
    """
    try:
        import torch
    except ImportError as error:
        raise RuntimeError(f"this python has no torch ({error})") from error
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device here")
    torch.cuda.init()  # raises the reason if the device cannot be used
    return {
        "device": torch.cuda.get_device_name(0),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(0))),
        "driver": find_driver(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "packages": {name: find_version(name) for name in PACKAGES},
    }


def find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def find_driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[0].strip() or None


def hash_sources(root: Path = ROOT) -> str:
    """Returns a digest of the code that the parts run.

    Args:
        root: the folder of the checkout, which need not be a git repository.
    """
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
) -> int:
    """Runs parts, and writes their results.

    Args:
        machine: see `describe_machine`.
        parts: all parts.
        chosen: the beginnings of the names of the parts to run; if empty, runs all parts
            that have not passed on this machine with these sources.
        out: the folder of the results.
        limit: the time limit for each part, in seconds.
        failures: the folder in which parts save failing programs.

    Returns:
        1 if a part failed, else 0.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{machine['device'].replace(' ', '-')}.json"
    before = read_json(path)["parts"] if path.exists() else {}
    absent = {"status": "not measured", "why": "it was not asked for"}
    results = {part.name: before.get(part.name, absent) for part in parts}
    about = {"machine": machine, "sources": hash_sources()}
    status = 0
    for part in parts:
        earlier = results[part.name]
        if not part.name.startswith(tuple(chosen) or ""):
            continue
        if not chosen and {**about, "status": "passed"}.items() <= earlier.items():
            click.echo(f"== {part.name}: has passed; name it to measure it once more")
            continue
        click.echo(f"== {part.name} on {machine['device']}")
        result = run(part, limit)
        pack(failures, out / "failures.zip")
        click.echo(format_result(result))
        if (result["status"], earlier["status"]) == ("not measured", "passed"):
            click.echo("what was measured before is kept")
        else:
            results[part.name] = {**result, "date": str(date.today()), **about}
        write(path, {"format": "lockstep-gpu/2", "parts": results})
        status |= result["status"] == "failed"
    click.echo(f"written to {path}")
    return status


def format_result(result: Result) -> str:
    why = f": {result['why']}" if "why" in result else ""
    seconds = f" in {result['seconds']} s" if "seconds" in result else ""
    output = f"\n{result['last_words']}" if "last_words" in result else ""
    return result["status"] + why + seconds + output


def write(path: Path, document: Result) -> None:
    """Writes a JSON file atomically."""
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(document, indent=1) + "\n")
    draft.replace(path)


def pack(folder: Path, archive: Path) -> None:
    """Writes the files of a folder to an archive, smallest first, up to MAX_PACKED bytes.

    Writes no archive if there are no files.
    """
    files = sorted(folder.rglob("*.json"), key=lambda file: file.stat().st_size)
    size = 0
    if not files:
        return
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in files:
            size += file.stat().st_size
            if size <= MAX_PACKED:
                packed.write(file, file.relative_to(folder))


@click.command(context_settings={"show_default": True})
@click.argument("chosen", nargs=-1, metavar="[PART]...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default="ci/bench/results",
    help="The folder of the results.",
)
@click.option("--programs", type=click.IntRange(1), default=200, help="For each kind.")
@click.option("--limit", type=Seconds(1.0), default=480.0, help="Seconds for each part.")
def main(chosen: Sequence[str], out: Path, programs: int, limit: float) -> None:
    """Measures on a GPU.

    Runs the parts whose names begin with PART; without PART, all parts that have not
    passed on this machine with these sources. Ctrl-C ends the running part, and keeps the
    results of earlier parts.

    Exit status: 0 all passed, 1 one failed, 2 there is no GPU, 130 Ctrl-C.
    """
    try:
        machine = describe_machine()
    except (RuntimeError, OSError) as error:
        why = str(error).strip().partition("\n")[0]
        click.echo(f"ci/gpu: {why}: not measured on a GPU", err=True)
        sys.exit(2)
    with signals(), tempfile.TemporaryDirectory() as folder:
        failures = Path(folder)
        parts = list_parts(programs, failures)
        for name in chosen:
            if not any(part.name.startswith(name) for part in parts):
                names = ", ".join(part.name for part in parts)
                raise click.UsageError(f"no part begins with {name!r}; there are {names}")
        try:
            sys.exit(measure(machine, parts, chosen, out, limit, failures))
        except KeyboardInterrupt:
            sys.exit(130)


if __name__ == "__main__":
    main(prog_name="ci/gpu")
