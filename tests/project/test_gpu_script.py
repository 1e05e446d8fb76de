"""`ci/gpu`, as far as it can be seen without a GPU: with parts that are made up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

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
    assert on_gpu.measure(MACHINE, made_up, (), tmp_path, 3, tmp_path / "none") == 1
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


def test_a_part_is_ended_with_all_that_it_has_started(
    parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sanitizer leaves its process on the device, also one that ignores Ctrl-C."""
    monkeypatch.setattr(parts, "GRACE", 0.5)
    flag = tmp_path / "pid"
    child = (
        "import os, pathlib, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        f" pathlib.Path({str(flag)!r}).write_text(str(os.getpid())); time.sleep(60)"
    )
    start = f"subprocess.Popen([sys.executable, '-c', {child!r}])"
    code = f"import subprocess, sys, time; {start}; time.sleep(60)"
    result = parts.run(parts.Part("sanitizer", python(code), parts.read_json), 2)
    assert (result["status"], result["why"]) == ("failed", "it took more than 2 s")
    number = int(flag.read_text())
    for _ in range(100):  # until the system has noticed
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{number}/status").read_text().count("Z (zombie)"):
            return
        time.sleep(0.02)
    raise AssertionError("it is still there")


def test_a_check_that_is_cut_off_tells_what_it_has_found(
    parts: Any, tmp_path: Path
) -> None:
    buggy = "tests.harness.misbehaving:wrong_and_slow"
    command = (*parts.LOCKSTEP, "check", "--backend", buggy, "--programs", "100000")
    command = (*command, "--jobs", "1", "--json", "--failures", str(tmp_path))
    result = parts.run(parts.Part("slow", command, parts.read_checks), 8)
    assert (result["status"], result["why"]) == ("failed", "it took more than 8 s")
    (pair,) = result["result"]
    assert 0 < pair["programs"] < 100000 and pair["failures"]


STOPPED = """
import gpu_parts, on_gpu, sys
def part(name, code):
    return gpu_parts.Part(name, (sys.executable, "-c", code), gpu_parts.read_json)
save = "open(r'{file}', 'w').write('[7]');"
wait = "import pathlib, time; pathlib.Path(FLAG).touch(); time.sleep(60)"
on_gpu.describe_machine = lambda: MACHINE
on_gpu.list_parts = lambda *given: [
    part("first", save), part("next", save + wait), part("last", save)
]
on_gpu.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, number: int) -> None:
    """That of the part that is running, too; the next run goes on there."""
    flag, out = tmp_path / "flag", tmp_path / "out"
    code = STOPPED.replace("FLAG", repr(str(flag))).replace("MACHINE", repr(MACHINE))
    paths = os.pathsep.join((str(ROOT / "ci"), os.environ.get("PYTHONPATH", "")))
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--out", str(out)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    )
    while not flag.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted: it was interrupted" in said
    found = json.loads((out / "NVIDIA-Made-Up.json").read_text())["parts"]
    status = {name: result["status"] for name, result in found.items()}
    assert status == {"first": "passed", "next": "interrupted", "last": "not measured"}
    assert found["next"]["result"] == [7]


def test_less_does_not_take_the_place_of_a_measurement(
    on_gpu: Any, parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a part that another machine cannot run, nor one that Ctrl-C has ended."""
    results = iter(
        [
            {"status": "passed", "result": 1},
            {"status": "not measured", "why": "there is no mlx here"},
            {"status": "interrupted", "result": 2},
            {"status": "failed", "result": 3},
            {"status": "interrupted", "result": 4},
        ]
    )
    monkeypatch.setattr(on_gpu, "run", lambda part, limit: next(results))
    made_up, kept = [parts.Part("one", (), parts.read_json)], []
    for _ in range(5):
        on_gpu.measure(MACHINE, made_up, ("one",), tmp_path, 60, tmp_path / "none")
        document = json.loads((tmp_path / "NVIDIA-Made-Up.json").read_text())
        kept.append(document["parts"]["one"]["result"])
    assert kept == [1, 1, 1, 3, 4]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--programs", "0"), "'--programs': 0 is not in the range x>=1"),
        (("--programs", "few"), "'--programs': 'few' is not a valid integer"),
        (("--limit", "0"), "'--limit': 0.0 is not in the range x>=1"),
        (("--limit", "nan"), "'--limit': nan is not a number of seconds"),
        (("--out", "pyproject.toml"), "'pyproject.toml' is a file"),
        (("--bogus",), "--bogus"),
    ],
)
def test_wrong_options_are_told(
    on_gpu: Any, options: tuple[str, ...], words: str
) -> None:
    done = CliRunner().invoke(on_gpu.main, options)
    assert done.exit_code == 2 and words in done.output.replace("Directory ", "")


