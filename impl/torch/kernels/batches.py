"""The kernel for the mask of a batch, over the columns of its pool.

Each number of the mask is written once; two numbers are read for each row. A step takes
one launch; plain torch operations take five launches and five arrays.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

COLUMNS = 1024
"""The number of columns of a program."""

UNSPECIALIZED = ("length", "begin", "width", "window")


@triton.jit(do_not_specialize=UNSPECIALIZED)
def see_kernel(
    firsts: tl.tensor,
    starts: tl.tensor,
    out: tl.tensor,
    length: tl.tensor,
    begin: tl.tensor,
    width: tl.tensor,
    window: tl.tensor,
    WRAPS: tl.constexpr,
    ADDITIVE: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Fills one block of columns of one query. For the arguments, see `Kernels.see`."""
    line = tl.program_id(1).to(tl.int64)
    row = line // length
    query = tl.maximum(tl.load(firsts + row) + line % length, 0)
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    age = query + tl.load(starts + row) - begin - at
    if WRAPS:  # the remainder has the sign of the age
        age = (age % window + window) % window
    seen = (age >= 0) & (age <= query)
    cells = out + line * width + at
    if ADDITIVE:
        content = tl.where(seen, 0.0, float("-inf")).to(out.dtype.element_ty)
        tl.store(cells, content, mask=at < width)
    else:
        tl.store(cells, seen.to(tl.uint8), mask=at < width)


def see(
    firsts: torch.Tensor,
    starts: torch.Tensor,
    length: int,
    span: tuple[int, int],
    window: int | None,
    like: torch.Tensor,
) -> torch.Tensor:
    """Launches `Kernels.see`."""
    rows, width = len(firsts), span[1] - span[0]
    out = like.new_empty((rows, 1, length, width))
    is_bool = out.dtype == torch.bool
    see_kernel[(triton.cdiv(width, COLUMNS), rows * length)](
        firsts,
        starts,
        out.view(torch.uint8) if is_bool else out,
        length,
        span[0],
        width,
        window or 1,
        WRAPS=window is not None,
        ADDITIVE=not is_bool,
        COLUMNS=COLUMNS,
        enable_fp_fusion=False,
    )
    return out
