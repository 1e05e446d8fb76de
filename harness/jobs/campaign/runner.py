"""Runs a shard: what comes out depends on the task alone.

A program that ends its process costs itself: the rest of the shard runs without it.
"""

from __future__ import annotations

import json
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import count
from typing import Any

import msgspec
from msgspec import structs

from lockstep.harness.core.errors import format_exit
from lockstep.harness.jobs.campaign.shard import SHARDS, Abandoned
from lockstep.harness.jobs.check import BLOCKING, MAX_CRASHES, shrink_crash
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool

PROGRESS_SECONDS = 2.0
"""Between two reports of progress; each takes the coordinator some work."""

MOST_KILLED = 3
"""How often a shard begins again since its worker was killed from outside."""

KILLED = format_exit(-signal.SIGKILL)

CRASH_TRIES = 50
"""Programs that are tried to shrink a crash. A number of seconds would let the result
depend on the machine."""

Open = Callable[[Mapping[str, str]], Pool]
"""Opens a pool of one worker with these environment variables."""


class Cancelled(Exception):
    """The shard is wanted no more."""


class ShardRunner:
    """Runs shards, one after the other, in a worker of its own.

    Args:
        pool: of one worker.
        open_pool: opens one more, in which crashes are shrunk.
        watch: is called several times a second; it may raise `Cancelled`.
    """

    def __init__(
        self, pool: Pool, open_pool: Open, watch: Callable[[], None] = lambda: None
    ) -> None:
        self.pool, self.open_pool, self.watch = pool, open_pool, watch

    def run(self, task: messages.Task[Any]) -> Iterator[messages.Event]:
        """The events of a task; the last one is an answer, or says why there is none."""
        killed = 0
        fatal: list[str] = []
        shown: set[str] = set()
        while True:
            end = yield from self.try_once(task)
            if not isinstance(end, messages.Died):
                yield end
                return
            if end.why == KILLED and killed < MOST_KILLED:
                killed += 1  # by a person, or by the kernel when memory is short
                continue
            if end.running is None or not isinstance(task, messages.SliceTask):
                yield Abandoned(end.describe(), crashes=len(fatal))
                return
            yield from self.report_crash(task, end, shown)
            fatal.append(end.running.digest())
            if len(fatal) == MAX_CRASHES:
                yield Abandoned(end.describe(), crashes=len(fatal))
                return
            task, killed = structs.replace(task, fatal=[*fatal]), 0

    def try_once(
        self, task: messages.Task[Any]
    ) -> Generator[messages.Event, None, messages.Event]:
        """Yields the events of a task but the last one, which it returns."""
        reported = time.monotonic()
        for asked, event in self.pool.run(deque([task]), self.watch):
            if asked is not task:  # a worker says something late
                continue
            if isinstance(event, messages.Answer | messages.Stopped):
                return event
            if isinstance(event, messages.Progress):
                if time.monotonic() - reported < PROGRESS_SECONDS:
                    continue
                reported = time.monotonic()
            yield event
        raise AssertionError("a task always ends with an event")

    def report_crash(
        self, task: messages.SliceTask, died: messages.Died, shown: set[str]
    ) -> Iterator[messages.Found]:
        """A program that ends its process, as it was found and, of each signature once,
        made shorter."""
        blamed = died.blame()
        assert blamed is not None
        program, divergence = blamed
        signature = divergence.get_signature(program)
        yield messages.Found(program.to_json(), divergence)
        if signature in shown:
            return
        shown.add(signature)
        with self.open_pool(BLOCKING) as pool:
            own = pool, task.backend, program, divergence
            clock = make_counting_clock(self.watch)
            small = shrink_crash(*own, CRASH_TRIES, clock)
        yield messages.Found(
            small.program.to_json(),
            small.divergence,
            original=program.digest(),
            flaky=None if small.flaky is None else str(small.flaky),
        )


def make_counting_clock(watch: Callable[[], None]) -> Callable[[], float]:
    """A clock that goes on by a second each time that it is looked at, which is before
    each program that is tried."""
    ticks = count()

    def tell() -> float:
        watch()
        return next(ticks)

    return tell


def run_shard(runner: ShardRunner, spec: bytes) -> Iterator[bytes]:
    """The events of a task, both as JSON."""
    for event in runner.run(msgspec.convert(json.loads(spec), SHARDS)):
        yield messages.encode(event)
