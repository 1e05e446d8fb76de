"""Launches every Triton kernel with odd sizes, and compares the results with plain torch
operations.

    compute-sanitizer --tool memcheck python ci/sanitize.py

The sizes are small, because a tool that watches every access is slow. Without a GPU, the
script runs in Triton's interpreter if TRITON_INTERPRET=1 is set. The exit status is 1 if
a result differs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402
import torch  # noqa: E402

from lockstep.impl.torch.kernels import Spans, Table  # noqa: E402
from lockstep.impl.torch.kernels.fused import TritonKernels  # noqa: E402
from lockstep.impl.torch.kernels.plain import PlainKernels  # noqa: E402
from lockstep.impl.torch.rope import Rope  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LAYERS, HEADS, CELLS = 2, 3, 71
SIZES = [(1, 2, 1), (37, 10, 3), (70, 128, 80)]
"""rows, dims of keys and values"""

MASKS = [(1, 1, 0), (5, 17, 3), (70, 1027, 1), (3, 2048, 5)]
"""rows, columns, first cell"""

BATCHES = [(1, 1, 7, None), (3, 2, 1030, None), (5, 1, 9, 9)]
"""rows, queries, columns, window"""

REQUESTS = [(1, 1, 1, 5), (3, 4, 48, 37), (2, 3, 128, 200)]
"""requests, query heads for each head, dims, positions"""

FEW = 4e-3
"""By how much attention in float16 may differ: it adds up in another order."""

Outcome = list[torch.Tensor]


def draw(*shape: int) -> torch.Tensor:
    content = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return content.to(DEVICE, torch.float16)


def put_and_copy(
    kernels: Any, rows: int, key_dim: int, value_dim: int, permuted: bool
) -> Outcome:
    """Puts rows into pools; returns the pools, and a copy of the rows from the pools."""
    pool = (LAYERS, 1, HEADS)
    shape = (value_dim, CELLS) if permuted else (CELLS, value_dim)
    pools = draw(*pool, CELLS, key_dim), draw(*pool, *shape)
    # The layout of a model: heads after rows.
    tokens = [draw(LAYERS, 1, rows, HEADS, dim) for dim in (key_dim, value_dim)]
    index = kernels.place(np.random.default_rng(rows).permutation(CELLS)[:rows], DEVICE)
    kernels.scatter(pools, [each.transpose(2, 3) for each in tokens], index, permuted)
    return [*pools, *kernels.gather(pools, index, permuted)]


def turn(kernels: Any, rows: int, dim: int) -> Outcome:
    keys = draw(LAYERS, 1, HEADS, CELLS, dim)
    index = kernels.place(np.random.default_rng(rows).permutation(CELLS)[:rows], DEVICE)
    kernels.turn(keys, index, Rope((1e4, 1e2), LAYERS, dim, DEVICE), -7)
    return [keys]


def mask(kernels: Any, rows: int, columns: int, begin: int, short: bool) -> Outcome:
    source = np.random.default_rng(columns)
    changes = source.integers(0, 50, (3, begin + columns))
    changes[0] = source.permutation(begin + columns)
    table = torch.zeros((2, begin + columns), dtype=torch.int64, device=DEVICE)
    kernels.update(table, torch.from_numpy(changes).to(DEVICE))
    limits = source.integers(0, 50, (3, rows))
    limits[0] = 1 << (limits[0] % 6)
    out = torch.empty((rows + 1, columns), dtype=torch.float16, device=DEVICE)
    given = Table(table, short, short), torch.from_numpy(limits).to(DEVICE)
    kernels.mask(*given, begin, out)
    return [table, out]


def see(
    kernels: Any, rows: int, length: int, columns: int, window: int | None
) -> Outcome:
    ends = torch.arange(columns - length, columns - length + rows, device=DEVICE)
    given = ends, torch.arange(rows, device=DEVICE), length, (0, columns), window
    likes = (torch.empty(0, dtype=each) for each in (torch.bool, torch.float16))
    return [kernels.see(*given, like.to(DEVICE)) for like in likes]


def attend(kernels: Any, requests: int, group: int, dim: int, positions: int) -> Outcome:
    """Computes attention through block tables; a block uses 4 of its 5 slots."""
    places = -(-positions // 4)
    tables = np.random.default_rng(dim).permutation(requests * places).astype(np.int32)
    ends = np.arange(positions, positions - requests, -1, np.int32)
    blocks, last = tables.reshape(requests, places), torch.from_numpy(ends)
    sent = (torch.from_numpy(blocks), last // 3, last)
    spans = Spans(*(each.to(DEVICE) for each in sent), 4, 5, positions)
    pools = [draw(1, HEADS, 5 * requests * places, each) for each in (dim, dim + 1)]
    return [kernels.attend(draw(1, HEADS * group, requests, dim), tuple(pools), spans)]


def list_works() -> Iterator[tuple[str, Callable[[Any], Outcome]]]:
    for rows, key_dim, value_dim in SIZES:
        for permuted in (False, True):
            sizes = rows, key_dim, value_dim, permuted
            yield f"put, copy {sizes}", lambda on, sizes=sizes: put_and_copy(on, *sizes)
        shape = rows, key_dim
        yield f"turn {shape}", lambda on, shape=shape: turn(on, *shape)
    for sizes in MASKS:
        for short in (False, True):
            shape = *sizes, short
            yield f"update, mask {shape}", lambda on, shape=shape: mask(on, *shape)
    for sizes in BATCHES:
        yield f"see {sizes}", lambda on, sizes=sizes: see(on, *sizes)
    for sizes in REQUESTS:
        yield f"attend {sizes}", lambda on, sizes=sizes: attend(on, *sizes)


def main() -> int:
    if DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        print("torch finds no CUDA device; set TRITON_INTERPRET=1 to run on the CPU")
        return 2
    fused, plain, failed = TritonKernels(), PlainKernels(), 0
    for name, work in list_works():
        pairs = zip(work(fused), work(plain), strict=True)
        most = FEW if name.startswith("attend") else 0.0
        same = all(
            torch.allclose(*map(torch.Tensor.float, pair), 0, most) for pair in pairs
        )
        failed += not same
        print(f"{name}: {'same' if same else 'DIFFERS'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
