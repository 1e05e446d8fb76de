"""The job of `lockstep vectors`: a set of files, made on all cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import REFERENCE_NAME
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.vectors.folder import list_replaced, write_set
from lockstep.harness.jobs.vectors.manual import make_manual
from lockstep.harness.jobs.vectors.run import run_tasks
from lockstep.harness.programs.vectors.manifest import (
    make_manifest,
    write_lines,
    write_pretty,
)
from lockstep.harness.programs.vectors.schema import make_schema
from lockstep.harness.workers import messages

MANUAL, SCHEMA = "README.md", "schema.json"


@dataclass
class Export:
    """A set that is being made. drawn: programs so far, by kind. done: kinds that are
    over, with their entry in the manifest."""

    size: str
    kinds: Sequence[tuple[str, str]]
    drawn: dict[str, int] = field(default_factory=dict)
    done: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @property
    def bytes(self) -> int:
        return sum(map(len, self.contents.values()))


Watch = Callable[[Export], None]


def list_kinds(chosen: Sequence[str]) -> list[tuple[str, str]]:
    """(contract, kind) of the chosen kinds, or of all."""
    return [
        (rules.name, kind)
        for rules in CONTRACTS.values()
        for kind in rules.kinds
        if not chosen or kind in chosen
    ]


def export(
    folder: Path, size: str, kinds: Sequence[str], jobs: int, watch: Watch
) -> Export:
    """Makes a set and writes it to a folder.

    Raises:
        UsageError: the folder holds something else than a former set.
    """
    replaced = list_replaced(folder)
    work = Export(size, list_kinds(kinds))
    tasks = [messages.DrawVectors(REFERENCE_NAME, *own, size) for own in work.kinds]
    run_tasks(tasks, jobs, partial(handle, work), lambda: watch(work))
    # Workers end in any order.
    names = [get_name(*own) for own in work.kinds]
    work.contents = {
        MANUAL: make_manual(size, work.done).encode(),
        SCHEMA: write_pretty(make_schema()),
        **{name: work.contents[name] for name in names},
    }
    manifest = write_pretty(make_manifest(size, work.contents, work.done))
    write_set(folder, replaced, work.contents, manifest)
    return work


def get_name(contract: str, kind: str) -> str:
    return f"{contract}-{kind}.jsonl"


def handle(work: Export, task: messages.DrawVectors, event: messages.Event) -> None:
    name = get_name(task.contract, task.kind)
    if isinstance(event, messages.Progress):
        work.drawn[name] = event.counts.programs
    elif isinstance(event, messages.Drawn):
        work.drawn[name] = event.holds["drawn"]
        work.done[name] = event.holds
        work.contents[name] = write_lines(event.lines)
    elif isinstance(event, messages.Stopped):
        raise UsageError(f"{name}: programs could not be drawn: {event.why}")
