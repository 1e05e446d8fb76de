"""The workloads: the work of an engine on its caches, in the sizes of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ci.bench.speed.measure import Case, Contender

if TYPE_CHECKING:
    from ci.bench.speed.side import Side

K = 1 << 10
DIM = 128
HEADS = {"8 heads": 8, "grouped": 2}
"""Heads of K and V; grouped: one for each four heads of queries."""

CHUNK = 512
SEQUENCES = 64
VISIBLE = 32
"""Tokens that each of the sequences sees."""

WORKLOADS = (
    "step",
    "chunk",
    "window step",
    "window chunk",
    "mask",
    "unified mask",
    "unified step",
    "prefix copy",
    "trim",
    "removal",
    "snapshot",
    "batch step",
    "batch mask",
    "batch filter",
    "batch extend",
    "batch extract",
    "paged step",
    "prefix begin",
)

SMALLEST = 4 * K
"""Cells of the smallest pool."""

SMALL_POOL = f"in {SMALLEST:,} cells"
"""The contender that does the same there."""

MOVED = 4 * K
KEPT = 16 * K
REQUESTS = 32
PROMPTS = 16

Make = Sequence[Contender]


def list_cases(
    framework: str, dtype: str, heads: int, side: Side, pools: Sequence[int]
) -> Iterator[Case]:
    """All cases of one framework in one dtype and form. pools: numbers of cells."""

    def make(
        workload: str, work: Callable[..., Make], **place: int | str | bool | None
    ) -> Case:
        return Case(
            workload,
            framework,
            dtype,
            heads,
            tuple(place.items()),
            lambda: work(*place.values()),
            side.wait,
        )

    for context in (4 * K, 64 * K):
        yield make("step", side.extend, context=context, length=1)
    yield make("chunk", side.extend, context=4 * K, length=CHUNK)
    for window in (K, 4 * K):
        for wrapped in (False, True):
            for name, length in (("window step", 1), ("window chunk", CHUNK)):
                place = {"window": window, "wrapped": wrapped, "length": length}
                yield make(name, side.slide, **place)
    if heads == HEADS["8 heads"]:  # masks do not depend on them
        for width in (K, 4 * K, 16 * K, 64 * K):
            for form in ("bool", "additive"):
                yield make("mask", side.mask, rows=CHUNK, width=width, form=form)
            for rows in (1, CHUNK):
                yield make("unified mask", side.unified_mask, rows=rows, width=width)
    for cells in pools:
        for full in (True, False):
            yield make("unified step", side.decode, cells=cells, full=full)
    yield make("prefix copy", side.share, tokens=MOVED)
    yield from list_batch_cases(make, side)
    yield make("trim", side.trim, tokens=MOVED)
    for where in ("tail", "middle"):
        yield make("removal", side.remove, tokens=MOVED, where=where)
    for touched in (False, True):
        yield make("snapshot", side.keep, tokens=KEPT, touched=touched)
    if framework == "torch":  # there is no released one on MLX
        yield make("paged step", side.attend_paged, requests=REQUESTS, tokens=4 * K)
    yield make("prefix begin", side.begin, prompts=PROMPTS, tokens=2 * K)


def list_batch_cases(make: Callable[..., Case], side: Side) -> Iterator[Case]:
    for window in (None, 4 * K):
        place = {"tokens": 4 * K, "window": window}
        for uneven in (False, True):
            yield make("batch step", side.batch_step, **place, uneven=uneven)
        yield make("batch mask", side.batch_mask, **place)
        for dropped in ("first", "middle", "last"):
            yield make("batch filter", side.batch_filter, **place, dropped=dropped)
        for room in (True, False):
            yield make("batch extend", side.batch_extend, **place, room=room)
        yield make("batch extract", side.batch_extract, **place)
