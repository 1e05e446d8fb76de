"""Processes that are killed or interrupted: what was running, and what was found, is
still there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.programs.program import Program, load_programs, trace
from lockstep.harness.workers.messages import Declare
from lockstep.harness.workers.pool import Pool
from tests.harness.commands import (
    CORRECT,
    HERE,
    ROOT,
    START,
    Run,
    begin,
    find_processes,
    handling_ctrl_c,
    interrupt_behind,
)
from tests.harness.misbehaving import DAEMON_SECONDS, PID_FILE

STILL, SLOW, HANGS = (f"{HERE}:{n}" for n in ("stands_still", "wrong_and_slow", "hangs"))

Check = Callable[..., subprocess.Popen[str]]


def wait_for(condition: Callable[[], Any], seconds: float = 600) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)
    return value


def read_pid(path: Path) -> int:
    """A driver that is started again writes another line."""
    return int(wait_for(lambda: path.exists() and path.read_text().split())[0])


def name_driver(folder: Path) -> str:
    """A driver that hangs in a step, and does not see its input end."""
    file = Path(__file__).parent / "exec" / "driver.py"
    return f"exec:{sys.executable} {file} silent {folder / 'pid'}"


def find_running(folder: Path) -> dict[str, Any] | None:
    """The program in the one record, if one is running. The worker may be writing it."""
    for path in folder.glob("running/*.json"):
        with suppress(ValueError):
            return json.loads(path.read_bytes()) or None
    return None


@pytest.fixture
def check(tmp_path: Path) -> Iterator[Check]:
    """`lockstep check` in the background, with its failures in `tmp_path`/f."""
    with ExitStack() as stack:

        def check(backend: str, *more: object) -> subprocess.Popen[str]:
            more = ("--kind", "kv", "--jobs", 1, "--failures", tmp_path / "f", *more)
            pid_file = {PID_FILE: str(tmp_path / "pid")}
            process = begin("check", "--backend", backend, *more, **pid_file)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield check


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=600)
    assert "Traceback" not in out + err
    return process.returncode, " ".join((out + err).split())


def is_third_token_first_in(program: Program, step: int) -> bool:
    """Whether the cache has a third token after this step, and had none before."""
    offsets = [answer.get("offset", 0) for answer in trace(program)[: step + 1]]
    return offsets[-1] > 2 >= max(offsets[:-1], default=0)


def test_killed_workers_leave_programs(check: Check, run: Run, tmp_path: Path) -> None:
    process = check(STILL, "--programs", 20)
    os.kill(read_pid(tmp_path / "pid"), signal.SIGKILL)
    status, words = end(process)
    assert status == 1
    assert "the process was ended by SIGKILL" in words
    assert "layer-kv-update-crash" in words
    (path,) = (tmp_path / "f").rglob("layer-*/*.json")
    (program,) = load_programs(path)
    assert is_third_token_first_in(program, len(program.ops) - 1)
    assert program.meta["step"] == len(program.ops) - 1
    assert "flaky: failed once, then agreed once" in words  # alone it ends nothing
    ended = run("replay", path, "--backend", STILL)
    assert (ended.status, ended.out[:5]) == (1, "FLAKY")


def test_when_all_are_killed_the_record_is_still_a_program(
    check: Check, run: Run, tmp_path: Path
) -> None:
    process = check(STILL, "--programs", 20)
    pid = read_pid(tmp_path / "pid")
    process.kill()
    os.kill(pid, signal.SIGKILL)
    process.wait()
    (path,) = (tmp_path / "f" / "running").iterdir()
    (program,) = load_programs(path)
    assert is_third_token_first_in(program, program.meta["step"])
    ended = run("replay", tmp_path / "f", "--backend", STILL)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith(f"AGREES {STILL} {path}")


def test_workers_end_with_the_command(check: Check, tmp_path: Path) -> None:
    """A worker that ends removes its record."""
    process = check(CORRECT, "--programs", 100_000)
    wait_for(lambda: find_running(tmp_path / "f"))
    process.kill()
    process.wait()
    wait_for(lambda: not any((tmp_path / "f" / "running").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc")
@pytest.mark.parametrize(
    "name",
    [
        "hangs_while_loaded",
        "holds_while_loaded",
        "hangs_in_a_step",
        "holds_in_a_step",
        "leaves_a_child",
        "a driver",
    ],
)
def test_no_process_outlives_the_command(check: Check, tmp_path: Path, name: str) -> None:
    """Whatever the backend does, and whatever it has left behind."""
    backend = name_driver(tmp_path) if name == "a driver" else f"{HERE}:{name}"
    process = check(backend, "--programs", 20, "--step-time", 60)
    read_pid(tmp_path / "pid")
    assert len(find_processes(str(tmp_path))) >= 3  # the command, a guard and a worker
    process.kill()
    process.wait()
    wait_for(lambda: not find_processes(str(tmp_path)))


def find_daemons(seconds: str) -> list[int]:
    """The processes `sleep SECONDS`."""
    sleeps = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes() == f"sleep\0{seconds}\0".encode():
                sleeps.append(int(path.parent.name))
    return sleeps


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The seconds that a daemon sleeps, a number that no other process has."""
    seconds = f"3600.{os.getpid()}{time.monotonic_ns()}"
    monkeypatch.setenv(DAEMON_SECONDS, seconds)
    yield seconds
    for pid in find_daemons(seconds):
        os.kill(pid, signal.SIGKILL)


