"""Runs a shard from its spec, yields its events, and reads and writes its file.

A program that ends its process is skipped, and the rest of the shard runs without it.
"""

from __future__ import annotations

import json
import signal
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Literal

import msgspec
from msgspec import Struct, ValidationError, structs

from lockstep.harness.core.document import decode, parse_json
from lockstep.harness.core.errors import UsageError, format_exit, shorten
from lockstep.harness.jobs.campaign.terms import Spec
from lockstep.harness.jobs.crash import BLOCKING, MAX_CRASHES, report_crash
from lockstep.harness.workers import messages
from lockstep.harness.workers.messages import Natural, NonNegative
from lockstep.harness.workers.pool import Pool

MAX_KILLED = 3
"""The maximum number of restarts of a shard whose worker was killed from outside."""

KILLED = format_exit(-signal.SIGKILL)

CRASH_TRIES = 50
"""The maximum number of candidates for shrinking a crash. With a time limit, the
result would depend on the machine."""


class Abandoned(messages.Stopped, frozen=True):
    """The worker ended, and the rest of the shard was skipped.

    Attributes:
        crashes: the number of programs that ended the worker; if it is 0, the shard has
            no result.
    """

    crashes: Natural = 0


# --- it runs ----------------------------------------------------------------------------


class Cancelled(Exception):
    """The shard is no longer needed."""


Open = Callable[[Mapping[str, str]], Pool]
"""Opens a pool of one worker with these environment variables."""


def run_shard(
    spec: Spec, pool: Pool, open_pool: Open, watch: Callable[[], None] = lambda: None
) -> list[messages.Event]:
    """Runs a shard.

    Args:
        spec: the spec of the shard.
        pool: a pool of one worker.
        open_pool: opens another pool, in which crashes are shrunk.
        watch: called several times a second; it may raise `Cancelled`.

    Returns:
        The declaration of the backend on this machine; the diverging programs; finally
        the answer, or the reason for its absence. Only a reason, if the backend cannot be
        loaded; only the declaration, if the task is to load it.
    """
    task: messages.Task[Any] = spec.task
    asking = messages.Declare(task.backend)
    *_, (_, declared) = pool.run(deque([asking]), watch)
    events: list[messages.Event] = [declared]
    killed, fatal, shown, ticks = 0, list[str](), set[str](), count()

    def add(event: messages.Event) -> None:
        if isinstance(event, messages.Found) and event.original is not None:
            # Its divergence may have thousands of tokens.
            events[:] = filter(event.is_other, events)
        if not isinstance(event, messages.Progress):
            events.append(event)

    def tick() -> float:
        watch()  # before each candidate program
        return next(ticks)

    is_loaded = isinstance(declared, messages.Declared)
    while is_loaded and not isinstance(task, messages.Declare):
        for asked, event in pool.run(deque([task]), watch):
            if asked is task:  # not a late event of an earlier task
                add(event)
        end = events[-1]
        if not isinstance(end, messages.Died):
            break
        events.pop()
        if end.why == KILLED and killed < MAX_KILLED:
            killed += 1  # by a person, or by the kernel when memory is short
            continue
        if end.running is not None and isinstance(task, messages.RandomTask):
            for crash in report_crash(
                *(task.backend, end, shown.__contains__, lambda: open_pool(BLOCKING)),
                CRASH_TRIES,
                tick,
            ):
                shown.add(crash.divergence.get_signature(crash.parsed))
                add(crash)
            fatal.append(end.running.digest())
            if len(fatal) < MAX_CRASHES:
                task, killed = structs.replace(task, fatal=[*fatal]), 0
                continue
        events.append(Abandoned(end.describe(), crashes=len(fatal)))
        break
    return events


# --- on disk ----------------------------------------------------------------------------


ENDS = messages.SliceDone | messages.LedgerRun | Abandoned


class Result(Struct, frozen=True, forbid_unknown_fields=True):
    """A finished shard.

    Attributes:
        seconds: the run time of the campaign when the shard ended.
        events: the declaration of the backend on the machine of the shard, the diverging
            programs, and the last event.
    """

    spec: Spec
    seconds: NonNegative
    events: list[messages.Declared | messages.Found | messages.Agreed | ENDS]
    format: Literal["lockstep-shard/2"] = "lockstep-shard/2"

    def encode(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        fields["spec"] = msgspec.to_builtins(self.spec)
        return json.dumps(fields, default=messages.unfold).encode() + b"\n"


def decode_result(content: bytes, name: str) -> Result:
    """Decodes the file of a shard. Raises UsageError if the file is invalid."""
    document = parse_json(decode(content, name), name)
    try:
        result = msgspec.convert(document, Result)
        for event in result.events:
            event.check()
        first, *_, last = result.events
        if not isinstance(first, messages.Declared) or not isinstance(last, ENDS):
            raise ValueError("it has no declaration, or no end")
    except (ValidationError, ValueError, RecursionError) as error:
        reason = shorten(str(error))
        raise UsageError(f"{name}: is not a shard of a campaign: {reason}") from None
    if result.spec.name != name:
        raise UsageError(f"{name}: belongs to another campaign")
    return result
