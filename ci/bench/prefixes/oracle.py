"""The reuse that a day allows: of a small day exactly, of a whole one at most."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ci.bench.prefixes.day import Request, play
from lockstep.reference.kv import KVCache
from lockstep.reference.layers import Layer
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.state import StateCache
from lockstep.reference.trie import Trie

STRIDE, COMPARED = 64, 300
"""A small day has every 64th token of the first 300 requests: the reference compares
each request with everything that is stored."""


def make_small(requests: Sequence[Request]) -> list[Request]:
    """Makes requests that share as much with each other as those of a day do."""
    return [
        replace(
            request,
            prompt=request.prompt[::STRIDE],
            answer=request.answer[-len(request.prompt) % STRIDE :: STRIDE],
            checkpoints=tuple(-(-point // STRIDE) for point in request.checkpoints),
        )
        for request in requests[:COMPARED]
    ]


class Oracle:
    """The reference of a trie over the layers of `runner.MODEL`, without their arrays."""

    def __init__(
        self, limit: int | None, window: int, token_bytes: int, state_bytes: int
    ) -> None:
        layers = [
            Layer(KVCache(), token_bytes, 0),
            Layer(RotatingCache(window), token_bytes, 0),
            Layer(StateCache(), 0, state_bytes),
            Layer(KVCache(), token_bytes, 0),
        ]
        self.trie = Trie(layers, list, limit)

    def run(self, request: Request) -> int:
        """Returns how many tokens of a request it reuses."""
        remaining = self.trie.begin(request.prompt.tolist(), request.checkpoints)
        play(request, self.trie, lambda _, end: self.feed(end, None), self.feed)
        self.trie.close()
        return len(request.prompt) - len(remaining)

    def feed(self, end: int, layers: int | None) -> None:
        if end > self.trie.computed:
            self.trie.feed(end - self.trie.computed, layers)


def measure_repetition(requests: Sequence[Request]) -> tuple[int, int]:
    """Returns the tokens of prompts with which an earlier conversation begins, and how
    many tokens there are if what conversations begin with counts once."""
    texts: list[bytes] = []  # sorted, so that the most similar ones are neighbours
    repeated = different = 0
    for request in requests:
        for text, is_prompt in ((request.prompt, True), (request.text, False)):
            path = text.astype(">u4").tobytes()
            at = bisect_left(texts, path)
            near = texts[max(0, at - 1) : at + 1]
            common = max((count_common(path, other) for other in near), default=0)
            if is_prompt:
                repeated += min(common, len(text) - 1)
            else:
                different += len(text) - common
                texts.insert(at, path)
    return repeated, different


def count_common(left: bytes, right: bytes) -> int:
    """Returns how many tokens two texts have in common, from their beginning on."""
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size // 4
    a, b = (np.frombuffer(path, np.uint32, size // 4) for path in (left, right))
    return int((a != b).argmax())
