"""The numbers that the layers of a day compute for a text.

K, V and states are numbers that depend on all tokens so far, by 64 bits for each token,
so that whatever a layer holds can be compared with what computing from scratch gives.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ci.bench.prefixes.day import Tokens
from ci.bench.prefixes.shared import CONV, DELTA, DIM

Floats = npt.NDArray[np.float32]
Hashes = npt.NDArray[np.uint64]


def mix(words: Hashes) -> Hashes:
    """Changes each of 64 bits, on average every other (the end of splitmix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class Numbers:
    """The layers' results for a text: numbers that depend on all tokens so far.

    prefixes: 64 bits for each token and all before it.
    """

    def __init__(self, text: Tokens) -> None:
        places = np.arange(1, len(text) + 1, dtype=np.uint64) << np.uint64(32)
        self.prefixes = np.add.accumulate(mix(places | text.astype(np.uint64)))

    def get(self, layer: int, begin: int, end: int, count: int) -> Floats:
        """`count` numbers for each token, of 16 bits each, so that all are exact."""
        salt = np.arange(-(-count // 4), dtype=np.uint64) + np.uint64(1_000 * layer)
        words = mix(self.prefixes[begin:end, None] + mix(salt + np.uint64(1)))
        return words.view(np.uint16)[:, :count].astype(np.float32)

    def get_pair(self, layer: int, begin: int, end: int) -> tuple[Floats, Floats]:
        """K and V [1, 1, end - begin, DIM]."""
        both = self.get(layer, begin, end, 2 * DIM)[None, None]
        return both[..., :DIM], both[..., DIM:]

    def get_state(self, layer: int, end: int) -> tuple[Floats, Floats]:
        """conv and delta after `end` tokens."""
        if end == 0:
            return np.zeros(CONV, np.float32), np.zeros(DELTA, np.float32)
        row = self.get(layer, end - 1, end, 28)[0]
        return row[:12].reshape(CONV), row[12:].reshape(DELTA)
