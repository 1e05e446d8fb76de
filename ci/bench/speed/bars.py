"""The bars for our caches on the CPU, as ratios of times within one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ci.bench.speed.measure import Outcome
from ci.bench.speed.workloads import SEQUENCES, SMALL_POOL, SMALLEST, K

Ratio = Callable[[Outcome], float | None]


@dataclass(frozen=True)
class Bar:
    """name: what is compared with what. bound: the highest ratio that is allowed.

    where: the fields of the cases that are meant. ratio: of the times of one case.
    """

    name: str
    bound: float
    where: Mapping[str, Any]
    ratio: Ratio

    def concerns(self, outcome: Outcome) -> bool:
        case = outcome.case
        fields = {"workload": case.workload, "framework": case.framework}
        fields |= {"heads": case.heads, **dict(case.place)}
        return all(fields.get(name) == value for name, value in self.where.items())


@dataclass(frozen=True)
class Verdict:
    """worst: the highest ratio of the cases that a bar is about, and `case`, which that
    was; None if there was none."""

    bar: str
    bound: float
    worst: float | None
    case: str

    @property
    def holds(self) -> bool:
        return self.worst is not None and self.worst <= self.bound


def beside(contender: str) -> Ratio:
    """Our time over that of one contender."""
    return lambda outcome: outcome.get_ratio(contender)


def best_peer(outcome: Outcome) -> float | None:
    return outcome.get_ratio(outcome.get_best("peer"))


def written_out(outcome: Outcome) -> float | None:
    """The same for a mask that is handed out as a view, and copied."""
    return outcome.get_ratio(outcome.get_best("peer"), "written out")


def bar(
    name: str,
    bound: float,
    ratio: Ratio | str,
    workload: str,
    framework: str | None = None,
    **place: int,
) -> Bar:
    """A bar for one workload. ratio: one, or the contender that our time is put over."""
    where = {"workload": workload, **place}
    where |= {"framework": framework} if framework else {}
    return Bar(name, bound, where, beside(ratio) if isinstance(ratio, str) else ratio)


STATIC, RING = "transformers static", "mlx-lm RotatingKVCache"
ONE, CHUNK, MASK = "one-token step", "chunk of 512", "mask, 512 rows"
WINDOW = {"heads": 8, "window": K, "wrapped": True}
BARS = (
    bar(f"{ONE}, kv, torch / {STATIC}", 1.0, STATIC, "step", "torch"),
    bar(f"{ONE}, kv, mlx / mlx-lm KVCache", 1.0, "mlx-lm KVCache", "step", "mlx"),
    bar(
        f"{ONE}, window 1,024, wrapped, torch / {STATIC}",
        *(0.05, STATIC, "window step", "torch"),
        **WINDOW,
    ),
    bar(
        f"{CHUNK}, window 4,096, wrapped, mlx / {RING}",
        *(0.25, RING, "window chunk", "mlx"),
        **{"window": 4 * K, "wrapped": True},
    ),
    bar(f"{CHUNK}, kv at 4k / best peer", 1.0, best_peer, "chunk"),
    bar(f"{CHUNK}, kv at 4k / plain copy", 1.5, "plain copy", "chunk"),
    bar(f"{MASK} / best peer", 0.7, best_peer, "mask"),
    bar(f"{MASK}, mlx, written out / best peer", 0.7, written_out, "mask", "mlx"),
    bar("mask of a pool, 512 rows / best peer", 0.7, best_peer, "unified mask", rows=512),
    bar("mask of a pool, 1 row / best peer", 1.05, best_peer, "unified mask", rows=1),
    bar(
        f"step of {SEQUENCES} sequences, larger pools / {SMALLEST:,} cells",
        *(1.3, SMALL_POOL, "unified step"),
    ),
    bar("attention through tables / best peer", 1.05, best_peer, "paged step", "torch"),
    *(
        bar(f"batch: {name} / best peer", bound, best_peer, f"batch {name}", **place)
        for name, bound, place in (
            ("step", 1.05, {}),
            ("mask", 1.05, {}),
            ("filter", 0.5, {}),
            ("extend", 0.5, {"room": True}),
            ("extract", 0.5, {}),
        )
    ),
)


def judge(outcomes: Sequence[Outcome], every: bool) -> list[Verdict]:
    """A verdict on each bar that some outcome is about. every: also on those that none is
    about, because a package is missing, or has got another name."""
    verdicts = []
    for bar in BARS:
        ratios = [
            (ratio, outcome.case.describe())
            for outcome in outcomes
            if bar.concerns(outcome) and (ratio := bar.ratio(outcome)) is not None
        ]
        if ratios:
            verdicts.append(Verdict(bar.name, bar.bound, *max(ratios)))
        elif every:
            verdicts.append(Verdict(bar.name, bar.bound, None, "nothing was measured"))
    return verdicts
