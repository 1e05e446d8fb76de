"""Keys of prefixes: one digest per full unit of tokens, chained to the digest before."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

DIGEST = 16
"""Bytes of a key. Equal keys of different prefixes would show one user the tokens of
another, so keys are cryptographic."""


class PrefixHash:
    """The keys of the growing tokens of one request.

    Args:
        unit: number of tokens from one key to the next.
        namespace: a name on which K and V depend in addition to the tokens, or None.

    Attributes:
        keys: the key of the first `unit` tokens, of the first 2 * `unit`, ….
    """

    def __init__(self, unit: int, namespace: str | None) -> None:
        self.unit = unit
        self.keys: list[bytes] = []
        name = b"" if namespace is None else b"=" + namespace.encode()
        self.seed = blake2b(name, digest_size=DIGEST).digest()

    def extend(self, tokens: Sequence[int]) -> list[bytes]:
        """Hashes new tokens.

        Args:
            tokens: all tokens of the request. Tokens that already have a key must not
                have changed.

        Returns:
            `keys`.
        """
        keys, size = self.keys, 8 * self.unit
        first = len(keys) * self.unit
        data = array("q", tokens[first:]).tobytes()
        key = keys[-1] if keys else self.seed
        for begin in range(0, len(data) - size + 1, size):
            key = blake2b(key + data[begin : begin + size], digest_size=DIGEST).digest()
            keys.append(key)
        return keys

    def cut(self, length: int) -> None:
        """Forgets the keys beyond the first `length` tokens."""
        del self.keys[length // self.unit :]
