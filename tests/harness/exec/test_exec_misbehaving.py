"""Drivers that misbehave: each is reported in words, in time, and fills no memory."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.backend import Duty
from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.backends.driver.process import Process
from lockstep.harness.core.errors import Broken, Unloadable, UsageError
from lockstep.harness.execution.executor import run as run_program
from lockstep.harness.programs.program import Divergence, load_programs
from lockstep.harness.workers.registry import load
from tests.harness.building import SMALL, make, update
from tests.harness.commands import Run
from tests.harness.exec.driver import HELLOS

HERE = Path(__file__).parent
LIMITS = Limits(message_seconds=1.0, line_bytes=1 << 20)
MOST_SECONDS = 60.0
MOST_BYTES = 40 << 20
SHOWN = 100
"""Letters of a message; what follows are words of the driver, or hints."""


def name_driver(way: str, *more: str) -> str:
    """-S -E: without site-packages, an interpreter is up in a tenth of the time."""
    return " ".join([f"exec:{sys.executable} -S -E {HERE / 'driver.py'}", way, *more])


@contextmanager
def bounded() -> Iterator[None]:
    """Asserts that its body is over soon and takes little memory."""
    begun, before = time.monotonic(), get_most_memory()
    yield
    assert time.monotonic() - begun < MOST_SECONDS
    assert get_most_memory() - before < MOST_BYTES


def get_most_memory() -> int:
    """The largest that this process has been, in bytes."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size << 10


def run_third_token(way: str, limits: Limits = LIMITS) -> Divergence | None:
    """A program at whose second step the driver misbehaves, if it does."""
    program = make(update(2), update(1), **SMALL)
    return run_program(program, load(name_driver(way), limits)).divergence


BLAMED = (
    *("silent", "half-a-line", "complaining", "dead-in-a-line", "segfault", "exit-0"),
    *("exit-1", "closed", "100-megabytes", "endless", "twice", "not-utf-8", "not-json"),
    *("not-an-object", "deep", "nan", "wrong-offset", "no-mask", "mask-in-words"),
    *("wrong-order", "unknown-error", "fails", "unwritten"),
)


@pytest.mark.parametrize("way", BLAMED)
def test_misbehaviour_is_said_in_words(way: str, snapshot: Any) -> None:
    with bounded():
        divergence = run_third_token(way)
    assert divergence is not None and divergence.step == 1
    assert f"{divergence.what}: {divergence.message[:SHOWN]}" == snapshot
    assert divergence.message.isprintable()
    assert len(divergence.message) < 700


AFTER = {"exit-after": "crash", "exit-soon-after": "crash", "silent-after": "hang"}


@pytest.mark.parametrize("more", [[], [{"op": "size"}], [update(1)]])
@pytest.mark.parametrize(("way", "what"), AFTER.items())
def test_after_an_answer_the_step_that_was_answered_is_to_blame(
    way: str, what: str, more: list[Any]
) -> None:
    """Not the next step, nor the next program."""
    program = make(update(2), update(1), *more, **SMALL)
    backend = load(name_driver(way), LIMITS)
    divergence = run_program(program, backend).divergence
    assert divergence is not None
    at = divergence.what, divergence.step, divergence.operation
    assert at == (what, 1, "update")
    assert "its answer to 'update' (message 6)" in divergence.message
    assert run_program(make(update(2)), backend).divergence is None


def test_a_line_that_was_not_asked_for_belongs_to_the_step_before() -> None:
    program = make(update(2), update(1), {"op": "size"}, **SMALL)
    backend = load(name_driver("more-after"), LIMITS)
    slow = replace(backend, follow=lambda over: (time.sleep(0.2), backend.follow(over)))
    divergence = run_program(program, slow).divergence
    assert divergence is not None
    assert (divergence.what, divergence.step) == ("malformed", 1)
    assert "wrote more after its answer to 'update' (message 6): hm" in divergence.message


def test_the_first_and_the_last_words_of_a_driver_are_shown() -> None:
    divergence = run_third_token("panic")
    assert divergence is not None
    assert "; its last words: panic: index out of range goroutine 1" in divergence.message
    assert divergence.message.endswith(" goroutine 1 exit status 2")


def test_the_driver_that_behaves_agrees() -> None:
    assert run_third_token("well") is None
    assert run_third_token("slow", Limits()) is None
    assert run_third_token("mask-of-one-axis") is None
    assert run_third_token("well", Limits(strict=True)) is None


def test_strict_messages_have_nothing_to_spare() -> None:
    """A field that nobody knows is only told by the schemas."""
    assert run_third_token("talkative") is None
    divergence = run_third_token("talkative", Limits(strict=True))
    assert divergence is not None and divergence.what == "malformed"
    words = 'the answer has the unknown field "mood"; did you mean'
    assert words in divergence.message


def test_after_it_has_hung_once_it_gets_less_time() -> None:
    backend = load(name_driver("silent"), Limits(message_seconds=1.5))
    for seconds in ("1.5 s", "1 s"):
        divergence = run_program(make(update(3)), backend).divergence
        assert divergence is not None and f"within {seconds}" in divergence.message


