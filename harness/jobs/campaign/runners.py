"""Who runs the shards of a campaign: worker processes here, or a cluster."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, Queue
from typing import Protocol

from lockstep.harness.jobs.campaign.shard import Cancelled, run_shard
from lockstep.harness.jobs.campaign.terms import Spec
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import TICK, Pool

CLOSE_SECONDS = 5.0
"""In which shards that are given up stop their workers."""


class Lost(Exception):
    """The machine of a shard is gone: the shard has to run again."""


class Runner(Protocol):
    """Runs shards; each in a thread of its own."""

    def count(self) -> int:
        """Counts the shards that can run at a time. Raises UsageError if none can."""

    def run(self, spec: Spec) -> Iterator[messages.Event]:
        """Yields the events of a shard; see `run_shard`. Raises Lost."""

    def close(self) -> None:
        """Stops what runs."""


class LocalRunner:
    """Runs shards in worker processes of this machine.

    Args:
        jobs: the most shards at a time.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs, self.is_closed = jobs, False
        self.pools: deque[LocalPool] = deque()
        self.busy: set[LocalPool] = set()

    def count(self) -> int:
        return self.jobs

    def watch(self) -> None:
        if self.is_closed:
            raise Cancelled

    def run(self, spec: Spec) -> Iterator[messages.Event]:
        try:
            pool = self.pools.popleft()
        except IndexError:
            pool = LocalPool()
        self.busy.add(pool)
        try:
            yield from pool.run(spec, self.watch)
        finally:
            self.pools.append(pool)
            self.busy.remove(pool)

    def close(self) -> None:
        self.is_closed = True
        deadline = time.monotonic() + CLOSE_SECONDS
        while self.busy and time.monotonic() < deadline:
            time.sleep(0.02)
        for pool in list(self.pools):  # the guard of any other worker ends it after us
            pool.close()


class LocalPool:
    """A worker process that stays for further shards. variables: of its environment."""

    def __init__(self, variables: Mapping[str, str] = {}) -> None:
        self.stack, self.variables = ExitStack(), variables
        folder = tempfile.TemporaryDirectory(prefix="lockstep-")
        self.folder = Path(self.stack.enter_context(folder))
        self.pool: Pool | None = None

    def run(
        self, spec: Spec, watch: Callable[[], None] = lambda: None
    ) -> Iterator[messages.Event]:
        limits = spec.step_seconds, spec.start_seconds, spec.strict

        def open_pool(variables: Mapping[str, str]) -> Pool:
            return Pool(1, self.folder, *limits, {**self.variables, **variables})

        if self.pool is None:
            self.pool = self.stack.enter_context(open_pool({}))
        yield from run_shard(spec, self.pool, open_pool, watch)

    def close(self) -> None:
        self.stack.close()


Message = messages.Event | BaseException | None
"""What the thread of a shard says; None: the shard is over."""


def run_specs(
    runner: Runner, specs: deque[Spec], watch: Callable[[], None]
) -> Iterator[tuple[Spec, messages.Event]]:
    """Runs shards and yields their events, until all are over. One that is lost begins
    again, with the declaration of its backend.

    Args:
        runner: runs them.
        specs: the caller may add to it or clear it in between.
        watch: is called several times a second.
    """
    running: set[str] = set()
    queue: Queue[tuple[Spec, Message]] = Queue()
    while specs or running:
        while specs and len(running) < runner.count():
            spec = specs.popleft()
            running.add(spec.name)
            threading.Thread(
                target=follow, args=(runner, spec, queue), daemon=True
            ).start()
        for spec, message in drain(queue):
            if isinstance(message, messages.Event):
                yield spec, message
                continue
            running.remove(spec.name)
            if isinstance(message, Lost):
                specs.appendleft(spec)
            elif message is not None:
                raise message
        watch()


def follow(runner: Runner, spec: Spec, queue: Queue[tuple[Spec, Message]]) -> None:
    """The thread of a shard."""
    try:
        for event in runner.run(spec):
            queue.put((spec, event))
    except BaseException as error:
        queue.put((spec, error))
    else:
        queue.put((spec, None))


def drain(queue: Queue[tuple[Spec, Message]]) -> Iterator[tuple[Spec, Message]]:
    """Takes what is there, or comes within a tick."""
    seconds = TICK
    while True:
        try:
            yield queue.get(timeout=seconds)
        except Empty:
            return
        seconds = 0.001
