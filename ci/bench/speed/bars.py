"""The speed limits for our caches on the CPU: maximal ratios of times within a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ci.bench.speed.measure import Outcome
from ci.bench.speed.workloads import SEQUENCES, SMALL_POOL, SMALLEST, K


class Bar:
    """The maximal allowed ratio of two contenders' times.

    Args:
        name: a description of the comparison.
        bound: the maximal ratio.
        to: the contender whose time is the divisor; None for the fastest peer.
        workload, framework, sizes: select the cases to which the limit applies.
        of: our contender, whose time is the dividend.
    """

    def __init__(
        self,
        name: str,
        bound: float,
        to: str | None,
        workload: str,
        framework: str | None = None,
        of: str = "ours",
        **sizes: int,
    ) -> None:
        self.name, self.bound, self.to, self.of = name, bound, to, of
        self.fields: dict[str, Any] = {"workload": workload, **sizes}
        if framework:
            self.fields["framework"] = framework

    def get_ratio(self, outcome: Outcome) -> float | None:
        """Returns the ratio; None if the bar does not apply or a contender is missing."""
        fields = {**vars(outcome.case), **outcome.case.sizes}
        if any(fields.get(name) != value for name, value in self.fields.items()):
            return None
        return outcome.get_ratio(self.to or outcome.get_best("peer"), self.of)


@dataclass(frozen=True)
class Verdict:
    """The result of judging a bar.

    Attributes:
        worst: the highest ratio, which occurs in `case`; None if nothing was measured.
    """

    bar: str
    bound: float
    worst: float | None
    case: str

    @property
    def holds(self) -> bool:
        return self.worst is not None and self.worst <= self.bound


STATIC, RING = "transformers static", "mlx-lm RotatingKVCache"
ONE, CHUNK, MASK = "one-token step", "chunk of 512", "mask, 512 rows"
RING_1K = {"heads": 8, "window": K, "wrapped": True}
RING_4K = {"window": 4 * K, "wrapped": True}
ROWS_512, ROW, TABLES = "mask of a pool, 512 rows", "mask of a pool, 1 row", "paged step"
LARGER = f"step of {SEQUENCES} sequences, larger pools / {SMALLEST:,} cells"
BARS = (
    Bar(f"{ONE}, kv, torch / {STATIC}", 1.0, STATIC, "step", "torch"),
    Bar(f"{ONE}, kv, mlx / mlx-lm KVCache", 1.0, "mlx-lm KVCache", "step", "mlx"),
    Bar(
        f"{ONE}, window 1,024, wrapped, torch / {STATIC}",
        *(0.05, STATIC, "window step", "torch"),
        **RING_1K,
    ),
    Bar(
        f"{CHUNK}, window 4,096, wrapped, mlx / {RING}",
        *(0.25, RING, "window chunk", "mlx"),
        **RING_4K,
    ),
    Bar(f"{CHUNK}, kv at 4k / best peer", 1.0, None, "chunk"),
    Bar(f"{CHUNK}, kv at 4k / plain copy", 1.5, "plain copy", "chunk"),
    Bar(f"{MASK} / best peer", 0.7, None, "mask"),
    Bar(f"{MASK}, mlx, written out / best peer", 0.7, None, "mask", "mlx", "written out"),
    Bar(f"{ROWS_512} / best peer", 0.7, None, "unified mask", rows=512),
    Bar(f"{ROW} / best peer", 1.05, None, "unified mask", rows=1),
    Bar(LARGER, 1.3, SMALL_POOL, "unified step"),
    Bar("attention through tables / best peer", 1.05, None, TABLES, "torch"),
    Bar("batch: step / best peer", 1.05, None, "batch step"),
    Bar("batch: mask / best peer", 1.05, None, "batch mask"),
    Bar("batch: filter / best peer", 0.5, None, "batch filter"),
    Bar("batch: extend / best peer", 0.5, None, "batch extend", room=True),
    Bar("batch: extract / best peer", 0.5, None, "batch extract"),
)


def judge(outcomes: Sequence[Outcome], every: bool) -> list[Verdict]:
    """Judges each bar that applies to an outcome.

    Args:
        outcomes: the measurements.
        every: whether to also judge bars that apply to no outcome, for example because a
            package is missing or was renamed. Such bars do not hold.
    """
    verdicts = []
    for bar in BARS:
        ratios = [
            (ratio, outcome.case.describe())
            for outcome in outcomes
            if (ratio := bar.get_ratio(outcome)) is not None
        ]
        if ratios:
            verdicts.append(Verdict(bar.name, bar.bound, *max(ratios)))
        elif every:
            verdicts.append(Verdict(bar.name, bar.bound, None, "nothing was measured"))
    return verdicts