def test_a_driver_that_died_is_started_again(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    backend = load(name_driver("segfault", str(pids)), LIMITS)
    for _ in range(2):
        assert run_program(make(update(2)), backend).divergence is None
        assert run_program(make(update(3)), backend).divergence is not None
    assert len(set(pids.read_text().split())) == 2


@pytest.mark.parametrize("way", sorted({*HELLOS} - {"hello-duty", "hello-lies"}))
def test_a_declaration_that_is_wrong(way: str, snapshot: Any) -> None:
    seconds = 1.0 if way == "hello-silent" else 60.0
    with bounded(), pytest.raises(Unloadable) as caught:
        load(name_driver(way), Limits(start_seconds=seconds))
    said = str(caught.value)
    assert said.isprintable()
    assert said[:SHOWN] == snapshot


def test_a_duty_is_declared() -> None:
    """No program breaks it, and reports list it."""
    declared = load(name_driver("hello-duty"), LIMITS).contracts["layer"]["kv"]
    assert declared.duties == (Duty({"op": "trim"}, "no trim"),)


def test_a_kind_that_is_declared_and_not_there() -> None:
    """The driver dies of the first operation that it does not know."""
    backend = load(name_driver("hello-lies"), LIMITS)
    program = make({"op": "clone", "into": "b"}, **SMALL)
    divergence = run_program(program, backend).divergence
    assert divergence is not None and divergence.what == "crash"
    assert "at 'clone'" in divergence.message
    assert "has no attribute 'clone'" in divergence.message


COMMANDS = [
    ("exec:", "no program is named; write exec:./my-driver"),
    ("exec:'./x", "no closing quotation"),
    ("exec:./there-is-none", "./there-is-none is neither in the current folder"),
    ("exec:tests", "tests is a folder; name a program in it"),
    ("exec:README.md --x", "README.md cannot be executed; chmod +x README.md, or"),
]


@pytest.mark.parametrize(("name", "words"), COMMANDS)
def test_a_command_that_is_none(name: str, words: str) -> None:
    with pytest.raises(UsageError, match="--backend exec:") as caught:
        load(name)
    assert words in str(caught.value)


def test_what_cannot_be_started(tmp_path: Path) -> None:
    """It may be executed, but it is no program."""
    path = tmp_path / "driver"
    path.write_bytes(b"\x7fELF and nothing else")
    path.chmod(0o755)
    with pytest.raises(Unloadable, match="cannot be started: Exec format error"):
        load(f"exec:{path}")


def exchange(command: str, request: bytes = b"{}\n") -> str:
    """Returns the refusal of a shell that gets a message."""
    process = Process(["sh", "-c", command], line_bytes=1 << 20)
    seconds = 1.0 if "exec sleep" in command else 60.0
    try:
        with bounded(), pytest.raises(Broken) as caught:
            process.exchange(request, "'it'", seconds)
    finally:
        process.stop()
    return str(caught.value)


def test_a_driver_that_does_not_read() -> None:
    """The message is larger than a pipe."""
    words = exchange("exec sleep 600", b"x" * (1 << 20))
    assert words == "did not read 'it' within 1 s"


def test_a_driver_that_has_ended_though_its_child_has_not() -> None:
    words = exchange("sleep 5 & exit 3")
    assert words == "ended with exit status 3 at 'it'"


# --- the whole way ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "what"),
    [
        ("segfault", "crash"),
        ("silent", "hang"),
        ("silent-after", "hang"),
    ],
)
def test_the_program_to_blame_is_kept_and_replays(run: Run, way: str, what: str) -> None:
    backend, time = name_driver(way), ("--step-time", 2)
    checked = run("check", "--backend", backend, "--programs", 12, *time)
    assert checked.status == 1
    assert "Traceback" not in checked.text
    assert f"layer-kv-update-{what}" in checked.out
    assert "✗ diverges" in checked.out and "✓" not in checked.out
    (path,) = Path("failures").glob("*/*.json")
    (program,) = load_programs(path)
    assert program.to_json()["ops"] == [update(3)]
    again = run("replay", path, "--backend", backend, *time)
    assert (again.status, again.out[:6]) == (1, "FAILED")
    fixed = run("replay", path, "--backend", name_driver("well"))
    assert (fixed.status, fixed.out[:5]) == (0, "FIXED")


def test_a_file_that_names_a_driver_does_not_start_it(run: Run, tmp_path: Path) -> None:
    """A failure is data: only --backend starts a program."""
    pids, file = tmp_path / "pids", tmp_path / "failure.json"
    meta = {"backend": name_driver("well", str(pids))}
    file.write_text(json.dumps({**make(update(3)).to_json(), "meta": meta}))
    for command in ("replay", "shrink"):
        ended = run(command, file)
        assert ended.status == 2
        assert "names no registered backend (it names exec:" in ended.words
    assert not pids.exists()
