"""Work that is compared, and how it is timed: in one process, in turns, by medians."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

Role = Literal["ours", "peer", "limit"]
"""limit: what the framework takes to move the same bytes, without a cache around it."""

ROUND = 0.01
"""Seconds that a round of one contender should last at least."""

STEPS = 512
"""The most repetitions in a round."""


@dataclass
class Contender:
    """One way to do a piece of work.

    work: does it once, until the results are there, or, on a device that runs beside the
    process, until it is under way. start: brings it to where a round begins; not timed.
    most: repetitions until `start` is needed again.
    """

    name: str
    role: Role
    work: Callable[[], object]
    start: Callable[[], object] = lambda: None
    most: int = STEPS


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
    place: tuple[tuple[str, int | str], ...]
    make: Callable[[], Sequence[Contender]]
    wait: Callable[[], object] = lambda: None


@dataclass
class Outcome:
    """Microseconds that a piece of work took, by contender: the median of all rounds."""

    case: Case
    times: dict[str, float] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)

    def get_best(self, role: Role) -> tuple[str, float] | None:
        """Name and time of the fastest contender in a role, if there is one."""
        times = {name: at for name, at in self.times.items() if self.roles[name] == role}
        return min(times.items(), key=lambda item: item[1]) if times else None

    def get_ratio(self, to: Role) -> float | None:
        """Our time over that of the fastest in another role."""
        ours, other = self.get_best("ours"), self.get_best(to)
        return ours[1] / other[1] if ours and other else None


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
            times[contender.name].append(taken)
    medians = {name: median(values) * 1e6 for name, values in times.items()}
    return Outcome(case, medians, {one.name: one.role for one in contenders})
