"""Failures to show, and programs of which both sides are recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import convert

from lockstep.harness.execution.record import Record
from lockstep.harness.execution.recording.picture import Bounds, Step, read_step
from lockstep.harness.execution.recording.recorder import record
from lockstep.harness.programs.divergence import Divergence
from lockstep.harness.programs.program import Program, parse_program
from lockstep.harness.reports.pages.play import Stage
from lockstep.harness.workers.messages import (
    Event,
    Task,
    decode_event,
    encode,
)
from lockstep.harness.workers.pool import Pool
from lockstep.harness.workers.registry import LIMITS, load
from lockstep.harness.workers.tasks import decode_task
from lockstep.harness.workers.worker import Worker

MISBEHAVING = "tests.harness.misbehaving"
FAULTS = "lockstep.impl.faults.torch"

Recorded = tuple[list[Step], Divergence | None]


def make_program(contract: str, ops: Sequence[Any], **config: Any) -> Program:
    document = {
        "format": "lockstep/1",
        "contract": contract,
        "config": config,
        "ops": list(ops),
    }
    return parse_program(document, "here")


class Here:
    """A pool without processes."""

    def __init__(self, record: Record) -> None:
        self.events: list[Event] = []
        self.worker = Worker(record, self.events.append, LIMITS)

    def call(self, task: Task[Any]) -> Event:
        self.worker.do(decode_task(encode(task)))
        return decode_event(encode(self.events[-1]), task)


@pytest.fixture
def stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Stage]]:
    """Where programs are played again: in this process, on the backends given."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    written = Record(tmp_path / "stage.json")
    yield lambda *given: Stage(cast(Pool, Here(written)), given)
    written.close()


@pytest.fixture
def play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Recorded]]:
    """Both sides of a program, as a worker records them, in this process."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    written = Record(tmp_path / "record.json")

    def play(
        program: Program,
        backend: str,
        until: int | None = None,
        bounds: Bounds | None = None,
        wanted: str | None = None,
    ) -> Recorded:
        own = partial(written.begin, backend=backend), written.step
        chosen = bounds or Bounds()
        answer = record(program, load(backend), chosen, until, wanted, *own)
        answer = json.loads(json.dumps(answer))
        found = answer["divergence"]
        steps = [read_step(step) for step in answer["steps"]]
        return steps, found and convert(found, type=Divergence)

    yield play
    written.close()
