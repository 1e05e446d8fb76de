"""The hidden vectors of a probe, the embedding that makes them, and the LM head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import lcm
from typing import Any

import numpy as np

from lockstep.harness.backends.probe import Probe, get_probe
from lockstep.harness.core.errors import UsageError
from lockstep.impl.probe.arrays import Array
from lockstep.impl.probe.codes import choose_length, make_codes
from lockstep.impl.probe.finders import Finder

ECHO = 0.375
"""Share of a token's identity in its logits, if the probe echoes."""

SHARPNESS = 2.0
"""The factor of logits."""

MOST_MEGABYTES = 512
"""The largest embedding and LM head together, in float32."""


def make_tokens(config: Mapping[str, Any]) -> tuple[Probe, Array]:
    """Returns the probe of a config, and the codes of all ids. [ids, length]"""
    probe = get_probe(config)
    ids = probe.first_ids[-1]
    return probe, make_codes(ids, choose_length(ids))


class Hidden:
    """The layout of a hidden vector.

    A vector consists of the code of the token, a query for each head, a constant, and for
    each head the code of the token that the head has found.

    Attributes:
        size: the number of numbers.
        constant_value: the constant. If a head may find nothing, the norm of a vector
            depends on the found tokens; a large constant makes the difference small.
    """

    def __init__(
        self,
        probe: Probe,
        codes: Array,
        finders: Sequence[Finder],
        square: bool = False,
        least: int = 0,
        unit: int = 1,
    ) -> None:
        """Args:
        probe: the probe.
        codes: the codes of all ids. [ids, length]
        finders: the finders of all heads.
        square: whether `size` must be a square.
        least: the smallest `size`.
        unit: a divisor of `size`.
        """
        self.probe, self.codes, self.finders = probe, codes, finders
        self.constant_value = 64.0 if any(head.echoes for head in probe.heads) else 8.0
        length = codes.shape[1]
        widths = [length, *(len(finder.columns) for finder in finders), 1]
        ends = np.cumsum([0, *widths, *(length for _ in finders)])
        ranges = [slice(a, b) for a, b in pairwise(ends)]
        self.identity, *self.asks = ranges[: len(finders) + 1]
        self.constant, *self.answers = ranges[len(finders) + 1 :]
        unit = lcm(length, unit)
        self.size = int(-(-max(ends[-1], least) // unit) * unit)
        if square:
            self.size = int(np.ceil(np.sqrt(ends[-1]) / 8) * 8) ** 2
        megabytes = 8 * len(codes) * self.size >> 20
        if megabytes > MOST_MEGABYTES:
            raise UsageError(
                f"the probe would take {megabytes:,} MiB in float32; at most"
                f" {MOST_MEGABYTES} MiB are written. Lower --content, --context,"
                " --layers or --heads"
            )

    def make_embedding(self) -> Array:
        """Returns the hidden vectors of all ids. All but the last, which is zero, have
        one norm. [ids, size]"""
        first = self.probe.first_ids
        embedding = np.zeros((first[-1] + 1, self.size), np.float32)
        used = embedding[:-1]
        used[:, self.identity] = self.codes
        used[:, self.constant] = self.constant_value
        for head, (finder, numbers) in enumerate(
            zip(self.finders, self.asks, strict=True)
        ):
            used[:, numbers] = finder.idle
            used[first[head] : first[head + 1], numbers] = finder.asked
            if not finder.idle.any():  # such a head does not find the token itself
                used[:, self.answers[head]] = self.codes
                used[first[head] : first[head + 1], self.answers[head]] = 0
        usual = self.probe.usual
        used[: self.probe.content, self.asks[usual.head]] = self.finders[
            usual.head
        ].asked[usual.argument]
        return embedding

    def make_output(self) -> Array:
        """Returns the weights of the LM head. [ids, size]

        A logit is the product of a code and the sum of all codes that heads have found,
        less the token's own code for each head that was not asked.
        """
        output = np.zeros((len(self.codes) + 1, self.size), np.float32)
        echoes = ECHO if any(head.echoes for head in self.probe.heads) else 0
        output[:-1, self.identity] = (echoes + 1 - len(self.answers)) * self.codes
        for numbers in self.answers:
            output[:-1, numbers] = self.codes
        return SHARPNESS * output

    def compute_scale(self, found: int) -> float:
        """Returns the weight of an RMS norm that changes nothing, after so many heads
        have found a token."""
        length = self.codes.shape[1]
        asks = sum(float((finder.asked[0] ** 2).sum()) for finder in self.finders)
        square = length + asks + self.constant_value**2 + found * length
        return float(np.sqrt(square / self.size))
