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
SAVE = "open(r'{file}', 'w').write('{\"speed\": 7}')"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "ci")
    return import_module("on_gpu")


def make_part(gpu: Any, name: str, code: str, lacks: str | None = None) -> Any:
    return gpu.Part(name, (sys.executable, "-c", code), gpu.read_json, lacks)


def measure(gpu: Any, parts: Any, out: Path, *chosen: str, **more: Any) -> Any:
    """Returns the exit status, and the parts as the file has them."""
    given = {"machine": MACHINE, "limit": 4, "failures": out / "none", **more}
    status = gpu.measure(parts=parts, chosen=chosen, out=out, **given)
    return status, json.loads((out / "NVIDIA-Made-Up.json").read_text())["parts"]


def run_script(python: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["ci/gpu"],
        cwd=ROOT,
        env={**os.environ, "PYTHON": str(python), **variables},
        capture_output=True,
        text=True,
    )


def test_without_a_gpu_nothing_is_measured() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = run_script(sys.executable)
    message = "ci/gpu: torch finds no CUDA device here: not measured on a GPU\n"
    assert (done.returncode, done.stderr) == (2, message)


def test_packages_that_cannot_be_installed_are_named(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    assert run_script(bare).stderr == (
        f"ci/gpu: there is no {bare}; name another in PYTHON\n"
    )
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    done = run_script(bare, PIP_NO_INDEX="1")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2
    assert last.startswith(f"ci/gpu: {bare} lacks: numpy hypothesis click rich")
    assert last.endswith("packaging, and pip cannot install them")


def test_what_is_missing_is_what_the_package_needs() -> None:
    """A bare machine lacks some of it: `ci/gpu` installs that beside the checkout."""
    (line,) = re.findall(r"^needs=\((.*)\)$", (ROOT / "ci" / "gpu").read_text(), re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert line.split() == [re.split("[>=<]", one)[0] for one in project["dependencies"]]
    assert line in (ROOT / "ci" / "README.md").read_text(), "fetched for other machines"


def test_a_part_that_fails_stops_no_other(gpu: Any, tmp_path: Path) -> None:
    parts = [
        make_part(gpu, "first", SAVE),
        make_part(gpu, "broken", "import sys; sys.exit('that is why')"),
        make_part(gpu, "beyond", SAVE + "; raise SystemExit(1)"),
        make_part(gpu, "cut", SAVE + "; import time; time.sleep(60)"),
        gpu.Part("missing", ("/nowhere/at/all",), gpu.read_json),
        make_part(gpu, "absent", SAVE, "there is none here"),
        make_part(gpu, "printed", "print('[1]')"),
    ]
    status, results = measure(gpu, parts, tmp_path)
    assert status == 1
    assert {name: result["status"] for name, result in results.items()} == {
        **dict.fromkeys(("first", "printed"), "passed"),
        **dict.fromkeys(("broken", "beyond", "cut", "missing"), "failed"),
        "absent": "not measured",
    }
    assert all(result["machine"] == MACHINE for result in results.values())
    for name in ("first", "beyond", "cut"):  # written before the limit
        assert results[name]["result"] == {"speed": 7}
    assert results["printed"]["result"] == [1]
    assert results["broken"]["last_words"] == "that is why\n"
    assert results["cut"]["why"] == "it took more than 4 s"
    assert results["absent"]["why"] == "there is none here"
    assert not any("result" in results[name] for name in ("broken", "missing", "absent"))


def test_a_part_is_ended_with_all_that_it_has_started(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sanitizer leaves its process on the device, also one that ignores Ctrl-C."""
    monkeypatch.setattr(gpu, "GRACE", 0.5)
    pid = tmp_path / "pid"
    child = (
        "import os, pathlib, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        f" pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(600)"
    )
    start = f"subprocess.Popen([sys.executable, '-c', {child!r}])"
    wait = f"while not os.path.exists({str(pid)!r}): time.sleep(0.01)"
    code = f"import os, subprocess, sys, time; {start}\n{wait}\ntime.sleep(600)"
    result = gpu.run(make_part(gpu, "sanitizer", code), 10)
    assert (result["status"], result["why"]) == ("failed", "it took more than 10 s")
    status = Path(f"/proc/{pid.read_text()}/status")
    while status.exists() and "Z (zombie)" not in status.read_text():
        time.sleep(0.02)  # until the system has noticed


LISTENS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""As in a terminal: a process that `nohup` has started ignores SIGINT."""

STOPPED = """
import on_gpu, sys
def part(name, code):
    return on_gpu.Part(name, (sys.executable, "-c", code), on_gpu.read_json)
save = "open(r'{file}', 'w').write('[7]');"
wait = "import pathlib, time; pathlib.Path(FLAG).touch(); time.sleep(600)"
on_gpu.describe_machine = lambda: MACHINE
on_gpu.list_parts = lambda *given: [
    part("first", save), part("next", save + wait), part("last", save)
]
on_gpu.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, number: int) -> None:
    """That of the part that is running, too; the next run goes on there."""
    flag = tmp_path / "flag"
    code = STOPPED.replace("FLAG", repr(str(flag))).replace("MACHINE", repr(MACHINE))
    code = f"{LISTENS}\n{code}"
    paths = os.pathsep.join((str(ROOT / "ci"), os.environ.get("PYTHONPATH", "")))
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--out", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    )
    while not flag.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    printed, _ = process.communicate()
    assert process.returncode == 130 and "interrupted: it was interrupted" in printed
    results = json.loads((tmp_path / "NVIDIA-Made-Up.json").read_text())["parts"]
    status = {name: result["status"] for name, result in results.items()}
    assert status == {"first": "passed", "next": "interrupted", "last": "not measured"}
    assert results["next"]["result"] == [7]


def test_a_run_goes_on_where_it_stopped(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has passed is measured again once the sources or the machine are others, or if
    it is asked for."""
    once = f"import pathlib; p = pathlib.Path({str(tmp_path / 'flag')!r})"
    fails = f"{SAVE}; {once}; p.exists() or p.touch() or exit(1)"
    parts = [make_part(gpu, "steady", SAVE), make_part(gpu, "late", fails)]
    ran: list[str] = []
    run = gpu.run
    monkeypatch.setattr(
        gpu, "run", lambda part, limit: ran.append(part.name) or run(part, limit)
    )

    def go_on(*chosen: str, **more: Any) -> tuple[int, list[str]]:
        ran.clear()
        more["limit"] = 60
        return measure(gpu, parts, tmp_path / "out", *chosen, **more)[0], [*ran]

    assert go_on() == (1, ["steady", "late"])
    assert go_on() == (0, ["late"])
    assert go_on() == (0, [])
    assert go_on("steady") == (0, ["steady"])
    assert go_on(again=True) == (0, ["steady", "late"])
    assert go_on(machine={**MACHINE, "driver": "1.3"}) == (0, ["steady", "late"])
    monkeypatch.setattr(gpu, "hash_sources", lambda: "others")
    assert go_on() == (0, ["steady", "late"])


def test_less_does_not_replace_a_measurement(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a part that another machine cannot run, nor one that Ctrl-C has ended."""
    statuses = ("passed", "not measured", "interrupted", "failed", "interrupted")
    results = iter(
        {"status": status, "result": number} for number, status in enumerate(statuses)
    )
    monkeypatch.setattr(gpu, "run", lambda part, limit: next(results))
    parts = [make_part(gpu, "part", "")]
    kept = [measure(gpu, parts, tmp_path, "part")[1]["part"]["result"] for _ in statuses]
    assert kept == [0, 0, 0, 3, 4]


def test_sources_are_told_apart_by_their_text(gpu: Any, tmp_path: Path) -> None:
    file = tmp_path / "impl" / "torch" / "x.py"
    file.parent.mkdir(parents=True)
    digests = []
    for text in ("1", "2", "1"):
        file.write_text(text)
        digests.append(gpu.hash_sources(tmp_path))
    assert digests[0] == digests[2] != digests[1]


def test_failing_programs_come_back_in_one_file(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shortest of all parts; they replay."""
    failures, out = tmp_path / "failures", tmp_path / "out"
    buggy = "tests.harness.misbehaving:shows_nan"
    check = (*gpu.LOCKSTEP, "check", "--backend", buggy, "--programs", "5", "--json")
    parts = [
        gpu.Part(name, (*check, "--failures", str(failures / name)), gpu.read_checks)
        for name in ("a", "b")
    ]
    status, results = measure(gpu, parts, out, limit=600, failures=failures)
    assert status == 1 and results["a"]["result"][0]["failures"]
    archive = out / "failures.zip"
    with zipfile.ZipFile(archive) as packed:
        assert {name.split("/")[0] for name in packed.namelist()} == {"a", "b"}
    replay = (*gpu.LOCKSTEP, "replay", str(archive), "--backend", buggy)
    done = subprocess.run(replay, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.count("FAILED") == 2, done
    monkeypatch.setattr(gpu, "MAX_PACKED", 1000)
    for size in (600, 100, 300, 400):
        (tmp_path / f"{size}.json").write_text("x" * size)
    gpu.pack(tmp_path, archive)
    with zipfile.ZipFile(archive) as packed:
        assert packed.namelist() == [f"{size}.json" for size in (100, 300, 400)]


def test_what_lockstep_prints_is_read(gpu: Any) -> None:
    pytest.importorskip("torch")
    commands = {
        "check": "--backend torch-cpu --kind kv --programs 3",
        "faults": "--backend torch-cpu --fault paged-double-count --programs 1",
    }
    results = {}
    for verb, options in commands.items():
        command = (*gpu.LOCKSTEP, verb, *options.split(), "--jobs", "1", "--json")
        read = gpu.read_checks if verb == "check" else gpu.read_faults
        results[verb] = gpu.run(gpu.Part(verb, command, read), 600)["result"]
    (pair,) = results["check"]
    assert (pair["kind"], pair["programs"], pair["failures"]) == ("kv", 3, [])
    assert pair["steps"] > 3
    missed = {"faults": 1, "found": 0, "not_found": ["paged-double-count"]}
    assert results["faults"] == missed


def test_what_pytest_writes_is_read(gpu: Any, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_right(): pass\n"
        "def test_wrong(): assert 0\n"
        "def test_absent(): pytest.skip('no')\n"
    )
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", "{file}")
    command = (sys.executable, *options, str(tmp_path))
    result = gpu.run(gpu.Part("tests", command, gpu.read_tests), 600)
    assert result["status"] == "failed"
    counts = {"tests": 3, "failures": 1, "errors": 0, "skipped": 1}
    assert result["result"] == {**counts, "broken": ["test_wrong"]}


def test_each_part_has_its_command(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sanitizer is used where there is one, and its summary is kept."""
    monkeypatch.setattr(gpu, "find_mlx_gpu", lambda: "there is no mlx here")
    monkeypatch.setattr(gpu, "find_spec", lambda name: True)
    monkeypatch.setattr(gpu, "glob", lambda pattern: [str(tmp_path / "cuda")])
    monkeypatch.setenv("PATH", "")
    parts = {part.name: part for part in gpu.list_parts(7, Path("failed"))}
    on_both = ("conformance", "faults", "speed of checking")
    tools = ("memcheck", "initcheck", "racecheck")
    assert parts.keys() == {
        *(f"{name} {place}" for name in on_both for place in ("torch-cuda", "mlx-gpu")),
        *(f"sanitizer {tool}" for tool in tools),
        *("kernels", "speed of kernels", "speed of caches"),
    }
    lacks = {name: part.lacks for name, part in parts.items() if part.lacks}
    missing = {f"sanitizer {tool}" for tool in tools}
    assert lacks.keys() == missing | {name for name in parts if "mlx" in name}
    assert lacks["sanitizer memcheck"] == "compute-sanitizer: not found, not run"
    command = " ".join(parts["conformance torch-cuda"].command)
    assert "--step-time 120 --failures failed/conformance torch-cuda" in command
    assert command.endswith("--programs 7")
    tool = tmp_path / "cuda" / "bin" / "compute-sanitizer"
    tool.parent.mkdir(parents=True)
    lines = "print('put: same'); print('========= ERROR SUMMARY: 0 errors')"
    no_cache = "import os; assert os.environ['PYTORCH_NO_CUDA_MEMORY_CACHING'] == '1'"
    tool.write_text(f"#!{sys.executable}\n{no_cache}\n{lines}\n")
    tool.chmod(0o755)
    _, memcheck, _, _ = gpu.list_kernel_parts()
    assert memcheck.command[:3] == (str(tool), "--tool", "memcheck")
    summary = {"summary": "ERROR SUMMARY: 0 errors", "same": 1}
    assert gpu.run(memcheck, 600)["result"] == summary
    tool.write_text("#!/bin/sh\n")
    result = gpu.run(memcheck, 600)
    assert result["status"] == "failed" and "there is no summary" in result["why"]


def test_wrong_options_are_refused(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*options: str) -> str:
        done = CliRunner().invoke(gpu.main, options)
        assert done.exit_code == 2
        return str(done.output)

    assert "'--programs': 0 is not in the range x>=1" in fail("--programs", "0")
    assert "'--limit': nan is not a number of seconds" in fail("--limit", "nan")
    monkeypatch.setattr(gpu, "describe_machine", lambda: MACHINE)
    assert "no part begins with 'speeed'; there are conformance" in fail("speeed")
    busy = Mock(side_effect=RuntimeError("CUDA error: busy\nCompile with"))
    monkeypatch.setattr(gpu, "describe_machine", busy)
    assert fail() == "ci/gpu: CUDA error: busy: not measured on a GPU\n"


def test_the_numbers_of_the_documents_are_those_that_were_measured() -> None:
    file = ROOT / "ci/bench/results/NVIDIA-H100-80GB-HBM3.json"
    parts = json.loads(file.read_text())["parts"]
    seconds = [part["seconds"] for part in parts.values() if "seconds" in part]
    assert (len(seconds), round(sum(seconds) / 60), max(seconds) < 240) == (10, 10, True)
    kernels = parts["speed of kernels"]["result"]
    rows = {row["work"]: row["us"] for row in kernels["rows"]}
    whole, device = kernels["whole_step_us"] / 1e3, rows["step, layer by layer"]
    text = (ROOT / "ci/README.md").read_text()
    assert f"{whole:.1f} ms" in text and f"{device:.0f} µs" in text
    assert "took ten minutes together, none more than four" in text


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
