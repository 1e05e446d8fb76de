"""Messages between a job and its workers: whatever a worker sends, the job goes on."""

from __future__ import annotations

import json
import math
import re
import struct
from collections import deque
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.recording.picture import Bounds, Step
from lockstep.harness.programs.program import Divergence
from lockstep.harness.workers import channel
from lockstep.harness.workers.channel import MAGIC, make_channel
from lockstep.harness.workers.messages import (
    Agreed,
    Answer,
    Clustered,
    Counts,
    Declare,
    Declared,
    Died,
    Event,
    ExhaustiveTask,
    Found,
    OfGroup,
    Progress,
    Ran,
    RandomTask,
    Recorded,
    RecordProgram,
    Refused,
    RunProgram,
    Shown,
    SliceDone,
    Task,
    decode_event,
    encode,
    unfold,
)
from lockstep.harness.workers.pool import Pool, get_running
from lockstep.harness.workers.worker import TASKS, decode_task
from tests.harness.building import SMALL, make, update
from tests.harness.commands import CORRECT

PROGRAM = make(update(2), **SMALL).to_json()
DIVERGENCE = Divergence("mask", 0, "update", "m", {"offset": 2}, {"offset": 10**30}, (1,))
RUN = RunProgram("mine", PROGRAM)
SLICE = RandomTask("mine", "layer", "kv", 3, seed=0, programs=5)
DONE = SliceDone(Counts(programs=5, missing={"a": "b"}), [("fresh", "update", 2)], "d")
FOUND = Found(PROGRAM, DIVERGENCE, 3, 0.5)
KIND = Kind(frozenset({"update", "trim"}), {"heads": (1, 2), "window": (None,)}, False)
VERSIONS = {"numpy": "2"}


RAN = Ran(VERSIONS, "cpu", DIVERGENCE, 1, 0, None)
SHOWN = Shown(1, {"d": ["empty"]})


class Text(str):
    """As `torch.__version__` is."""


@pytest.mark.parametrize(
    ("task", "event"),
    [
        (SLICE, Progress(Counts(steps=7, margins={"keys": 0.5}), [("empty", "update")])),
        (SLICE, FOUND),
        (SLICE, Refused("\ud800 cannot be written as UTF-8")),
        (RandomTask("a", "b", "c", 0, {"s": SHOWN}, seed=1, programs=1),
         DONE),
        (SLICE, Agreed("an-entry", PROGRAM)),
        (RandomTask("a", "b", "c", 0, seed=1, programs=1), DONE),
        (ExhaustiveTask("a", "b", "c", 1, size="tiny", depth=2, path=[0, 1], covered=3),
         DONE),
        (Declare("mine"), Declared(VERSIONS, "cpu", {"layer": {"kv": KIND}}, ["f"], 1)),
        (RUN, RAN),
        (RecordProgram("mine", PROGRAM, Bounds(first=1), 2),
         Recorded(VERSIONS, "cpu", [Step(0, "w")], None, ["story"])),
    ],
)  # fmt: skip
def test_messages_arrive_as_they_were_sent(task: Task[Any], event: Event) -> None:
    assert decode_task(encode(task)) == task
    assert decode_event(encode(event), task) == event


def test_every_task_is_carried_out() -> None:
    def list_leaves(cls: type[Any]) -> set[type[Any]]:
        below = cls.__subclasses__()
        return {leaf for one in below for leaf in list_leaves(one)} if below else {cls}

    assert list_leaves(Task) == set(TASKS)
    answers = {task.__orig_bases__[0].__args__[0] for task in TASKS}  # type: ignore
    assert answers == list_leaves(Answer)


def test_a_subclass_of_str_is_sent_as_text() -> None:
    event = Refused(Text("why"))
    assert type(decode_event(encode(event), RUN).why) is str  # type: ignore


def change(event: Event, **fields: Any) -> bytes:
    return json.dumps({**json.loads(encode(event)), **fields}).encode()


def diverge(**fields: Any) -> bytes:
    return encode(Found(PROGRAM, replace(DIVERGENCE, **fields)))


