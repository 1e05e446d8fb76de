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
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from ci import on_gpu
from ci.on_gpu import Part, read_json

ROOT = Path(__file__).resolve().parents[2]
MACHINE = {"device": "NVIDIA Made Up", "driver": "1.2", "packages": {"torch": "9"}}
SAVE = "open(r'{file}', 'w').write('{\"speed\": 7}')"


def make_part(name: str, code: str, lacks: str | None = None) -> Part:
    return Part(name, (sys.executable, "-c", code), read_json, lacks)


def measure(parts: Any, out: Path, *chosen: str, machine: Any = MACHINE) -> Any:
    """Returns the exit status, and the parts as the file has them."""
    status = on_gpu.measure(machine, parts, chosen, out, 4, out / "none")
    return status, json.loads((out / "NVIDIA-Made-Up.json").read_text())["parts"]


def run_script(python: object, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": str(python), **variables}
    return subprocess.run(
        ["ci/gpu"], cwd=ROOT, env=environment, capture_output=True, text=True
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
    missing = f"ci/gpu: there is no {bare}; name another in PYTHON\n"
    assert run_script(bare).stderr == missing
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


def test_a_part_that_fails_stops_no_other(tmp_path: Path) -> None:
    parts = [
        make_part("first", SAVE),
        make_part("broken", "import sys; sys.exit('that is why')"),
        make_part("beyond", SAVE + "; raise SystemExit(1)"),
        make_part("cut", SAVE + "; import time; time.sleep(60)"),
        make_part("absent", SAVE, "there is none here"),
        make_part("printed", "print('[1]')"),
    ]
    status, results = measure(parts, tmp_path)
    assert status == 1
    assert {name: result["status"] for name, result in results.items()} == {
        **dict.fromkeys(("first", "printed"), "passed"),
        **dict.fromkeys(("broken", "beyond", "cut"), "failed"),
        "absent": "not measured",
    }
    assert all(result["machine"] == MACHINE for result in results.values())
    for name in ("first", "beyond", "cut"):  # written before the limit
        assert results[name]["result"] == {"speed": 7}
    assert results["printed"]["result"] == [1]
    assert results["broken"]["last_words"] == "that is why\n"
    assert results["cut"]["why"] == "it took more than 4 s"
    assert results["absent"]["why"] == "there is none here"
    assert not any("result" in results[name] for name in ("broken", "absent"))


def test_a_part_is_ended_with_all_that_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sanitizer leaves its process on the device, also one that ignores Ctrl-C."""
    monkeypatch.setattr(on_gpu, "GRACE", 0.2)
    pid = tmp_path / "pid"
    code = f"trap '' INT; sleep 600 & echo $! > {pid}; trap - INT; wait"
    process = subprocess.Popen(["bash", "-c", code], start_new_session=True)
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.01)
    assert on_gpu.wait(process, 0.1) is None
    status = Path(f"/proc/{pid.read_text().strip()}/status")
    while status.exists() and "Z (zombie)" not in status.read_text():
        time.sleep(0.02)  # until the system has noticed


STOPPED = """
import sys
from ci import on_gpu
def part(name, code):
    return on_gpu.Part(name, (sys.executable, "-c", code), on_gpu.read_json)
save = "open(r'{file}', 'w').write('[7]');"
wait = "import pathlib, time; pathlib.Path(FLAG).touch(); time.sleep(600)"
on_gpu.describe_machine = lambda: MACHINE
on_gpu.list_parts = lambda *given: [part("first", save), part("next", save + wait)]
on_gpu.main()
"""


def test_a_signal_keeps_what_was_measured(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    code = STOPPED.replace("FLAG", repr(str(flag))).replace("MACHINE", repr(MACHINE))
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--out", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    while not flag.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 130
    parts = json.loads((tmp_path / "NVIDIA-Made-Up.json").read_text())["parts"]
    status = {name: result["status"] for name, result in parts.items()}
    assert status == {"first": "passed", "next": "not measured"}


def test_a_run_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has passed is measured again once the sources or the machine are others, or if
    it is named. What a machine cannot measure replaces nothing."""
    status = {"steady": "passed", "late": "failed"}
    ran: list[str] = []

    def run(part: Part, limit: float) -> dict[str, Any]:
        ran.append(part.name)
        return {"status": status[part.name], "result": len(ran)}

    monkeypatch.setattr(on_gpu, "run", run)
    parts = [make_part("steady", ""), make_part("late", "")]

    def go_on(*chosen: str, **more: Any) -> tuple[int, list[str]]:
        ran.clear()
        return measure(parts, tmp_path, *chosen, **more)[0], [*ran]

    assert go_on() == (1, ["steady", "late"])
    status["late"] = "passed"
    assert go_on() == (0, ["late"])
    assert go_on() == (0, [])
    assert go_on("steady") == (0, ["steady"])
    assert go_on(machine={**MACHINE, "driver": "1.3"}) == (0, ["steady", "late"])
    monkeypatch.setattr(on_gpu, "hash_sources", lambda: "others")
    assert go_on() == (0, ["steady", "late"])
    status["late"] = "not measured"
    assert measure(parts, tmp_path, "late")[1]["late"]["status"] == "passed"


def test_the_shortest_failing_programs_come_back_in_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_gpu, "MAX_PACKED", 1000)
    (tmp_path / "part").mkdir()
    for size in (600, 100, 300, 400):
        (tmp_path / "part" / f"{size}.json").write_text("x" * size)
    on_gpu.pack(tmp_path, tmp_path / "failures.zip")
    with zipfile.ZipFile(tmp_path / "failures.zip") as packed:
        assert packed.namelist() == [f"part/{size}.json" for size in (100, 300, 400)]


def test_what_lockstep_prints_is_read() -> None:
    pytest.importorskip("torch")
    commands = {
        "check": "--backend torch-cpu --kind kv --programs 3",
        "faults": "--backend torch-cpu --fault paged-double-count --programs 1",
    }
    results = {}
    for verb, options in commands.items():
        command = (*on_gpu.LOCKSTEP, verb, *options.split(), "--jobs", "1", "--json")
        read = on_gpu.read_checks if verb == "check" else on_gpu.read_faults
        results[verb] = on_gpu.run(Part(verb, command, read), 600)["result"]
    (pair,) = results["check"]
    assert (pair["kind"], pair["programs"], pair["failures"]) == ("kv", 3, [])
    assert pair["steps"] > 3
    missed = {"faults": 1, "found": 0, "not_found": ["paged-double-count"]}
    assert results["faults"] == missed


JUNIT = """<testsuites><testsuite tests="3" failures="1" errors="0" skipped="1">
<testcase name="test_right"/><testcase name="test_wrong"><failure/></testcase>
<testcase name="test_absent"><skipped/></testcase></testsuite></testsuites>"""


def test_what_pytest_writes_is_read(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT)
    counts = {"tests": 3, "failures": 1, "errors": 0, "skipped": 1}
    wanted = {**counts, "broken": ["test_wrong"]}
    assert on_gpu.read_tests(tmp_path / "junit.xml") == wanted


def test_each_part_has_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sanitizer is used where there is one, and its summary is kept."""
    monkeypatch.setattr(on_gpu, "find_spec", lambda name: name != "mlx")
    monkeypatch.setattr(on_gpu, "glob", lambda pattern: [str(tmp_path / "cuda")])
    monkeypatch.setenv("PATH", "")
    parts = {part.name: part for part in on_gpu.list_parts(7, Path("failed"))}
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
    _, memcheck, _, _ = on_gpu.list_kernel_parts()
    assert memcheck.command[:3] == (str(tool), "--tool", "memcheck")
    summary = {"summary": "ERROR SUMMARY: 0 errors", "same": 1}
    assert on_gpu.run(memcheck, 600)["result"] == summary
    tool.write_text("#!/bin/sh\n")
    result = on_gpu.run(memcheck, 600)
    assert result["status"] == "failed" and "there is no summary" in result["why"]


def test_wrong_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*options: str) -> str:
        done = CliRunner().invoke(on_gpu.main, options)
        assert done.exit_code == 2
        return str(done.output)

    assert "'--limit': nan is not a number of seconds" in fail("--limit", "nan")
    monkeypatch.setattr(on_gpu, "describe_machine", lambda: MACHINE)
    assert "no part begins with 'speeed'; there are conformance" in fail("speeed")
    busy = Mock(side_effect=RuntimeError("CUDA error: busy\nCompile with"))
    monkeypatch.setattr(on_gpu, "describe_machine", busy)
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
import inspect
from ci import sanitize
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
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SANITIZE]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": same") == 23
    assert done.stdout.splitlines()[-1] == "['place_fixed']"  # launches nothing


def test_sources_are_told_apart_by_their_text(tmp_path: Path) -> None:
    file = tmp_path / "impl" / "torch" / "x.py"
    file.parent.mkdir(parents=True)
    digests = []
    for text in ("1", "2", "1"):
        file.write_text(text)
        digests.append(on_gpu.hash_sources(tmp_path))
    assert digests[0] == digests[2] != digests[1]
