"""Seats on this machine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.campaign.runner import Cancelled, ShardRunner
from lockstep.harness.jobs.campaign.team import Offer, Seat, Team
from lockstep.harness.jobs.check import open_pool
from lockstep.harness.jobs.outcome import Settings
from lockstep.harness.programs.files import RUNNING
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool

END_SECONDS = 5.0
"""In which a seat that is given up stops its worker."""


class LocalSeat(Seat):
    """A worker process of this machine."""

    def __init__(self, settings: Settings, offers: Mapping[str, Offer]) -> None:
        self.settings, self.offers = settings, offers
        self.pool = open_pool(settings, 1)
        self.is_stopped = False
        self.is_idle = threading.Event()
        self.is_idle.set()

    def watch(self) -> None:
        if self.is_stopped:
            raise Cancelled

    def open_pool(self, variables: Mapping[str, str]) -> Pool:
        return open_pool(self.settings, 1, variables)

    def stream(self, task: messages.Task[Any]) -> Iterator[messages.Event]:
        self.is_idle.clear()
        try:
            yield from ShardRunner(self.pool, self.open_pool, self.watch).run(task)
        finally:
            self.is_idle.set()

    def stop(self) -> None:
        self.is_stopped = True
        if self.is_idle.wait(END_SECONDS):  # else the guard ends the worker after us
            self.pool.__exit__()


class LocalTeam(Team):
    """All places are on this machine."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.offers: dict[str, Offer] = {}

    def declare(
        self, names: Sequence[str], watch: Callable[[], None]
    ) -> Mapping[str, Offer]:
        with open_pool(self.settings) as pool:
            for task, event in pool.run(deque(map(messages.Declare, names)), watch):
                if isinstance(event, messages.Declared):
                    environment = event.get_environment()
                    self.offers[task.backend] = Offer(event, environment)
                elif isinstance(event, messages.Stopped):
                    self.offers[task.backend] = Offer(event)
        jobs = range(self.settings.jobs)
        self.seats = [LocalSeat(self.settings, self.offers) for _ in jobs]
        return self.offers

    def refresh(self, tasks: Sequence[messages.Task[Any]]) -> None:
        able = [name for name, offer in self.offers.items() if is_declared(offer)]
        missing = sorted({task.backend for task in tasks} - {*able})
        if missing and not self.busy:
            raise UsageError(f"{', '.join(missing)}: cannot be loaded here any more")

    def close(self) -> None:
        for seat in self.seats:
            assert isinstance(seat, LocalSeat)
            seat.is_stopped = True  # all at once
        for seat in self.seats:
            seat.stop()
        self.seats.clear()
        with suppress(OSError):  # another process may use it
            (self.settings.failures / RUNNING).rmdir()
            self.settings.failures.rmdir()


def is_declared(offer: Offer) -> bool:
    return isinstance(offer.event, messages.Declared)
