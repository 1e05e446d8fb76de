"""Computes the keys of prefixes: a digest for each full unit of tokens and the last
digest."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

DIGEST = 16
"""The number of bytes of a key. The hash is cryptographic: if different prefixes had
equal keys, a user could see the tokens of another user."""


class PrefixHash:
    """The keys of the prefixes of a request, which may get more tokens.

    Args:
        unit: number of tokens from one key to the next.
        namespace: a name on which K and V also depend, or None.

    Attributes:
        keys: the keys of the first `unit` tokens, of the first 2 * `unit` tokens, ….
    """

    def __init__(self, unit: int, namespace: str | None) -> None:
        self.unit = unit
        self.keys: list[bytes] = []
        name = b"" if namespace is None else b"=" + namespace.encode()
        self.seed = blake2b(name, digest_size=DIGEST).digest()

    def extend(self, tokens: Sequence[int]) -> list[bytes]:
        """Hashes new tokens.

        Args:
            tokens: all tokens of the request; tokens covered by a key must be unchanged.

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
        """Removes the keys of prefixes longer than `length` tokens."""
        del self.keys[length // self.unit :]
