"""Copies in wide numbers.

On the CPU, MLX copies between strided arrays number by number. A number of 8 bytes takes
as long as one of 2, so rows of tokens are copied as such: 512 tokens of 8 heads of 128 in
float16 go into a buffer in half the time, 64 to scattered cells too. On a GPU this has
nothing to give, and MLX does not scatter 8 bytes there. No gradient flows through it.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

Write = Callable[[mx.array, mx.array], mx.array]
"""(buffer, tokens) → the buffer with the tokens in it. It is written in place if nothing
else refers to it."""

CPU = mx.Device(mx.cpu)
FEW = 16
"""Tokens for which looking at them in another way takes longer than it saves."""


def write_wide(buffer: mx.array, tokens: mx.array, write: Write) -> mx.array:
    """Calls `write`, with both arrays viewed as 8-byte numbers where that is faster.

    Nothing is written into a buffer without numbers (values of dim 0, as latent attention
    has them): MLX 0.32.4 on CUDA gives the result of such an assignment no memory at all,
    and whoever reads or copies it later ends the process with SIGSEGV.

    Args:
        buffer: [.., room, dim].
        tokens: [.., tokens, dim].
        write: returns the buffer with the tokens in it.
    """
    if not buffer.size:
        return buffer
    few = tokens.shape[-2] < FEW
    if few or buffer.dtype != tokens.dtype or not can_widen(buffer):
        return write(buffer, tokens)
    written = write(buffer.view(mx.uint64), tokens.view(mx.uint64))
    return written.view(buffer.dtype)


def read_wide(
    buffer: mx.array, tokens: int, read: Callable[[mx.array], mx.array]
) -> mx.array:
    """Calls `read`, with the buffer viewed as 8-byte numbers where that is faster.

    Args:
        buffer: [.., room, dim].
        tokens: the number of tokens that are read.
        read: returns a part of the buffer.
    """
    if tokens < FEW or not can_widen(buffer):
        return read(buffer)
    return read(buffer.view(mx.uint64)).view(buffer.dtype)


def can_widen(buffer: mx.array) -> bool:
    """Whether its rows are whole numbers of 8 bytes, on the CPU."""
    row = buffer.shape[-1] * buffer.itemsize
    return row % 8 == 0 and mx.default_device() == CPU