NO_PROC = pytest.mark.skipif(sys.platform != "linux", reason="macOS adopts no orphans")


@NO_PROC
@pytest.mark.parametrize("name", ["agrees", "dies"])
def test_processes_in_another_session_end_with_their_worker(
    check: Check, tmp_path: Path, daemon: str, name: str
) -> None:
    """Also those without a parent and without an environment."""
    process = check(f"{HERE}:leaves_a_daemon_and_{name}", "--programs", 2)
    status, words = end(process)
    assert read_pid(tmp_path / "pid")
    assert (status, "exit status 3" in words) == ((0, False), (1, True))[name == "dies"]
    assert find_daemons(daemon) == []


@NO_PROC
def test_processes_in_another_session_end_with_a_killed_command(
    check: Check, tmp_path: Path, daemon: str
) -> None:
    process = check(f"{HERE}:leaves_a_daemon", "--programs", 20, "--step-time", 60)
    read_pid(tmp_path / "pid")
    wait_for(lambda: find_daemons(daemon), 60)
    process.kill()
    process.wait()
    wait_for(lambda: not find_daemons(daemon), 60)
    wait_for(lambda: not find_processes(str(tmp_path)), 60)


STARTS = """
import os, subprocess, sys
from tests.harness.misbehaving import start_daemon

def run(prog_name):
    start_daemon()
    os.kill(os.getpid(), int(sys.argv[1]))

import lockstep.harness.cli.main
lockstep.harness.cli.main.main = run
from lockstep.harness.__main__ import main
main()
"""


@NO_PROC
def test_processes_of_a_build_end_with_the_command(tmp_path: Path, daemon: str) -> None:
    """And what a killed guard has left. Processes of before are spared."""
    before = subprocess.Popen(["sleep", daemon])
    command = [sys.executable, "-c", STARTS, str(int(signal.SIGCONT))]
    pid_file = {PID_FILE: str(tmp_path / "pid")}
    subprocess.run(command, cwd=ROOT, env={**os.environ, **pid_file}, timeout=60)
    assert read_pid(tmp_path / "pid")
    assert find_daemons(daemon) == [before.pid]
    before.kill()
    before.wait()


def test_a_guard_that_is_killed_is_noticed(check: Check, tmp_path: Path) -> None:
    """Although the worker below it still runs. Its program is run again, and hangs."""
    process = check(f"{HERE}:holds_in_a_step", "--programs", 20, "--step-time", 1)
    pid = read_pid(tmp_path / "pid")
    os.kill(get_parent(pid), signal.SIGKILL)
    status, words = end(process)
    assert (status, "ended by SIGKILL" in words) == (1, True)
    assert find_processes(str(tmp_path)) == set()


@pytest.mark.parametrize(
    ("is_worker", "number"),
    [
        (True, signal.SIGKILL),
        (False, signal.SIGKILL),
        (False, signal.SIGINT),
        (False, signal.SIGTERM),
    ],
)
def test_a_driver_ends_with_its_worker_and_with_the_command(
    check: Check, tmp_path: Path, is_worker: bool, number: int
) -> None:
    """Even a driver that hangs, and does not see its input end."""
    process = check(name_driver(tmp_path), "--programs", 20, "--step-time", 60)
    driver = read_pid(tmp_path / "pid")
    os.kill(get_parent(driver) if is_worker else process.pid, number)
    wait_for(lambda: driver not in find_processes(str(tmp_path)))


