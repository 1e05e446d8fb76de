"""Operations at random, on a trie with a tiny limit and on a session.

There is a leak if, in the second half, there are 1.5 times as many live snapshots (that
the garbage collector finds) or bytes as in the first; if the process grows after the
first quarter; if at any time the open snapshots take other bytes than are counted, or
there are closed ones; or if anything is left after free.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ci.bench.prefixes.shared import CONV, DELTA, DIM, FORM, STATE, open_layer
from lockstep.harness.backends.backend import Backend
from lockstep.impl.prefix.session import Session
from lockstep.impl.prefix.trie import Trie
from lockstep.impl.shared.memory import Snapshot

Sample = dict[str, float]

LIMIT = 8_000
"""Bytes of the trie, at most."""

SAMPLES = 100
GROWTH = 1.5
"""How much more there may be in the second half than in the first: limits vary."""

MEGABYTES = 4.0
"""By how much the process may grow after the first quarter, as its allocator likes."""

LONG = 60
"""Tokens of a prompt, at most."""


class Walk:
    """Operations at random on a trie or a session.

    texts: what was asked lately. end: how many tokens the open request has; None if none
    is open. read: how many of them the layers have.
    """

    def __init__(self, backend: Backend, limited: bool, seed: int) -> None:
        window = 8 if limited else 1 << 10  # a session goes back only while it has room
        self.layers = [
            open_layer(backend, "kv", **FORM),
            open_layer(backend, "rotating", **{**FORM, "window": window}),
        ]
        if limited:
            self.layers.append(open_layer(backend, "state", **STATE))
        self.limited = limited
        self.cache: Any = Trie(self.layers, LIMIT) if limited else Session(self.layers)
        self.random = random.Random(seed)
        self.texts: list[list[int]] = [[]]
        self.end: int | None = None
        self.read = 0
        make = backend.arrays.from_numpy
        self.array = make(np.ones((1, 1, 2 * LONG, DIM), np.float32), "float32")
        shapes = CONV, DELTA
        self.state = [make(np.ones(shape, np.float32), "float32") for shape in shapes]

    def step(self) -> None:
        """One operation."""
        luck = self.random.random()
        if self.end is None:
            if luck < 0.005:
                self.cache.free()
            elif luck < 0.05 and self.limited:
                self.cache.set_limit(self.random.randrange(LIMIT))
            else:
                self.begin()
        elif luck < 0.3:
            self.stop()
        elif luck < 0.5 and self.end < LONG:
            count = self.random.randint(1, 5)
            self.cache.extend([self.random.randrange(4) for _ in range(count)])
            self.end += count
        elif luck < 0.52 and self.limited:
            self.cache.set_limit(self.random.randrange(LIMIT))
        elif self.read < self.end:
            self.feed(self.random.randint(self.read + 1, self.end), len(self.layers))

    def begin(self) -> None:
        text = self.random.choice(self.texts)
        more = [self.random.randrange(4) for _ in range(self.random.randint(1, 12))]
        text = [*text[: self.random.randint(0, len(text))], *more][-LONG:]
        points = self.random.sample(range(1, LONG), 2) if self.limited else []
        self.end, self.read = len(text), len(text) - len(self.cache.begin(text, points))
        self.texts = [*self.texts, text][-30:]

    def feed(self, end: int, layers: int) -> None:
        count = end - self.read
        for layer in self.layers[: min(layers, 2)]:
            layer.update(self.array[:, :, :count], self.array[:, :, :count])
        for layer in self.layers[2:layers]:
            for length in layer.boundaries(count):
                layer.write(*self.state, length)
        self.read = end

    def stop(self) -> None:
        """Closes the request; or cancels it, perhaps after a pass that broke off."""
        assert self.end is not None
        luck = self.random.random()
        if luck < 0.1 and self.read < self.end:
            self.feed(self.end, self.random.randint(1, len(self.layers) - 1))
        if luck < 0.3:
            self.cache.cancel()
        else:
            self.cache.close()
        self.end = None

    def sample(self) -> Sample:
        """Counts what is there once no request is open.

        unknown: bytes of open snapshots that are not counted. closed: closed snapshots
        that somebody still holds.
        """
        if self.end is not None:
            self.stop()
        snapshots = [each for each in gc.get_objects() if type(each) is Snapshot]
        opened = [each for each in snapshots if each.memory or each.arrays is not None]
        size = sum(each.get_size() for each in opened)
        counted = self.cache.count_bytes()
        found = {"snapshots": len(snapshots), "closed": len(snapshots) - len(opened)}
        found |= {"bytes": counted, "unknown": size - counted}
        return {**found, "MB": get_memory()}


@dataclass(frozen=True)
class Found:
    """The result of a walk. flat: there is no leak. last: the sample after free."""

    flat: bool
    samples: list[Sample]
    last: Sample


def get_memory() -> float:
    """Megabytes of this process that are in memory."""
    command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
    status = Path("/proc/self/statm")
    if status.exists():
        pages = int(status.read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return int(subprocess.check_output(command, text=True)) * 1_024 / 1e6


def is_flat(samples: Sequence[Sample]) -> bool:
    """Whether there is no leak, before free."""
    middle, early = len(samples) // 2, samples[len(samples) // 4]
    for name in ("snapshots", "bytes"):
        numbers = [each[name] for each in samples]
        if sum(numbers[-middle:]) > GROWTH * sum(numbers[:middle]):
            return False
    if any(each["unknown"] or each["closed"] for each in samples):
        return False
    return samples[-1]["MB"] - early["MB"] < MEGABYTES


def take(backend: Backend, limited: bool, seed: int, operations: int) -> Found:
    """All operations, on a trie or on a session."""
    gc.collect()
    gc.freeze()  # what is there already need not be looked through at every sample
    walk, samples = Walk(backend, limited, seed), []
    for number in range(1, operations + 1):
        walk.step()
        if number % max(1, operations // SAMPLES) == 0:
            samples.append({"operations": number, **walk.sample()})
    walk.cache.free()
    last = walk.sample()
    flat = is_flat(samples) and last["snapshots"] == last["bytes"] == 0
    return Found(flat, samples, last)
