"""The parts of what is measured on a GPU: what each runs, and what of it is kept."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
TAIL = 4000
"""Characters of a failing part's last words that are kept."""

GRACE = 20.0
"""Seconds in which a part that is cut off may write what it has found."""

Result = dict[str, Any]
Read = Callable[[Path], Any]
"""What to keep of the file that a part wrote."""


@dataclass(frozen=True)
class Part:
    """command: "{file}" in it stands for the file that it writes, or that gets what it
    prints if it writes none. read: see `Read`. lacks: why it cannot be run, if so.
    variables: of its environment, besides those that are there."""

    name: str
    command: Sequence[str]
    read: Read
    lacks: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


def run(part: Part, limit: float) -> Result:
    """Runs a part.

    Args:
        part: what to run.
        limit: seconds.

    Returns:
        "status" is "passed", "failed", "interrupted" by Ctrl-C, or "not measured". What a
        part has written is kept in any case.
    """
    if part.lacks:
        return {"status": "not measured", "why": part.lacks}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file, printed, words = (
            Path(folder) / name for name in ("out", "printed", "said")
        )
        command = [word.replace("{file}", str(file)) for word in part.command]
        try:
            with printed.open("wb") as out, words.open("wb") as err:
                variables = {**os.environ, **part.variables}
                status, cut = call(command, variables, out, err, limit)
        except OSError as error:
            return {"status": "failed", "why": str(error)}
        result: Result = {"status": "failed" if status else "passed"}
        if cut is KeyboardInterrupt:
            result = {"status": "interrupted", "why": "it was interrupted"}
        elif cut:
            result = {"status": "failed", "why": f"it took more than {limit:g} s"}
        result["seconds"] = round(time.monotonic() - started, 1)
        try:
            result["result"] = part.read(file if file.exists() else printed)
        except (ValueError, KeyError, StopIteration, xml.ParseError) as error:
            result = {"why": f"cannot be read: {error!r}", **result}
            if result["status"] == "passed":
                result["status"] = "failed"
        if result["status"] == "failed":
            result["exit_status"] = None if cut else status
            last = [each.read_text(errors="replace") for each in (printed, words)]
            result["last_words"] = "".join(last)[-TAIL:]
    return result


