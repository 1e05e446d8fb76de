"""Computes the keys of prefixes: a digest for each full unit of tokens, with the extras
that cover it and the last digest."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

DIGEST = 16
"""The number of bytes of a key. The hash is cryptographic: if different prefixes had
equal keys, a user could see the tokens of another user."""

Extra = tuple[int, int, str]
"""The positions [first, end) that an extra covers, and its key."""


class PrefixHash:
    """The keys of the prefixes of a request, which may get more tokens.

    Args:
        unit: number of tokens from one key to the next.
        names: the namespace and the adapter, on which all K and V depend; each may be
            None.
        extras: the extras of the prompt, in the order of their positions.

    Attributes:
        keys: the keys of the first `unit` tokens, of the first 2 * `unit` tokens, ….
    """

    def __init__(
        self,
        unit: int,
        names: tuple[str | None, str | None] = (None, None),
        extras: Sequence[Extra] = (),
    ) -> None:
        self.unit, self.names, self.extras = unit, names, extras
        self.keys: list[bytes] = []
        # `repr` quotes each name, so that no two pairs of names have the same text.
        self.seed = blake2b(repr(names).encode(), digest_size=DIGEST).digest()

    def branch(self, length: int) -> PrefixHash:
        """Returns the keys of a new request with the first `length` tokens of this."""
        branch = PrefixHash(self.unit, self.names, self.extras)
        branch.keys = [*self.keys]
        branch.cut(length)
        return branch

    def list_extras(self, begin: int, end: int) -> list[Extra]:
        """Lists the extras that cover positions of [begin, end), cut at `end`."""
        return [
            (first, min(last, end), key)
            for first, last, key in self.extras
            if first < end and last > begin
        ]

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
            extras = self.list_extras(len(keys) * self.unit, (len(keys) + 1) * self.unit)
            covering = repr(extras).encode() if extras else b""
            text = key + data[begin : begin + size] + covering
            key = blake2b(text, digest_size=DIGEST).digest()
            keys.append(key)
        return keys

    def cut(self, length: int) -> None:
        """Removes the keys of prefixes longer than `length` tokens, and cuts extras."""
        del self.keys[length // self.unit :]
        self.extras = self.list_extras(0, length)
