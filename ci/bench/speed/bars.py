"""The bars for our caches on the CPU: the largest allowed ratios of times in one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ci.bench.speed.measure import Outcome
from ci.bench.speed.workloads import SEQUENCES, SMALL_POOL, SMALLEST, K


@dataclass(frozen=True)
class Bar:
    """The largest allowed ratio of our time to the time of another contender.

    Attributes:
        name: a description of the comparison.
        bound: the largest ratio.
        to: the name of the contender whose time is the divisor; None for the fastest
            peer.
        workload: the workload to which the bar applies.
        fields: fields and sizes that select cases of this workload.
        of: the name of our contender, whose time is the dividend.
    """

    name: str
    bound: float
    to: str | None
    workload: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    of: str = "ours"

    def get_ratio(self, outcome: Outcome) -> float | None:
        """Returns the ratio; None if the bar does not apply or a contender is missing."""
        has = {**vars(outcome.case), **outcome.case.sizes}
        if not {**self.fields, "workload": self.workload}.items() <= has.items():
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
TORCH, MLX = {"framework": "torch"}, {"framework": "mlx"}
RING_1K = {"heads": 8, "window": K, "wrapped": True}
RING_4K = {"window": 4 * K, "wrapped": True}
ROWS_512, ROW = "mask of a pool, 512 rows", "mask of a pool, 1 row"
LARGER = f"step of {SEQUENCES} sequences, larger pools / {SMALLEST:,} cells"
RING_STEP = f"{ONE}, window 1,024, wrapped, torch / {STATIC}"
RING_CHUNK = f"{CHUNK}, window 4,096, wrapped, mlx / {RING}"
WRITTEN = f"{MASK}, mlx, written out / best peer"
BARS = (
    Bar(f"{ONE}, kv, torch / {STATIC}", 1.0, STATIC, "step", TORCH),
    Bar(f"{ONE}, kv, mlx / mlx-lm KVCache", 1.0, "mlx-lm KVCache", "step", MLX),
    Bar(RING_STEP, 0.05, STATIC, "window step", {**TORCH, **RING_1K}),
    Bar(RING_CHUNK, 0.25, RING, "window chunk", {**MLX, **RING_4K}),
    Bar(f"{CHUNK}, kv at 4k / best peer", 1.0, None, "chunk"),
    Bar(f"{CHUNK}, kv at 4k / plain copy", 1.5, "plain copy", "chunk"),
    Bar(f"{MASK} / best peer", 0.7, None, "mask"),
    Bar(WRITTEN, 0.7, None, "mask", MLX, "written out"),
    Bar(f"{ROWS_512} / best peer", 0.7, None, "unified mask", {"rows": 512}),
    Bar(f"{ROW} / best peer", 1.05, None, "unified mask", {"rows": 1}),
    Bar(LARGER, 1.3, SMALL_POOL, "unified step"),
    Bar("attention through tables / best peer", 1.05, None, "paged step", TORCH),
    Bar("batch: step / best peer", 1.05, None, "batch step"),
    Bar("batch: mask / best peer", 1.05, None, "batch mask"),
    Bar("batch: filter / best peer", 0.5, None, "batch filter"),
    Bar("batch: extend / best peer", 0.5, None, "batch extend", {"room": True}),
    Bar("batch: extract / best peer", 0.5, None, "batch extract"),
)


def judge(outcomes: Sequence[Outcome], every: bool) -> list[Verdict]:
    """Compares the outcomes with each bar that applies.

    Args:
        outcomes: the measurements.
        every: whether a bar that applies to no outcome counts as missed, for example
            because a package is missing or was renamed.
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
