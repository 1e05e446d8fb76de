"""The time of Trie.begin, by how many prompts of 2,000 tokens are stored.

They begin with one of four system prompts (200, 500, 1,000, 1,500 tokens). A request has
500, 2,000 or 8,000 tokens and is a

* repeat: as far as it goes, or as far as they go, the tokens of a stored prompt;
* edge: parts from a stored prompt inside an edge of the tree;
* miss: has nothing in common with what is stored.

Between two measurements the request is cancelled, unread, so that there is a node where
it parted. One kv layer: with dim 1 its contents, 8 bytes for a token, hardly count; with
dim 8 begin copies 64 bytes for each reused token that the layer does not hold already.
Sizes are measured in turns, with the garbage collector on.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np

from ci.bench.prefixes.day import Tokens
from ci.bench.prefixes.shared import get_percentile, open_layer, wait
from lockstep.harness.backends.backend import Backend
from lockstep.impl.prefix.trie import Trie

MILLISECONDS = 2.0
"""The most that begin may take, by the median, for 2,000 tokens."""

LENGTH = 2_000
SYSTEMS = 200, 500, 1_000, 1_500
LENGTHS = 500, 2_000, 8_000
CASES = "repeat", "edge", "miss"


class Stored:
    """A trie that has `count` prompts."""

    def __init__(self, backend: Backend, count: int, dim: int, seed: int) -> None:
        self.random, self.backend = np.random.default_rng(seed), backend
        form = {"heads": 1, "key_dim": dim, "value_dim": dim}
        self.layer = open_layer(backend, "kv", **form)
        self.trie = Trie([self.layer])
        numbers = np.ones((1, 1, LENGTH, dim), np.float32)
        array = backend.arrays.from_numpy(numbers, "float32")
        systems = [self.draw(length) for length in SYSTEMS]
        self.prompts: list[Tokens] = []
        for number in range(count):
            system = systems[number % len(systems)]
            prompt = np.concatenate((system, self.draw(LENGTH - len(system))))
            self.prompts.append(prompt)
            left = len(self.trie.begin(prompt.tolist(), ()))
            new = array[:, :, :left]
            wait(backend, self.layer.update(new, new))
            self.trie.close()

    def draw(self, length: int, first: int = 0) -> Tokens:
        tokens = self.random.integers(first, first + 50_000, length)
        return tokens.astype(np.uint32)

    def make(self, case: str, length: int) -> list[int]:
        number = int(self.random.integers(len(self.prompts)))
        stored, system = self.prompts[number], SYSTEMS[number % len(SYSTEMS)]
        common = min(length, LENGTH)
        if case == "edge":
            lowest = system if system < common - 1 else 0
            common = int(self.random.integers(lowest + 1, common))
        if case == "miss":
            common = 0
        return [*stored[:common].tolist(), *self.draw(length - common, 60_000).tolist()]

    def time(self, case: str, length: int) -> float:
        """Milliseconds for one begin."""
        tokens = self.make(case, length)
        start = time.perf_counter()
        self.trie.begin(tokens, ())
        wait(self.backend, self.layer.view())
        end = time.perf_counter()
        self.trie.cancel()
        return (end - start) * 1e3


def measure(tries: dict[int, Stored], rounds: int) -> list[dict[str, Any]]:
    """Median and 99th percentile for each trie, and the ratio of the medians with most
    and least stored."""
    keys = [(length, case) for length in LENGTHS for case in CASES]
    times = {(*key, count): list[float]() for key in keys for count in tries}
    for _ in range(rounds):
        for length, case in keys:
            for count, trie in tries.items():
                times[length, case, count].append(trie.time(case, length))
    rows = []
    for key in keys:
        found = {count: times[*key, count] for count in tries}
        pairs = {count: (median(x), get_percentile(x)) for count, x in found.items()}
        ratio = pairs[max(tries)][0] / pairs[min(tries)][0]
        rows.append({"length": key[0], "case": key[1], "times": pairs, "ratio": ratio})
    return rows
