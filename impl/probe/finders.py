"""Computes how a head finds a token: queries, keys, and the gain between them.

A head finds a token by rotated vectors (RoPE). RoPE turns each pair of numbers of K by
its position times the frequency of the pair, and those of Q by the asking position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lockstep.impl.probe.arrays import Array

GAP = 25.0
"""How much the score of the token that a head finds exceeds every other score. The
weight of other tokens is then below 1e-10 each."""


POWERS = (1.0, 0.75, 0.5, 0.25)
"""The powers of frequencies that may be weights of pairs."""


@dataclass(frozen=True)
class Finder:
    """The parts of a head.

    Attributes:
        columns: the numbers of the head that queries and keys use.
        asked: for each argument, the query of a token that asks for it.
            [arguments, columns]
        idle: the query of a token that asks another head, so that it finds itself: for
            each id, or for all ids. [ids or 1, columns]
        key: the matrix from the code of a token, or from 1, to its key.
            [columns, length of the code, or 1]
        gain: the factor of products of queries and keys.
    """

    columns: Array
    asked: Array
    idle: Array
    key: Array
    gain: float

    @property
    def peak(self) -> float:
        """The score of the token at the asked distance."""
        return self.gain * float((self.asked[0] ** 2).sum())


@dataclass(frozen=True)
class Rotary:
    """The pairs of a head that RoPE turns.

    Attributes:
        base: the base of the frequencies.
        size: the number of numbers of a head.
        adjacent: whether a pair is (2m, 2m + 1); if not, it is (m, m + size / 2).
    """

    base: float
    size: int
    adjacent: bool = False

    @property
    def frequencies(self) -> Array:
        return self.base ** (-np.arange(0, self.size, 2) / self.size)

    def list_columns(self, pairs: slice) -> Array:
        """Lists the first numbers of some pairs, and then their second numbers."""
        order = np.arange(self.size)
        halves = order.reshape(-1, 2).T if self.adjacent else order.reshape(2, -1)
        return halves[:, pairs].ravel()

    def find_distances(
        self, count: int, reach: int, pairs: slice = slice(None)
    ) -> Finder:
        """Makes a finder of the token at a distance.

        K is the same vector for all tokens before its rotation, so the score of a token
        depends on its distance alone: it is the sum over all pairs of
        weight * cos((distance - asked distance) * frequency). Weights that grow with the
        frequency separate neighbours better than equal weights, and far tokens worse.

        Args:
            count: the number of distances that can be asked for.
            reach: the number of positions that a head sees.
            pairs: the pairs to use.
        """
        frequencies = self.frequencies[pairs]
        angles = np.outer(np.arange(max(count, reach)), frequencies)
        cosines = np.cos(angles)
        weights = max(
            (frequencies**power for power in POWERS),
            key=lambda weights: separate(cosines @ weights) / np.sqrt(weights.sum()),
        )
        scores = cosines @ weights
        amplitudes = np.sqrt(weights)
        turned = np.hstack([cosines * amplitudes, -np.sin(angles) * amplitudes])
        key = np.concatenate([amplitudes, np.zeros_like(amplitudes)])
        return Finder(
            columns=self.list_columns(pairs),
            asked=turned[:count],
            idle=turned[:1],
            key=key[:, None],
            gain=GAP / (scores[0] - scores[1:].max()),
        )

    def find_contents(self, codes: Array, count: int, pairs: slice) -> Finder:
        """Makes a finder of a token that equals a tag.

        K is the code of the token, in pairs that hardly turn.

        Args:
            codes: the codes of all ids.
            count: the number of tags.
            pairs: the pairs to use: half as many as the numbers of a code.
        """
        length = codes.shape[1]
        return Finder(
            columns=self.list_columns(pairs),
            asked=codes[:count],
            idle=codes,
            key=np.eye(length),
            gain=2 * GAP / length,
        )


def separate(scores: Array) -> float:
    """Returns how much the token at the asked distance, or if it is not visible the next
    token, exceeds the other tokens.

    Args:
        scores: the scores at differences of 0, 1, … from the asked distance.
    """
    return float(min(scores[0] - scores[1:].max(), scores[1] - scores[2:].max()))