@pytest.mark.parametrize(
    ("task", "data", "why"),
    [
        (RUN, b"", "Expecting value"),
        (RUN, b"\xff\xfe\xff", "decode"),
        (RUN, b"[" * 100_000, "nested too deeply"),
        (RUN, b"{}", "missing required field `event`"),
        (RUN, b'{"event": "Surprise"}', "Invalid value 'Surprise'"),
        (RUN, encode(DONE), "Invalid value 'SliceDone'"),
        (RUN, encode(Died("w", "crash", None, 0, "")), "Invalid value 'Died'"),
        (SLICE, change(DONE, digest=5), "Expected `str`, got `int` - at `$.digest`"),
        (SLICE, change(DONE, more=5), "unknown field `more`"),
        (SLICE, change(DONE, counts={"steps": -1}), "Expected `int` >= 0"),
        (SLICE, change(DONE, counts={"margins": {"keys": math.nan}}), "$.counts.margins"),
        (SLICE, change(FOUND, program={"format": "x"}), 'a failing program: "format"'),
        (RUN, change(RAN, divergence={**DIVERGENCE.to_json(), "step": -1}), "step -1"),
        (RUN, change(RAN, divergence={**DIVERGENCE.to_json(), "what": "/../x"}),
         "cannot be the name of a folder"),
        (SLICE, diverge(step=1), "the program has no step 1"),
        (SLICE, diverge(what="/../../x"), "cannot be the name of a folder"),
        (SLICE, diverge(operation="a\nb"), "cannot be the name of a folder"),
        (SLICE, encode(OfGroup(1, Progress(Counts()))), "no backend of the number 1"),
        (Declare("m"), encode(Declared({}, "cpu", {"layers": {}}, [], 1)), "layers"),
        (Declare("m"), encode(Declared({}, "c", {"layer": {"k": KIND}}, [], 1)), "kind"),
    ],
)  # fmt: skip
def test_anything_else_is_no_event(task: Task[Any], data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        decode_event(data, task)


def frame(data: bytes) -> bytes:
    return MAGIC + struct.pack("!I", len(data)) + data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"a print", "wrote stray bytes to the harness's connection: a print"),
        (b"\x00", "half a message was read, and nothing more for 1 s"),
        (b"{}", "wrote stray bytes to the harness's connection: {}"),
        (frame(b"hello"), "sent a message that is not an event: Expecting value"),
        (frame(b"{}"), "not an event: Object missing required field `event`"),
        (frame(encode(Clustered([]))), "not an event: Invalid value 'Clustered'"),
        (MAGIC + b"\x7f\xff\xff\xff", "a message has 2,147,483,647 bytes; at most 134,"),
        (frame(b"hello")[:-1], "half a message was read, and nothing more for 1 s"),
        (frame(encode(Progress(Counts()))) + b"\x1b[31m", "stray bytes to the harness"),
    ],
)
def test_a_worker_that_sends_something_else_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, why: str
) -> None:
    monkeypatch.setattr(channel, "MESSAGE_SECONDS", 1)
    monkeypatch.setenv("LOCKSTEP_TEST_BYTES", data.hex())
    backend = "tests.harness.misbehaving:speaks_to_its_pool"
    with Pool(1, tmp_path / "running") as one:
        event = one.call(RunProgram(backend, PROGRAM))
        assert isinstance(event, Died)
        assert (event.what, event.step) == ("crash", 0)
        assert why in event.why
        assert event.why.isprintable()
        assert one.processes == []
    blamed = event.blame()
    assert blamed is not None
    assert blamed[1].get_signature(blamed[0]) == "layer-kv-update-crash"


def test_what_an_idle_worker_writes_is_said(tmp_path: Path) -> None:
    """It belongs to no program; another worker gets the next task."""
    backend = "tests.harness.misbehaving:speaks_when_idle"
    with Pool(1, tmp_path / "running") as one:
        first = one.run(deque([RunProgram(backend, make(update(3), **SMALL).to_json())]))
        assert [type(event) for _, event in first] == [Ran]
        wait([one.processes[0].channel.end], 600)
        second = list(one.run(deque([RunProgram(CORRECT, PROGRAM)])))
    (blamed, died), (task, answer) = second
    assert (blamed.backend, task.backend) == (backend, CORRECT)
    assert isinstance(died, Died) and died.blame() is None
    assert "wrote stray bytes to the harness's connection: hello" in died.describe()
    assert isinstance(answer, Ran)


def test_messages_in_pieces_and_several_at_once() -> None:
    ours, theirs = make_channel()
    with closing(ours), theirs:
        assert ours.receive() is None
        for byte in frame(b"one"):
            assert ours.receive() is None
            theirs.send(bytes([byte]))
        assert ours.receive() == b"one"
        theirs.send(frame(b"two") + frame(b"") + frame(b"three")[:-1])
        assert [ours.receive() for _ in range(3)] == [b"two", b"", None]
        theirs.close()
        with pytest.raises(EOFError):
            ours.receive()


def test_a_worker_that_does_not_read_stops_nobody() -> None:
    ours, theirs = make_channel()
    ours.seconds = 0.2
    with closing(ours), theirs, pytest.raises(TimeoutError):
        ours.send(bytes(8 << 20))


@pytest.mark.parametrize("seed", range(4))
def test_no_change_of_an_event_is_more_than_a_refusal(seed: int) -> None:
    """Bytes changed at random: an event, or ValueError."""
    random = Random(seed)
    for _ in range(500):
        data = bytearray(encode(random.choice([DONE, FOUND, Progress(Counts(steps=3))])))
        for _ in range(random.choice([1, 1, 3, 20])):
            data[random.randrange(len(data))] = random.choice(b'{}[]",:0159eN\\\xff-')
        with suppress(ValueError):
            json.dumps(unfold(decode_event(bytes(data), SLICE)), default=unfold)


def write(**more: Any) -> bytes:
    """A record of the program."""
    return json.dumps({**PROGRAM, **more}).encode()


def test_a_record_names_a_step_of_a_program() -> None:
    metas = ({}, {"step": 1}, {"step": -2}, {"step": []})
    wrong = [write(meta=meta) for meta in metas]
    other = write(config={}, meta={"step": 0})
    for content in (b"", b"{}   ", b"\0" * 9, b"[" * 100_000, *wrong, other):
        assert get_running(content) == (None, 0)
    program, step = get_running(write(meta={"step": 0}) + b"   ")
    assert program is not None
    assert (len(program.ops), step) == (1, 0)


def test_a_folder_for_records_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(UsageError, match="choose another folder for failures"):
        Pool(1, tmp_path / "f" / "running").__enter__()