def test_a_part_that_there_is_not_is_told(
    on_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_gpu, "describe_machine", lambda: MACHINE)
    done = CliRunner().invoke(on_gpu.main, ["speeed"])
    assert done.exit_code == 2
    assert "no part begins with 'speeed'; there are conformance torch-cuda" in done.output


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("CUDA error: busy\nCompile with"), "CUDA error: busy"),
        (OSError("libcudart.so.13: no such file"), "libcudart.so.13: no such file"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_told_in_a_line(
    on_gpu: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    monkeypatch.setattr(on_gpu, "describe_machine", Mock(side_effect=error))
    done = CliRunner().invoke(on_gpu.main, [])
    assert done.exit_code == 2
    assert done.output == f"ci/gpu: {words}: not measured on a GPU\n"


@pytest.mark.parametrize(
    ("is_there", "words"),
    [
        (False, "there is no {}; name another in PYTHON"),
        (True, "{} is older than Python 3.11; name another in PYTHON"),
    ],
)
def test_a_python_that_is_of_no_use_is_told(
    tmp_path: Path, is_there: bool, words: str
) -> None:
    own = tmp_path / "python"
    if is_there:
        own.write_text("#!/bin/sh\nexit 1\n")
        own.chmod(0o755)
    done = subprocess.run(
        ["ci/gpu"],
        cwd=ROOT,
        env={**os.environ, "PYTHON": str(own)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (2, f"ci/gpu: {words.format(own)}\n")


def test_packages_that_cannot_be_installed_are_told(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    done = subprocess.run(
        ["ci/gpu"],
        cwd=ROOT,
        env={**os.environ, "PYTHON": str(bare), "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        f"ci/gpu: {bare} lacks: numpy hypothesis click rich jsonschema"
    )
    assert last.endswith("packaging, and pip cannot install them")


def test_parts_may_be_measured_one_after_the_other(
    on_gpu: Any, parts: Any, tmp_path: Path
) -> None:
    made_up = [
        parts.Part(name, python(WRITES), parts.read_json) for name in ("one a", "two")
    ]

    def run(machine: Any, *chosen: str) -> dict[str, str]:
        place = tmp_path, 60, tmp_path / "none"
        assert on_gpu.measure(machine, made_up, chosen, *place) == 0
        found = json.loads((tmp_path / "NVIDIA-Made-Up.json").read_text())["parts"]
        return {name: result["status"] for name, result in found.items()}

    assert run(MACHINE, "one") == {"one a": "passed", "two": "not measured"}
    assert run(MACHINE, "two") == {"one a": "passed", "two": "passed"}
    other = {**MACHINE, "driver": "1.3"}
    assert run(other, "two") == {"one a": "passed", "two": "passed"}
    found = json.loads((tmp_path / "NVIDIA-Made-Up.json").read_text())["parts"]
    drivers = [found[name]["machine"]["driver"] for name in ("one a", "two")]
    assert drivers == ["1.2", "1.3"]


def test_a_run_goes_on_where_it_stopped(
    on_gpu: Any, parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed or was not reached is measured; what has passed is once the sources or
    the machine are others, or if it is asked for."""
    code = "import pathlib; p = pathlib.Path(r'{}'); p.exists() or p.touch() or exit(1)"
    flag = tmp_path / "flag"
    made_up = [
        parts.Part("steady", python(WRITES), parts.read_json),
        parts.Part("late", python(WRITES + ";" + code.format(flag)), parts.read_json),
    ]
    ran: list[str] = []
    own = on_gpu.run
    monkeypatch.setattr(
        on_gpu, "run", lambda part, limit: ran.append(part.name) or own(part, limit)
    )

    def run(*chosen: str, machine: Any = MACHINE, **more: bool) -> tuple[int, list[str]]:
        ran.clear()
        place = tmp_path / "out", 60, tmp_path / "none"
        return on_gpu.measure(machine, made_up, chosen, *place, **more), [*ran]

    assert run() == (1, ["steady", "late"])
    assert run() == (0, ["late"])
    assert run() == (0, [])
    assert run("steady") == (0, ["steady"])
    assert run(again=True) == (0, ["steady", "late"])
    assert run(machine={**MACHINE, "driver": "1.3"}) == (0, ["steady", "late"])
    monkeypatch.setattr(on_gpu, "hash_sources", lambda: "others")
    assert run() == (0, ["steady", "late"])


def test_the_sources_are_told_apart_by_what_they_hold(
    on_gpu: Any, tmp_path: Path
) -> None:
    file = tmp_path / "impl" / "torch" / "x.py"
    file.parent.mkdir(parents=True)
    found = []
    for text in ("1", "2", "1"):
        file.write_text(text)
        found.append(on_gpu.hash_sources(tmp_path))
    assert found[0] == found[2] != found[1]


def test_failures_come_back_in_one_file(
    on_gpu: Any, parts: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Those of a part that runs again take the place of its earlier ones."""
    failures, out = tmp_path / "failures", tmp_path / "out"
    buggy = "tests.harness.misbehaving:shows_nan"
    command = (*parts.LOCKSTEP, "check", "--backend", buggy, "--programs", "5", "--json")
    command = (*command, "--failures", str(failures))
    made_up = [parts.Part(name, command, parts.read_checks) for name in ("a", "b")]
    for _ in range(2):
        assert on_gpu.measure(MACHINE, made_up, ("a", "b"), out, 60, failures) == 1
    with zipfile.ZipFile(out / "failures.zip") as archive:
        names = archive.namelist()
    assert len({*names}) == len(names)
    assert {name.split("/")[0] for name in names} == {"a", "b"}
    assert {path.name for path in out.iterdir()} == {
        "NVIDIA-Made-Up.json",
        "failures.zip",
    }
    replay = (*parts.LOCKSTEP, "replay", str(out / "failures.zip"), "--backend", buggy)
    done = subprocess.run(replay, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.count("FAILED") == 2, done


def test_the_file_of_failures_does_not_grow_without_bound(
    on_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shortest programs are kept."""
    monkeypatch.setattr(on_gpu, "MOST_PACKED", 1000)
    folder, archive = tmp_path / "failures", tmp_path / "failures.zip"
    (folder / "one").mkdir(parents=True)
    for size in (600, 100, 300, 400):
        (folder / "one" / f"{size}.json").write_text("x" * size)
    assert on_gpu.pack(folder, "part", archive) == 1
    with zipfile.ZipFile(archive) as packed:
        names = packed.namelist()
    assert names == [f"part/one/{size}.json" for size in (100, 300, 400)]
    assert not any(file.is_file() for file in folder.rglob("*"))


def test_what_is_missing_is_what_the_package_needs() -> None:
    """A bare machine lacks some of it: `ci/gpu` installs that beside the checkout."""
    (line,) = re.findall(r"^needs=\((.*)\)$", (ROOT / "ci" / "gpu").read_text(), re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert line.split() == [re.split("[>=<]", one)[0] for one in project["dependencies"]]
    assert line in (ROOT / "ci" / "README.md").read_text(), "fetched for other machines"


def test_the_numbers_of_the_documents_are_those_that_were_measured() -> None:
    file = ROOT / "ci/bench/results/NVIDIA-H100-80GB-HBM3.json"
    parts = json.loads(file.read_text())["parts"]
    seconds = [part["seconds"] for part in parts.values() if "seconds" in part]
    assert (len(seconds), round(sum(seconds) / 60), max(seconds) < 240) == (10, 10, True)
    kernels = parts["speed of kernels"]["result"]
    rows = {row["work"]: row["us"] for row in kernels["rows"]}
    whole, device = kernels["whole_step_us"] / 1e3, rows["step, layer by layer"]
    for name in ("impl/peers/README.md", "ci/README.md"):
        text = (ROOT / name).read_text()
        assert f"{whole:.1f} ms" in text and f"{device:.0f} µs" in text
    assert "took ten minutes together, none more than four" in text
    assert "not measured on a GPU" in text  # `steps` and the workers


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


def test_what_is_measured(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "find_mlx_gpu", lambda: "there is no mlx here")
    monkeypatch.setattr(parts, "find_spec", lambda name: True)
    monkeypatch.setattr(parts, "find_sanitizer", lambda: "/bin/compute-sanitizer")
    found = {part.name: part for part in parts.list_parts(7, Path("failed"))}
    both = {f"{what} {place}" for what in BOTH for place in ("torch-cuda", "mlx-gpu")}
    assert found.keys() == both | {
        "kernels",
        "sanitizer memcheck",
        "sanitizer initcheck",
        "sanitizer racecheck",
        "speed of kernels",
        "speed of caches",
    }
    lacks = {name for name, part in found.items() if part.lacks}
    assert lacks == {name for name in found if "mlx" in name}
    for name, part in found.items():
        words = " ".join(part.command)
        if name.startswith(("conformance", "faults")):
            assert "--step-time 120 " in f"{words} " and "--failures failed" in words
        if name.startswith("conformance"):
            assert "--programs 7" in words
        is_sanitizer = name.startswith("sanitizer")
        assert part.variables == (SANITIZED if is_sanitizer else {})


BOTH = ("conformance", "faults", "speed of checking")
SANITIZED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Otherwise a tool does not see an access to another array."""


def test_a_part_gets_its_variables(parts: Any) -> None:
    code = f"import os; print(os.environ[{next(iter(SANITIZED))!r}])"
    part = parts.Part("one", python(code), parts.read_json, None, SANITIZED)
    assert parts.run(part, 60)["result"] == 1


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


SANITIZE = """
import inspect, sanitize
from lockstep.impl.torch.kernels import Kernels

missing = {name for name, each in vars(Kernels).items() if inspect.isfunction(each)}

class Noting(sanitize.TritonKernels):
    def __getattribute__(self, name):
        missing.discard(name)
        return super().__getattribute__(name)

sanitize.TritonKernels = Noting
status = sanitize.main()
print([name for name in missing if name[0] != "_"])
raise SystemExit(status)
"""


def test_every_kernel_gives_the_same_over_odd_sizes() -> None:
    """The script for the sanitizer runs in the interpreter, and launches all."""
    pytest.importorskip("triton", "3.9", reason="needs Triton 3.9 to interpret kernels")
    paths = f"{ROOT / 'ci'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-c", SANITIZE],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": same") == 23
    assert done.stdout.splitlines()[-1] == "['place_fixed']"  # launches nothing
