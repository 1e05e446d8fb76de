"""Work that is compared, and how it is timed: in one process, in turns, by medians."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

Role = Literal["ours", "also", "peer", "limit"]
"""also: ours, in a way that costs more. limit: what the framework takes to move the same
bytes, without a cache around it."""

ROUND = 0.01
"""Seconds that a round of one contender should last at least."""

STEPS = 512
"""The most repetitions in a round."""


@dataclass
class Contender:
    """One way to do a piece of work.

    work: does it once, until the results are there, or, on a device that runs beside the
    process, until it is under way. start: brings it to where a round begins; not timed.
    most: repetitions until `start` is needed again. held: tells the bytes that its cache
    holds, where that is of interest.
    """

    name: str
    role: Role
    work: Callable[[], object]
    start: Callable[[], object] = lambda: None
    most: int = STEPS
    held: Callable[[], int] | None = None


@dataclass(frozen=True)
class Case:
    """The same work by several contenders.

    place: what tells this case from others of the workload, such as context = 4096.
    wait: until the device has done everything.
    """

    workload: str
    framework: str
    dtype: str
    heads: int
    place: tuple[tuple[str, int | str | None], ...]
    make: Callable[[], Sequence[Contender]]
    wait: Callable[[], object] = lambda: None

    def format_work(self) -> str:
        """The workload and its place, in words."""
        place = ", ".join(format_field(name, value) for name, value in self.place)
        return f"{self.workload}: {place}"

    def describe(self) -> str:
        """All that tells it from the others."""
        return f"{self.framework} {self.dtype} {self.heads} heads, {self.format_work()}"


def format_field(name: str, value: int | str | None) -> str:
    if value is None:
        return f"no {name}"
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name} {value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Outcome:
    """Microseconds that a piece of work took, by contender, in each round; and the bytes
    that caches held afterwards, of those that tell."""

    case: Case
    rounds: Mapping[str, Sequence[float]]
    roles: Mapping[str, Role]
    held: Mapping[str, int] = field(default_factory=dict)

    def get_time(self, contender: str) -> float:
        """The median."""
        return median(self.rounds[contender])

    def get_best(self, role: Role) -> str | None:
        """The fastest contender in a role, if there is one."""
        names = [name for name, its in self.roles.items() if its == role]
        return min(names, key=self.get_time) if names else None

    def get_ratio(self, to: str | None, of: str = "ours") -> float | None:
        """The time of one contender over that of another, if there are both: the median
        of the rounds' ratios, for what slows one down for a while slows the other too."""
        if of not in self.rounds or to not in self.rounds:
            return None
        pairs = zip(self.rounds[of], self.rounds[to], strict=True)
        return median(own / other for own, other in pairs)


def time_round(contender: Contender, steps: int, wait: Callable[[], object]) -> float:
    """Seconds for one piece of work."""
    contender.start()
    wait()
    work = contender.work
    begin = time.perf_counter()
    for _ in range(steps):
        work()
    wait()
    return (time.perf_counter() - begin) / steps


def measure(case: Case, rounds: int) -> Outcome:
    """Every contender once in each round, so that what disturbs one disturbs all.

    The round before the first is not counted: it warms up, and tells how many
    repetitions make a round long enough for the clock.
    """
    contenders = case.make()
    steps = {}
    for contender in contenders:
        time_round(contender, 1, case.wait)
        once = time_round(contender, 1, case.wait)
        steps[contender.name] = max(1, min(contender.most, int(ROUND / once)))
    times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    gc.collect()
    for _ in range(rounds):
        for contender in contenders:
            taken = time_round(contender, steps[contender.name], case.wait)
            times[contender.name].append(taken * 1e6)
    held = {one.name: one.held() for one in contenders if one.held is not None}
    return Outcome(case, times, {one.name: one.role for one in contenders}, held)
