"""`ci/gpu`, as far as it can be seen without a GPU: with parts that are made up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MACHINE = {"device": "NVIDIA Made Up", "driver": "1.2", "packages": {"torch": "9"}}


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "ci")
    return import_module("on_gpu")


@pytest.fixture
def parts(on_gpu: Any) -> Any:
    return import_module("gpu_parts")


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


WRITES = "open(r'{file}', 'w').write('{\"speed\": 7}')"


def test_without_a_gpu_nothing_is_written(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = subprocess.run(
        ["ci/gpu", "--out", str(tmp_path / "results")],
        cwd=ROOT,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "ci/gpu: torch finds no CUDA device here: not measured on a GPU\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_part_that_fails_stops_no_other(
    on_gpu: Any, parts: Any, tmp_path: Path
) -> None:
    read = parts.read_json
    made_up = [
        parts.Part("first", python(WRITES), read),
        parts.Part("broken", python("import sys; sys.exit('that is why')"), read),
        parts.Part("beyond", python(WRITES + "; raise SystemExit(1)"), read),
        parts.Part("hangs", python("import time; time.sleep(60)"), read),
        parts.Part("cut", python(WRITES + "; import time; time.sleep(60)"), read),
        parts.Part("missing", ("/nowhere/at/all",), read),
        parts.Part("absent", python(WRITES), read, "there is none here"),
        parts.Part("printed", python("print('[1]')"), read),
    ]
    assert on_gpu.measure(MACHINE, made_up, (), tmp_path, 3) == 1
    document = json.loads((tmp_path / "NVIDIA-Made-Up.json").read_text())
    results = document["parts"]
    assert all(result["machine"] == MACHINE for result in results.values())
    status = {name: result["status"] for name, result in results.items()}
    assert status == {
        "first": "passed",
        "broken": "failed",
        "beyond": "failed",
        "hangs": "failed",
        "cut": "failed",
        "missing": "failed",
        "absent": "not measured",
        "printed": "passed",
    }
    assert results["first"]["result"] == results["beyond"]["result"] == {"speed": 7}
    assert results["printed"]["result"] == [1]
    assert results["broken"]["last_words"] == "that is why\n"
    assert results["hangs"]["why"] == "it took more than 3 s"
    assert results["cut"]["result"] == {"speed": 7}  # written before the limit
    assert results["absent"]["why"] == "there is none here"
    unmeasured = ("broken", "hangs", "missing", "absent")
    assert not any("result" in results[name] for name in unmeasured)


def test_parts_may_be_measured_one_after_the_other(
    on_gpu: Any, parts: Any, tmp_path: Path
) -> None:
    made_up = [
        parts.Part(name, python(WRITES), parts.read_json) for name in ("one a", "two")
    ]

    def run(machine: Any, *chosen: str) -> dict[str, str]:
        assert on_gpu.measure(machine, made_up, chosen, tmp_path, 60) == 0
        found = json.loads((tmp_path / "NVIDIA-Made-Up.json").read_text())["parts"]
        return {name: result["status"] for name, result in found.items()}

    assert run(MACHINE, "one") == {"one a": "passed", "two": "not measured"}
    assert run(MACHINE, "two") == {"one a": "passed", "two": "passed"}
    other = {**MACHINE, "driver": "1.3"}
    assert run(other, "two") == {"one a": "passed", "two": "passed"}
    found = json.loads((tmp_path / "NVIDIA-Made-Up.json").read_text())["parts"]
    drivers = [found[name]["machine"]["driver"] for name in ("one a", "two")]
    assert drivers == ["1.2", "1.3"]


def test_what_lockstep_prints_is_read(parts: Any) -> None:
    pytest.importorskip("torch")
    commands = {
        "check": "--backend torch-cpu --kind kv --programs 3",
        "faults": "--backend torch-cpu --fault paged-double-count --programs 1",
    }
    results = {}
    for verb, options in commands.items():
        command = (*parts.LOCKSTEP, verb, *options.split(), "--jobs", "1", "--json")
        read = getattr(parts, "read_checks" if verb == "check" else "read_faults")
        results[verb] = parts.run(parts.Part(verb, command, read), 60)["result"]
    (pair,) = results["check"]
    assert (pair["kind"], pair["programs"], pair["failures"]) == ("kv", 3, [])
    assert pair["steps"] > 3
    assert results["faults"] == {
        "faults": 1,
        "found": 0,
        "not_found": ["paged-double-count"],
    }


def test_what_pytest_writes_is_read(parts: Any, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_right(): pass\n"
        "def test_wrong(): assert 0\n"
        "def test_absent(): pytest.skip('no')\n"
    )
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", "{file}")
    command = (sys.executable, *options, str(tmp_path))
    result = parts.run(parts.Part("tests", command, parts.read_tests), 60)
    assert result["status"] == "failed"
    counts = {"tests": 3, "failures": 1, "errors": 0, "skipped": 1}
    assert result["result"] == {**counts, "broken": ["test_wrong"]}


def test_a_sanitizer_is_used_where_there_is_one(
    parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "glob", lambda pattern: [str(tmp_path / "cuda")])
    monkeypatch.setattr(parts, "find_spec", lambda name: True)
    monkeypatch.setenv("PATH", "")
    lacks = {part.name: part.lacks for part in parts.list_kernel_parts()}
    assert lacks["sanitizer memcheck"] == "compute-sanitizer: not found, not run"
    tool = tmp_path / "cuda" / "bin" / "compute-sanitizer"
    tool.parent.mkdir(parents=True)
    said = "put: same\n========= ERROR SUMMARY: 0 errors"
    tool.write_text(f"#!{sys.executable}\nprint({said!r})\n")
    tool.chmod(0o755)
    _, memcheck, _, racecheck = parts.list_kernel_parts()
    assert memcheck.command[:3] == (str(tool), "--tool", "memcheck")
    assert racecheck.lacks is None
    found = {"summary": "ERROR SUMMARY: 0 errors", "same": 1}
    assert parts.run(memcheck, 60)["result"] == found
    tool.write_text("#!/bin/sh\n")
    result = parts.run(memcheck, 60)
    assert result["status"] == "failed" and "there is no summary" in result["why"]


def test_every_kernel_gives_the_same_over_odd_sizes() -> None:
    """The script for the sanitizer runs in the interpreter."""
    pytest.importorskip("triton", "3.9", reason="needs Triton 3.9 to interpret kernels")
    done = subprocess.run(
        [sys.executable, "ci/sanitize.py"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": same") == 17
