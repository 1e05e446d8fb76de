"""Codes of tokens: vectors of +1 and -1 that differ much from each other."""

from __future__ import annotations

import numpy as np

from lockstep.harness.core.errors import UsageError
from lockstep.impl.probe.arrays import Array

# Length of a code → an irreducible polynomial over GF(2) whose degree is the binary
# logarithm of the length.
POLYNOMIALS = {64: 0x43, 128: 0x83, 256: 0x11B}


def get_capacity(length: int) -> int:
    """Returns how many codes of a length there are."""
    return 2 * length**2


def choose_length(count: int) -> int:
    """Returns the length of codes for so many tokens.

    Raises:
        UsageError: there are not so many codes.
    """
    for length in POLYNOMIALS:
        if count <= get_capacity(length):
            return length
    most = get_capacity(max(POLYNOMIALS))
    raise UsageError(
        f"the probe would have {count:,} tokens; at most {most:,} have codes. Lower"
        " --content, --context, --layers or --heads"
    )


def make_codes(count: int, length: int) -> Array:
    """Returns the first codes of a length.

    Each code is a codeword of the dual of the extended BCH code that corrects two errors
    (MacWilliams and Sloane, The Theory of Error-Correcting Codes, chapter 15): a sum of
    bits of x, bits of x³ in GF(length), and 1, at each element x. The product of two
    codes is -length if one is the negative of the other, and otherwise at most
    2 * sqrt(length) (64, 256) or sqrt(2 * length) (128).
    """
    degree = length.bit_length() - 1
    elements = np.arange(length)
    cubes = multiply(elements, multiply(elements, elements, length), length)
    bits = np.arange(degree)[:, None]
    functions = np.vstack(
        [elements >> bits & 1, cubes >> bits & 1, np.ones_like([cubes])]
    )
    chosen = np.arange(count)[:, None] >> np.arange(2 * degree + 1) & 1
    sums = chosen.astype(np.float32) @ functions.astype(np.float32)
    return 1 - 2 * (sums % 2)


def multiply(left: Array, right: Array, length: int) -> Array:
    """Multiplies elements of GF(length), whose bits are coefficients of polynomials."""
    product = np.zeros_like(left)
    for bit in range(length.bit_length() - 1):
        product ^= left * (right >> bit & 1)
        left = left << 1
        left ^= POLYNOMIALS[length] * (left >= length)
    return product
