"""The parts of what is measured on a GPU: what each runs, and what of it is kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TAIL = 4000
"""Characters of a failing part's last words that are kept."""

Result = dict[str, Any]
Read = Callable[[Path], Any]
"""What to keep of the file that a part wrote."""


@dataclass(frozen=True)
class Part:
    """command: "{file}" in it stands for the file that it writes, or that gets what it
    prints if it writes none. read: see `Read`. lacks: why it cannot be run, if so."""

    name: str
    command: Sequence[str]
    read: Read
    lacks: str | None = None


def run(part: Part, limit: float) -> Result:
    """status: "passed", "failed" or "not measured"; limit: seconds."""
    if part.lacks:
        return {"status": "not measured", "why": part.lacks}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "out"
        command = [word.replace("{file}", str(file)) for word in part.command]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return {"status": "failed", "why": f"it took more than {limit:g} s"}
        except OSError as error:
            return {"status": "failed", "why": str(error)}
        if not file.exists():
            file.write_text(done.stdout)
        result: Result = {"status": "failed" if done.returncode else "passed"}
        result["seconds"] = round(time.monotonic() - started, 1)
        try:
            result["result"] = part.read(file)
        except (ValueError, KeyError, xml.ParseError) as error:
            result |= {"status": "failed", "why": f"cannot be read: {error!r}"}
    if result["status"] == "failed":
        result["exit_status"] = done.returncode
        result["last_words"] = (done.stdout + done.stderr)[-TAIL:]
    return result


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


LOCKSTEP = (sys.executable, "-m", "lockstep.harness.cli.main")
JSON = ("--json", "{file}")


def list_parts(programs: int | None, failures: Path) -> list[Part]:
    """programs: of conformance, for each kind; None: the ci profile. failures: a folder
    for those that are found."""
    options = ("--json", "--failures", str(failures))
    profile = ("--profile", "ci") if programs is None else ("--programs", str(programs))
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
        bench = (sys.executable, "ci/bench/harness.py", "--backend", name, *JSON)
        parts.append(Part(f"speed of checking {place}", bench, read_json, lacks))
    bench = (sys.executable, "ci/bench/kernels.py", *JSON)
    parts.append(Part("speed of kernels", bench, read_json, is_missing("triton")))
    compare = (sys.executable, "ci/bench/caches.py", "compare", "--device", "cuda", *JSON)
    return [*parts, Part("speed of caches", compare, read_json)]


def list_kernel_parts() -> list[Part]:
    """The parts that need Triton."""
    triton, sanitizer = is_missing("triton"), find_sanitizer()
    tests = [f"tests/impl/test_torch_{name}.py" for name in ("kernels", "graphs")]
    command = (sys.executable, "-m", "pytest", "-q", "--junitxml", "{file}", *tests)
    parts = [Part("kernels", command, read_tests, triton or is_missing("pytest"))]
    for tool in ("memcheck", "racecheck"):
        options = ("--tool", tool, "--error-exitcode", "9")
        command = (sanitizer or "", *options, sys.executable, "ci/sanitize.py")
        lacks = triton or (None if sanitizer else "compute-sanitizer: not found, not run")
        parts.append(Part(f"sanitizer {tool}", command, read_sanitizer, lacks))
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


def find_mlx_gpu() -> str | None:
    """Why MLX has no GPU here; None if it has one."""
    if lacks := is_missing("mlx"):
        return lacks
    code = "from lockstep.impl.mlx.backend import gpu; gpu()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[-1] if done.returncode else None