def get_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_other_signals_end_a_check_as_ctrl_c_does(
    check: Check, tmp_path: Path, number: int, expected: int
) -> None:
    process = check(CORRECT, "--programs", 100_000)
    wait_for(lambda: find_running(tmp_path / "f"))
    process.send_signal(number)
    status, words = end(process)
    assert (status, "(stopped before the end)" in words) == (expected, True)
    outcome = json.loads((tmp_path / "f" / "outcome.json").read_text())
    assert (outcome["complete"], outcome["exit_status"]) == (False, expected)


def test_the_cursor_comes_back(tmp_path: Path) -> None:
    """On a terminal, when a signal ends the check."""
    master, slave = os.openpty()
    more = ("--programs", 100_000, "--failures", tmp_path / "f")
    terminal = {"stdin": slave, "stdout": slave, "stderr": slave}
    process = begin_on("check", "--backend", CORRECT, *more, **terminal)
    os.close(slave)
    seen = b""
    while b"\x1b[?25l" not in seen:
        seen += os.read(master, 65536)
    process.send_signal(signal.SIGTERM)
    with suppress(OSError):  # that is how it ends
        while part := os.read(master, 65536):
            seen += part
    os.close(master)
    assert process.wait(600) == 143
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l")


def begin_on(*arguments: object, **streams: int) -> subprocess.Popen[bytes]:
    """`lockstep` in the background, on a terminal."""
    return subprocess.Popen(
        [sys.executable, "-c", START, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm-256color"},
        **streams,
    )


def test_ctrl_c_keeps_and_shows_what_was_found(check: Check, tmp_path: Path) -> None:
    process = check(SLOW, "--programs", 100_000)
    wait_for(lambda: list((tmp_path / "f").glob("layer-*/*.json")))
    time.sleep(0.3)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    status, words = end(process)
    assert time.monotonic() - started < 60
    assert status == 1
    assert "✗ diverges" in words
    assert "stopped before the end" in words
    outcome = tmp_path / "f" / "outcome.json"
    assert json.loads(outcome.read_text())["complete"] is False
    files = {path for path in (tmp_path / "f").rglob("*") if path.is_file()}
    (kept,) = files - {outcome}
    assert f"lockstep replay {kept}" in words


@pytest.mark.parametrize("is_up", [False, True], ids=["while it starts", "while it runs"])
def test_ctrl_c_ends_a_check_at_once(check: Check, tmp_path: Path, is_up: bool) -> None:
    """Of a framework that takes seconds to import; what was done is shown."""
    pytest.importorskip("torch")
    running = tmp_path / "f" / "running"
    process = check("torch-cpu", "--programs", 100_000)
    wait_for(lambda: find_running(tmp_path / "f") if is_up else running.exists())
    if is_up:
        time.sleep(1.0)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    status, words = end(process)
    assert time.monotonic() - started < 60
    assert status == 130
    assert "(stopped before the end)" in words
    assert "\x1b" not in words
    if is_up:
        assert re.search(r"torch-cpu × kv +[1-9]\d* +[1-9]", words)
        assert re.search(r"torch-cpu +… [1-9]", words)
        outcome = json.loads((tmp_path / "f" / "outcome.json").read_text())
        assert outcome["complete"] is False
    assert not running.exists()


INTERRUPTED = """
import signal, sys

class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == sys.argv[-1]:
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder)
from lockstep.harness.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["lockstep.harness.cli.main", "click"])
def test_ctrl_c_while_the_command_is_imported(module: str) -> None:
    """Which takes a second: no traceback then."""
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "backends", module],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (ended.returncode, ended.stderr) == (130, "lockstep: stopped\n")


@pytest.mark.parametrize("where", ["folder", "worker"])
def test_ctrl_c_while_a_worker_starts_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    done: list[Any] = []
    if where == "folder":
        monkeypatch.setattr(Path, "mkdir", interrupt_behind(Path.mkdir, done))
    else:
        start = interrupt_behind(subprocess.Popen, done)
        monkeypatch.setattr(subprocess, "Popen", start)
    try:
        with (
            handling_ctrl_c(),
            pytest.raises(KeyboardInterrupt),
            Pool(1, tmp_path / "f" / "running") as pool,
        ):
            pool.call(Declare("none"))
    finally:
        left = [one for one in done if one and one.poll() is None]
        for one in left:
            one.kill()
    assert done and not left and not (tmp_path / "f").exists()
