"""Measures times: all contenders run in one process and take turns; results are
medians."""

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

ROUND_SECONDS = 0.01
"""How long a round of one contender should last at least."""

STEPS = 512
"""The maximal number of repetitions in a round."""


@dataclass
class Contender:
    """An implementation of a workload.

    Attributes:
        work: does the work once. It returns when the results are computed or, on an
            asynchronous device, when the work is launched.
        start: sets the cache to its state at the beginning of a round; its time is not
            measured.
        most: how often `work` may run until `start` must be called again.
        count_bytes: returns the size of the cache in bytes; None if it is not reported.
    """

    name: str
    role: Role
    work: Callable[[], object]
    start: Callable[[], object] = lambda: None
    most: int = STEPS
    count_bytes: Callable[[], int] | None = None


@dataclass(frozen=True)
class Case:
    """A workload with given sizes, and its contenders.

    Attributes:
        sizes: the sizes that distinguish cases of a workload, such as context = 4096.
        wait: waits until the device has finished all work.
    """

    workload: str
    framework: str
    dtype: str
    heads: int
    sizes: Mapping[str, int | str | None]
    make: Callable[[], Sequence[Contender]]
    wait: Callable[[], object] = lambda: None

    def format_work(self) -> str:
        sizes = ", ".join(format_size(name, size) for name, size in self.sizes.items())
        return f"{self.workload}: {sizes}"

    def describe(self) -> str:
        """Returns a text that identifies the case."""
        return f"{self.framework} {self.dtype} {self.heads} heads, {self.format_work()}"


def format_size(name: str, size: int | str | None) -> str:
    if size is None:
        return f"no {name}"
    if isinstance(size, bool):
        return name if size else f"not {name}"
    return f"{name} {size:,}" if isinstance(size, int) else size


@dataclass(frozen=True)
class Outcome:
    """The result of a case.

    Attributes:
        rounds: contender → microseconds in each round.
        roles: contender → role.
        held: contender → size of its cache in bytes, for contenders that report it.
    """

    case: Case
    rounds: Mapping[str, Sequence[float]]
    roles: Mapping[str, Role]
    held: Mapping[str, int] = field(default_factory=dict)

    def get_time(self, contender: str) -> float:
        return median(self.rounds[contender])

    def get_best(self, role: Role) -> str | None:
        """Returns the name of the fastest contender in a role; None if there is none."""
        names = [name for name in self.roles if self.roles[name] == role]
        return min(names, key=self.get_time, default=None)

    def get_ratio(self, to: str | None, of: str = "ours") -> float | None:
        """Returns the median of the rounds' ratios of two contenders' times.

        Within a round, a disturbance slows both contenders, so that it hardly changes the
        ratio. Returns None if a contender is missing.
        """
        if of not in self.rounds or to not in self.rounds:
            return None
        pairs = zip(self.rounds[of], self.rounds[to], strict=True)
        return median(time / other for time, other in pairs)


def time_round(contender: Contender, steps: int, wait: Callable[[], object]) -> float:
    """Runs the work `steps` times, and returns the seconds per run."""
    contender.start()
    wait()
    work = contender.work
    begin = time.perf_counter()
    for _ in range(steps):
        work()
    wait()
    return (time.perf_counter() - begin) / steps


def measure(case: Case, rounds: int) -> Outcome:
    """Runs every contender once in each round, so that a disturbance affects all
    contenders.

    The first round is not counted. It warms up, and determines how often the work runs in
    a round, so that a round is long enough for the resolution of the clock.
    """
    contenders = case.make()
    steps = {}
    for contender in contenders:
        time_round(contender, 1, case.wait)
        once = time_round(contender, 1, case.wait)
        steps[contender.name] = max(1, min(contender.most, int(ROUND_SECONDS / once)))
    times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    gc.collect()
    for _ in range(rounds):
        for contender in contenders:
            seconds = time_round(contender, steps[contender.name], case.wait)
            times[contender.name].append(seconds * 1e6)
    roles = {contender.name: contender.role for contender in contenders}
    counters = [contender for contender in contenders if contender.count_bytes]
    held = {contender.name: contender.count_bytes() for contender in counters}  # type: ignore[misc]
    return Outcome(case, times, roles, held)