def call(
    command: Sequence[str],
    variables: Mapping[str, str],
    out: IO[bytes],
    err: IO[bytes],
    limit: float,
) -> tuple[int, type[BaseException] | None]:
    """The exit status, and what has cut it off: the limit, Ctrl-C, or nothing.

    It has a process group of its own, which is ended as a whole: a sanitizer leaves its
    process on the device.
    """
    own = {"stdout": out, "stderr": err, "start_new_session": True}
    process = subprocess.Popen(command, cwd=ROOT, env=variables, **own)
    cut: type[BaseException] | None = None
    try:
        try:
            process.wait(limit)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
            cut = next(each for each in CUTS if isinstance(error, each))
            os.killpg(process.pid, signal.SIGINT)  # it writes what it has found
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(GRACE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
    return status, cut


CUTS = (subprocess.TimeoutExpired, KeyboardInterrupt)


# --- what is kept -----------------------------------------------------------------------


def read_json(file: Path) -> Any:
    return json.loads(file.read_text())


def read_checks(file: Path) -> Any:
    """Of `lockstep check --json`: counts, and the signatures of failures."""
    pairs = read_json(file)["pairs"]
    return [
        {
            "kind": pair["kind"],
            "programs": pair["programs"],
            "steps": pair["steps"],
            "failures": [failure["signature"] for failure in pair["failures"]],
            "errors": pair["errors"],
        }
        for pair in pairs
    ]


def read_faults(file: Path) -> Any:
    """Of `lockstep faults --json`: counts, and what survived."""
    outcome = read_json(file)
    missed = [each["planted"]["id"] for each in outcome["faults"] if not each["found"]]
    return {**outcome["summary"], "not_found": missed}


def read_tests(file: Path) -> Any:
    """Of a file in the format of JUnit: counts, and what failed."""
    suite = next(xml.parse(file).getroot().iter("testsuite"))
    names = ("tests", "failures", "errors", "skipped")
    broken = [
        case.get("name")
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return {**{name: int(suite.get(name, 0)) for name in names}, "broken": broken}


def read_sanitizer(file: Path) -> Any:
    """The summary that it ends in, and how many comparisons were made."""
    lines = file.read_text().splitlines()
    summary = [line for line in lines if "SUMMARY" in line]
    if not summary:
        raise ValueError("there is no summary")
    return {"summary": summary[-1].strip("= "), "same": count(lines, ": same")}


def count(lines: Sequence[str], end: str) -> int:
    return sum(line.endswith(end) for line in lines)


# --- the parts --------------------------------------------------------------------------


LOCKSTEP = (sys.executable, "-m", "lockstep.harness")
JSON = ("--json", "{file}")

SANITIZED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""An allocation for each array, so that a tool sees an access beyond one."""


def list_parts(programs: int, failures: Path) -> list[Part]:
    """programs: of conformance, for each kind. failures: a folder for those that are
    found."""
    options = ("--json", "--failures", str(failures), "--step-time", "120")
    profile = ("--programs", str(programs))
    cuda = "torch-cuda", "lockstep.impl.torch.backend:cuda", None
    places = (cuda, ("mlx-gpu", "lockstep.impl.mlx.backend:gpu", find_mlx_gpu()))
    parts = []
    for place, name, lacks in places:
        check = (*LOCKSTEP, "check", "--backend", name, *options, *profile)
        parts.append(Part(f"conformance {place}", check, read_checks, lacks))
    for place, name, lacks in places:
        faults = (*LOCKSTEP, "faults", "--backend", name, *options)
        parts.append(Part(f"faults {place}", faults, read_faults, lacks))
    parts += list_kernel_parts()
    for place, name, lacks in places:
        bench = (sys.executable, "ci/bench/harness.py", "--backend", name)
        few = ("--programs", "40", "--rounds", "3", *JSON)
        parts.append(Part(f"speed of checking {place}", (*bench, *few), read_json, lacks))
    bench = (sys.executable, "ci/bench/kernels.py", *JSON)
    parts.append(Part("speed of kernels", bench, read_json, is_missing("triton")))
    compare = (sys.executable, "ci/bench/caches.py", "compare", "--device", "cuda")
    narrow = ("--dtype", "bfloat16", "--form", "grouped", *JSON)
    return [*parts, Part("speed of caches", (*compare, *narrow), read_json)]


def list_kernel_parts() -> list[Part]:
    """The parts that need Triton."""
    triton, sanitizer = is_missing("triton"), find_sanitizer()
    tests = [f"tests/impl/test_torch_{name}.py" for name in ("kernels", "graphs")]
    command = (sys.executable, "-m", "pytest", "-q", "--junitxml", "{file}", *tests)
    parts = [Part("kernels", command, read_tests, triton or is_missing("pytest"))]
    for tool in ("memcheck", "initcheck", "racecheck"):
        options = ("--tool", tool, "--error-exitcode", "9")
        command = (sanitizer or "", *options, sys.executable, "ci/sanitize.py")
        lacks = triton or (None if sanitizer else "compute-sanitizer: not found, not run")
        name = f"sanitizer {tool}"
        parts.append(Part(name, command, read_sanitizer, lacks, SANITIZED))
    return parts


def is_missing(package: str) -> str | None:
    """That it is, if so."""
    return None if find_spec(package) else f"there is no {package} here"


def find_sanitizer() -> str | None:
    """On the PATH, or where CUDA usually is."""
    homes = [os.environ.get("CUDA_HOME", ""), *sorted(glob("/usr/local/cuda*"))[::-1]]
    places = [os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes if home)]
    places += [f"{home}/compute-sanitizer" for home in homes if home]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(places))


ANSWER = 120.0


def find_mlx_gpu() -> str | None:
    """Why MLX has no GPU here; None if it has one."""
    if lacks := is_missing("mlx"):
        return lacks
    code = "from lockstep.impl.mlx.backend import gpu; gpu()"
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=ANSWER
        )
    except subprocess.TimeoutExpired:
        return f"mlx did not find its GPU within {ANSWER:g} s"
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[-1] if done.returncode else None
