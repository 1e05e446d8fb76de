"""Runs the shards of a campaign in worker processes of this machine.

`RayRunner` in `cluster.py` runs them on a cluster.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.campaign.shard import Cancelled, run_shard
from lockstep.harness.jobs.campaign.terms import Spec
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import TICK, Pool

Events = Sequence[messages.Event]


class Runner(Protocol):
    """Runs shards."""

    def count(self) -> int:
        """Returns the number of shards that can run at the same time."""

    def start(self, spec: Spec) -> Future[Events | UsageError]:
        """Starts a shard; the result is its events, see `run_shard`, or the reason why
        no shard can run."""

    def close(self) -> None:
        """Stops the running shards."""


class Worker(ExitStack):
    """A worker process that runs one shard after the other.

    Args:
        variables: environment variables of the process.
    """

    def __init__(self, variables: Mapping[str, str] = {}) -> None:
        super().__init__()
        self.variables = variables
        folder = tempfile.TemporaryDirectory(prefix="lockstep-")
        self.folder = Path(self.enter_context(folder))
        self.pool: Pool | None = None

    def run(self, spec: Spec, watch: Callable[[], None] = lambda: None) -> Events:
        def open_pool(variables: Mapping[str, str]) -> Pool:
            together = {**self.variables, **variables}
            return Pool(1, self.folder, spec.get_limits(), together)

        if self.pool is None:
            self.pool = self.enter_context(open_pool({}))
        return run_shard(spec, self.pool, open_pool, watch)


class LocalRunner:
    """Runs shards in worker processes of this machine.

    Args:
        jobs: the maximum number of shards at the same time.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs, self.is_closed = jobs, False
        self.threads, self.local = ThreadPoolExecutor(jobs), threading.local()
        self.stack = ExitStack()

    def count(self) -> int:
        return self.jobs

    def start(self, spec: Spec) -> Future[Events | UsageError]:
        return self.threads.submit(self.run, spec)

    def run(self, spec: Spec) -> Events:
        """Runs a shard in the worker of this thread."""
        if not hasattr(self.local, "worker"):
            self.local.worker = self.stack.enter_context(Worker())
        worker: Worker = self.local.worker
        return worker.run(spec, self.watch)

    def watch(self) -> None:
        if self.is_closed:
            raise Cancelled

    def close(self) -> None:
        self.is_closed = True
        self.threads.shutdown(cancel_futures=True)
        self.stack.close()


def run_specs(
    runner: Runner, specs: Iterator[Spec], watch: Callable[[], None]
) -> Iterator[tuple[Spec, Events]]:
    """Runs shards and yields the events of each finished shard. Raises UsageError.

    Args:
        runner: the runner of the shards.
        specs: the specs of the shards; the next spec is taken when a shard can start.
        watch: called several times a second.
    """
    running: dict[Future[Events | UsageError], Spec] = {}
    while True:
        while len(running) < runner.count() and (spec := next(specs, None)) is not None:
            running[runner.start(spec)] = spec
        if not running:
            return
        watch()
        for future in wait(running, TICK, FIRST_COMPLETED).done:
            events = future.result()
            if isinstance(events, UsageError):
                raise events
            yield running.pop(future), events
