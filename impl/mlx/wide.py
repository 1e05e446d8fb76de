"""Copies rows of tokens as 8-byte numbers.

On the CPU, MLX copies between strided arrays number by number, and an 8-byte number takes
as long as a 2-byte number. With 8 heads of dim 128 in float16, a copy as 8-byte numbers
takes half the time, both for 512 tokens into a buffer and for 64 tokens into scattered
cells. On a GPU, such a copy is not faster, and MLX does not scatter 8-byte numbers. No
gradient flows through these functions.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

Write = Callable[[mx.array, mx.array], mx.array]
"""write(buffer, tokens) returns the buffer with the tokens in it, written in place if
nothing else refers to the buffer."""

Span = tuple[int, int]

CPU = mx.Device(mx.cpu)
FEW = 16
"""For fewer tokens, the two views cost more time than they save."""


def write_wide(
    buffer: mx.array, tokens: mx.array, write: Write, small: int = 0
) -> mx.array:
    """Calls `write`, with both arrays viewed as 8-byte numbers if that is faster.

    Nothing is written to an empty buffer (values of dim 0, as in latent attention). MLX
    0.32.4 on CUDA allocates no memory for the result of such an assignment, and reading
    or copying this result later ends the process with SIGSEGV.

    Args:
        buffer: [.., room, dim].
        tokens: [.., tokens, dim].
        write: write(buffer, tokens) returns the buffer with the tokens in it.
        small: the largest number of values that are written without conversion.
    """
    if not buffer.size:
        return buffer
    few = tokens.shape[-2] < FEW or tokens.size <= small
    if few or buffer.dtype != tokens.dtype or not can_widen(buffer):
        return write(buffer, tokens)
    written = write(buffer.view(mx.uint64), tokens.view(mx.uint64))
    return written.view(buffer.dtype)


def join_wide(buffer: mx.array, span: Span, tokens: mx.array) -> mx.array:
    """Concatenates tokens of a buffer and further tokens along the axis of tokens.

    The arrays are viewed as 8-byte numbers if that is faster. The slice is taken from the
    view, because MLX would copy a slice before viewing it.

    Args:
        buffer: [.., room, dim].
        span: the range of the tokens of the buffer.
        tokens: [.., tokens, dim], the further tokens.
    """
    begin, end = span
    if not can_widen(buffer):
        return mx.concatenate([buffer[..., begin:end, :], tokens], axis=-2)
    wide = buffer.view(mx.uint64)[..., begin:end, :]
    joined = mx.concatenate([wide, tokens.view(mx.uint64)], axis=-2)
    return joined.view(buffer.dtype)


def read_wide(
    buffer: mx.array, tokens: int, read: Callable[[mx.array], mx.array]
) -> mx.array:
    """Calls `read`, with the buffer viewed as 8-byte numbers if that is faster.

    Args:
        buffer: [.., room, dim].
        tokens: number of tokens to read.
        read: returns a part of the buffer.
    """
    if tokens < FEW or not can_widen(buffer):
        return read(buffer)
    return read(buffer.view(mx.uint64)).view(buffer.dtype)


def can_widen(buffer: mx.array) -> bool:
    """Returns whether a row has a multiple of 8 bytes and the device is the CPU."""
    row = buffer.shape[-1] * buffer.itemsize
    return row % 8 == 0 and mx.default_device() == CPU
