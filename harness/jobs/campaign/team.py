"""Who runs the shards of a campaign: seats, on this machine or on others.

A seat runs one shard at a time, in a process of its own. It may be lost at any time; its
shard goes to another one.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any

from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import TICK


class Lost(Exception):
    """The machine of a seat is gone, or does not answer."""


@dataclass(frozen=True)
class Offer:
    """What a place has: the declaration of a backend, or why there is none."""

    event: messages.Declared | messages.Stopped
    environment: Mapping[str, Any] = field(default_factory=dict)


class Seat(ABC):
    """Runs one shard at a time.

    Attributes:
        offers: backend → what is known of it at this place.
    """

    offers: Mapping[str, Offer]

    @abstractmethod
    def stream(self, task: messages.Task[Any]) -> Iterator[messages.Event]:
        """The events of a task; called in a thread of its own. Raises Lost."""

    @abstractmethod
    def stop(self) -> None:
        """Gives the place back."""


Happened = tuple[Seat, messages.Task[Any], messages.Event]
Equip = Callable[[messages.Task[Any]], messages.Task[Any]]
Message = messages.Event | BaseException | None
"""What the thread of a seat says; None: the task is over."""


class Team(ABC):
    """Seats, and the shards that they run.

    Attributes:
        wanted: backend → what it must declare where it runs; anything, if that is not
            said. With packages of another version it may have other kinds.
    """

    def __init__(self) -> None:
        self.seats: list[Seat] = []
        self.wanted: dict[str, Mapping[str, Any]] = {}
        self.busy: dict[Seat, messages.Task[Any]] = {}
        self.said: Queue[tuple[Seat, Message]] = Queue()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Stops all seats; shards in flight are lost."""

    @abstractmethod
    def declare(
        self, names: Sequence[str], watch: Callable[[], None]
    ) -> Mapping[str, Offer]:
        """What the places have of each backend: the first declaration, or why none.

        Raises:
            UsageError: there is no place.
        """

    @abstractmethod
    def refresh(self, tasks: Sequence[messages.Task[Any]]) -> None:
        """Takes in places that are new. tasks: wait for one.

        Raises:
            UsageError: there is none left that can run them.
        """

    @property
    def room(self) -> int:
        """How many tasks may wait so that no seat has to."""
        return max(1, len(self.seats))

    def has(self, backend: str) -> bool:
        """Whether some seat can run the backend."""
        return self.count(backend) > 0

    def count(self, backend: str) -> int:
        """How many seats can run the backend."""
        return sum(self.fits(seat, backend) for seat in self.seats)

    def fits(self, seat: Seat, backend: str) -> bool:
        """Whether a seat can run the backend."""
        offer = seat.offers.get(backend)
        if offer is None or not isinstance(offer.event, messages.Declared):
            return False
        return self.wanted.get(backend, offer.event.contracts) == offer.event.contracts

    def run(
        self,
        tasks: deque[messages.Task[Any]],
        watch: Callable[[], None],
        equip: Equip = lambda task: task,
    ) -> Iterator[Happened]:
        """Hands out tasks and yields their events, until all tasks are over.

        Args:
            tasks: the caller may add to it or clear it in between. A task whose seat is
                lost comes back.
            watch: is called several times a second.
            equip: gives a task what it starts from, right before it is handed out.
        """
        while tasks or self.busy:
            self.refresh(tasks)
            self.hand_out(tasks, equip)
            yield from self.collect(tasks)
            watch()

    def hand_out(self, tasks: deque[messages.Task[Any]], equip: Equip) -> None:
        for seat in self.seats:
            if seat not in self.busy and (task := self.choose(seat, tasks)) is not None:
                tasks.remove(task)
                self.busy[seat] = task = equip(task)
                threading.Thread(
                    target=self.follow, args=(seat, task), daemon=True
                ).start()

    def choose(
        self, seat: Seat, tasks: deque[messages.Task[Any]]
    ) -> messages.Task[Any] | None:
        """The first task that the seat can run, and the fewest others."""
        first: dict[str, messages.Task[Any]] = {}
        for task in tasks:
            first.setdefault(task.backend, task)
        able = [name for name in first if self.fits(seat, name)]
        return first[min(able, key=self.count)] if able else None

    def follow(self, seat: Seat, task: messages.Task[Any]) -> None:
        """The thread of a task."""
        try:
            for event in seat.stream(task):
                self.said.put((seat, event))
        except BaseException as error:
            self.said.put((seat, error))
        else:
            self.said.put((seat, None))

    def collect(self, tasks: deque[messages.Task[Any]]) -> Iterator[Happened]:
        """The events that are there, or come within a tick.

        Raises:
            UsageError: a worker cannot be started.
        """
        seconds = TICK
        while True:
            try:
                seat, message = self.said.get(timeout=seconds)
            except Empty:
                return
            seconds = 0.001
            task = self.busy.get(seat)
            if task is None:  # of a seat that was given up
                continue
            if isinstance(message, messages.Event):
                yield seat, task, message
                continue
            del self.busy[seat]
            if isinstance(message, Lost):
                tasks.appendleft(task)
                self.remove(seat)
            elif message is not None:
                raise message

    def remove(self, seat: Seat) -> None:
        if seat in self.seats:
            self.seats.remove(seat)
        seat.stop()
