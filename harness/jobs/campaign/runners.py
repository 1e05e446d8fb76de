"""Runs the shards of a campaign in worker processes of this machine.

`RayRunner` in `cluster.py` runs them on a cluster.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.jobs.campaign.shard import Cancelled, run_shard
from lockstep.harness.jobs.campaign.terms import Spec
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import TICK, Pool

CLOSE_SECONDS = 5.0
"""The time in which abandoned shards must stop their workers."""


class Lost(Exception):
    """The machine of a shard is lost, and the shard has to run again."""


class Runner(Protocol):
    """Runs shards, each in its own thread."""

    def count(self) -> int:
        """Returns the number of shards that can run at the same time."""

    def run(self, spec: Spec) -> Iterator[messages.Event]:
        """Yields the events of a shard; see `run_shard`. Raises Lost."""

    def close(self) -> None:
        """Stops the running shards."""


class Worker:
    """A worker process that runs one shard after the other.

    Args:
        variables: environment variables of the process.
    """

    def __init__(self, variables: Mapping[str, str] = {}) -> None:
        self.stack, self.variables = ExitStack(), variables
        folder = tempfile.TemporaryDirectory(prefix="lockstep-")
        self.folder = Path(self.stack.enter_context(folder))
        self.pool: Pool | None = None

    def run(
        self, spec: Spec, watch: Callable[[], None] = lambda: None
    ) -> Iterator[messages.Event]:
        limits = Limits(spec.step_seconds / 2, spec.start_seconds, strict=spec.strict)

        def open_pool(variables: Mapping[str, str]) -> Pool:
            return Pool(1, self.folder, limits, {**self.variables, **variables})

        if self.pool is None:
            self.pool = self.stack.enter_context(open_pool({}))
        yield from run_shard(spec, self.pool, open_pool, watch)


class LocalRunner:
    """Runs shards in worker processes of this machine.

    Args:
        jobs: the maximum number of shards at the same time.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs, self.is_closed = jobs, False
        self.idle: list[Worker] = []
        self.busy: set[Worker] = set()

    def count(self) -> int:
        return self.jobs

    def watch(self) -> None:
        if self.is_closed:
            raise Cancelled

    def run(self, spec: Spec) -> Iterator[messages.Event]:
        worker = self.idle.pop() if self.idle else Worker()
        self.busy.add(worker)
        try:
            yield from worker.run(spec, self.watch)
        finally:
            self.idle.append(worker)
            self.busy.remove(worker)

    def close(self) -> None:
        self.is_closed = True
        deadline = time.monotonic() + CLOSE_SECONDS
        while self.busy and time.monotonic() < deadline:
            time.sleep(0.02)
        for worker in self.idle:  # the guards of the others end them after this process
            worker.stack.close()


Message = messages.Event | BaseException | None
"""A message from the thread of a shard; None if the shard has ended."""


def run_specs(
    runner: Runner, specs: Iterator[Spec], watch: Callable[[], None]
) -> Iterator[tuple[Spec, messages.Event]]:
    """Runs shards and yields their events, until all shards are finished. If the machine
    of a shard is lost, the shard starts again; its first event is the declaration of the
    backend.

    Args:
        runner: the runner of the shards.
        specs: the specs of the shards; the next spec is taken when a shard can start.
        watch: called several times a second.
    """
    queue: SimpleQueue[tuple[Spec, Message]] = SimpleQueue()

    def follow(spec: Spec) -> None:
        try:
            for event in runner.run(spec):
                queue.put((spec, event))
            queue.put((spec, None))
        except BaseException as error:
            queue.put((spec, error))

    running = 0
    while True:
        while running < runner.count() and (spec := next(specs, None)) is not None:
            threading.Thread(target=follow, args=(spec,), daemon=True).start()
            running += 1
        if not running:
            return
        watch()
        with suppress(Empty):
            spec, message = queue.get(timeout=TICK)
            if isinstance(message, messages.Event):
                yield spec, message
                continue
            running -= 1
            if isinstance(message, Lost):
                specs = chain([spec], specs)
            elif message is not None:
                raise message
