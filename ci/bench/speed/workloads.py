"""Lists the workloads, in the sizes of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from ci.bench.speed.measure import Case, Contender

if TYPE_CHECKING:
    from ci.bench.speed.works import Works

K = 1 << 10
DIM = 128
HEADS = {"8 heads": 8, "grouped": 2}
"""Heads of K and V; grouped: one for each four heads of queries."""

CHUNK, SEQUENCES, PROMPTS = 512, 64, 16
VISIBLE = 32
"""Tokens that each of the sequences sees."""

SMALLEST = 4 * K
"""Cells of the smallest pool."""

SMALL_POOL = f"in {SMALLEST:,} cells"
"""The contender that does the same there."""

Contenders = list[Contender]
Sizes = Mapping[str, int | str | None]


def list_sizes(pools: Sequence[int]) -> Mapping[str, Sequence[Sizes]]:
    """Returns the sizes of all cases of each workload.

    Args:
        pools: the numbers of cells of the pools.
    """

    def cross(**values: Sequence[int | str | None]) -> list[Sizes]:
        rows = product(*values.values())
        return [dict(zip(values, row, strict=True)) for row in rows]

    windows = {"window": (K, 4 * K), "wrapped": (False, True)}
    batch = {"tokens": [4 * K], "window": (None, 4 * K)}
    widths = (K, 4 * K, 16 * K, 64 * K)
    return {
        "step": cross(context=(4 * K, 64 * K), length=[1]),
        "chunk": cross(context=[4 * K], length=[CHUNK]),
        "window step": cross(**windows, length=[1]),
        "window chunk": cross(**windows, length=[CHUNK]),
        "mask": cross(rows=[CHUNK], width=widths, form=("bool", "additive")),
        "unified mask": cross(rows=(1, CHUNK), width=widths),
        "unified step": cross(cells=pools, full=(True, False)),
        "prefix copy": cross(tokens=[4 * K]),
        "trim": cross(tokens=[4 * K]),
        "removal": cross(tokens=[4 * K], where=("tail", "middle")),
        "snapshot": cross(tokens=[16 * K], touched=(False, True)),
        "batch step": cross(**batch, uneven=(False, True)),
        "batch mask": cross(**batch),
        "batch filter": cross(**batch, dropped=("first", "middle", "last")),
        "batch extend": cross(**batch, room=(True, False)),
        "batch extract": cross(**batch),
        "paged step": cross(requests=[32], tokens=[4 * K]),
        "prefix begin": cross(prompts=[PROMPTS], tokens=[2 * K]),
    }


WORKLOADS = tuple(list_sizes(()))

METHODS = {
    **{"step": "extend", "chunk": "extend", "prefix copy": "share", "removal": "remove"},
    **dict.fromkeys(("window step", "window chunk"), "slide"),
    **{"unified step": "decode", "snapshot": "keep", "prefix begin": "begin"},
    "paged step": "attend_paged",
}
"""The method of `Works` that does a workload, if it has another name."""


def list_cases(
    framework: str, dtype: str, heads: int, works: Works, pools: Sequence[int]
) -> Iterator[Case]:
    """Yields all cases of one framework in one dtype and form.

    The heads make no difference for masks, and no cache on MLX attends through tables.
    """
    skipped = {"mask", "unified mask"} if heads != HEADS["8 heads"] else set()
    skipped |= {"paged step"} if framework != "torch" else set()
    for workload in [name for name in WORKLOADS if name not in skipped]:
        work = getattr(works, METHODS.get(workload, workload.replace(" ", "_")))
        for sizes in list_sizes(pools)[workload]:
            make = partial(work, **sizes)
            yield Case(workload, framework, dtype, heads, sizes, make, works.wait)
