"""A day's requests, one after the other, on a trie with a byte limit.

Four layers: kv, rotating (512), state, kv. What they compute are the numbers of
`numbers.py`: after every begin all that the layers hold is compared with them. On a small
day, what is reused and stored is compared with the reference; see `oracle.py`.

The time of updates includes the copies of what was put aside. All times are until the
arrays are there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import numpy as np

from ci.bench.prefixes.day import Request, play
from ci.bench.prefixes.numbers import Floats, Numbers
from ci.bench.prefixes.oracle import STRIDE, Oracle, make_small, measure_repetition
from ci.bench.prefixes.shared import DIM, FORM, STATE, open_layer, wait
from lockstep.harness.backends.backend import Backend
from lockstep.impl.prefix.trie import Trie

Times = dict[str, list[float]]

WINDOW = 512
MODEL: Sequence[tuple[str, dict[str, Any]]] = (
    ("kv", FORM),
    ("rotating", FORM),
    ("state", STATE),
    ("kv", FORM),
)
TOKEN_BYTES, STATE_BYTES = 4 * 2 * DIM, 4 * (12 + 16)
CUT_BYTES = 2 * TOKEN_BYTES
"""Bytes that a stored token takes in the layers that can be cut anywhere."""

CHUNK = 2_048
"""Tokens of a pass."""

COMPLAINTS = {
    "wrong": "tokens in the layers that are wrong",
    "other_reuse": "requests that reuse other than the reference",
    "other_bytes": "requests after which other bytes are stored than the reference's",
}
"""What must not be, by the name of its count."""


@contextmanager
def clock(times: Times, name: str) -> Iterator[None]:
    """Adds the milliseconds that this takes to the last entry of a list."""
    start = time.perf_counter()
    yield
    times[name][-1] += (time.perf_counter() - start) * 1e3


class Runner:
    """A trie, its layers, and a request.

    times: for each request the milliseconds in begin, extend, close and in the updates of
    the layers.
    """

    def __init__(self, backend: Backend, limit: int | None, window: int = WINDOW) -> None:
        self.backend, self.arrays, self.window = backend, backend.arrays, window
        self.layers = [
            open_layer(backend, kind, **fields, **extra)
            for kind, fields in MODEL
            for extra in ({"window": window} if kind == "rotating" else {},)
        ]
        self.trie = Trie(self.layers, limit)
        self.times: Times = {"begin": [], "extend": [], "close": [], "updates": []}

    def begin(self, request: Request) -> int:
        """Begins a request; returns the number of reused tokens."""
        self.numbers, prompt = Numbers(request.text), request.prompt.tolist()
        for times in self.times.values():
            times.append(0.0)
        with clock(self.times, "begin"):
            remaining = self.trie.begin(prompt, request.checkpoints)
            for layer in self.layers:
                wait(self.backend, layer.view())
        self.computed = len(prompt) - len(remaining)
        if list(remaining) != prompt[self.computed :]:
            raise SystemExit("begin returned what is not the end of the request")
        return self.computed

    def run(self, request: Request) -> int:
        """Runs a request from begin to close; how many tokens are reused."""
        reused = self.begin(request)
        self.finish(request)
        return reused

    def finish(self, request: Request) -> None:
        play(request, self, self.feed, self.feed_some)
        self.close(request)

    def extend(self, tokens: Sequence[int]) -> None:
        with clock(self.times, "extend"):
            self.trie.extend(tokens)

    def close(self, request: Request) -> None:
        with clock(self.times, "close"):
            if request.stop:
                self.trie.cancel()
            else:
                self.trie.close()

    def feed(self, begin: int, end: int) -> None:
        while self.computed < end:
            part = min(end, self.computed + CHUNK)
            self.feed_some(part, len(self.layers))
            self.computed = part

    def feed_some(self, end: int, layers: int) -> None:
        for number in range(layers):
            if MODEL[number][0] == "state":
                self.write(number, end)
            elif end > self.computed:
                pair = self.numbers.get_pair(number, self.computed, end)
                keys, values = (self.make(array) for array in pair)
                with clock(self.times, "updates"):
                    wait(self.backend, self.layers[number].update(keys, values))

    def write(self, number: int, end: int) -> None:
        layer, at = self.layers[number], self.computed
        for length in layer.boundaries(end - at) if end > at else ():
            at += length
            conv, delta = map(self.make, self.numbers.get_state(number, at))
            with clock(self.times, "updates"):
                layer.read()
                layer.write(conv, delta, length)
                wait(self.backend, layer.read())

    def make(self, array: Floats) -> Any:
        return self.arrays.from_numpy(array, "float32")

    def count_wrong(self) -> int:
        """Tokens of all layers that are not what computing them from scratch gives; a
        state counts as one."""
        return sum(self.count_wrong_in(number) for number in range(len(self.layers)))

    def count_wrong_in(self, number: int) -> int:
        layer, end = self.layers[number], self.computed
        if MODEL[number][0] == "state":
            held, right = layer.read(), self.numbers.get_state(number, end)
            same = [
                np.array_equal(self.arrays.to_numpy(a), b)
                for a, b in zip(held, right, strict=True)
            ]
            return int(layer.offset != end or not all(same))
        first = max(0, end - self.window) if MODEL[number][0] == "rotating" else 0
        if layer.offset != end:
            return max(1, end - first)
        if end == 0:
            return 0
        wrong = np.zeros(end - first, bool)
        right = self.numbers.get_pair(number, first, end)
        for held, array in zip(layer.view(), right, strict=True):
            content = self.arrays.to_numpy(held)
            if content.shape != array.shape:
                return end - first
            wrong |= (content != array)[0, 0].any(axis=1)
        return int(wrong.sum())


def run_day(runner: Runner, requests: Sequence[Request]) -> dict[str, Any]:
    """Runs all requests."""
    counts = dict.fromkeys(("asked", "reused", "wrong", "compared", "most_bytes"), 0)
    sizes = []
    for number, request in enumerate(requests, 1):
        reuse = runner.begin(request)
        counts["wrong"] += runner.count_wrong()
        counts["compared"] += 2 * reuse + min(reuse, WINDOW) + 1
        runner.finish(request)
        counts["asked"] += len(request.prompt)
        counts["reused"] += reuse
        sizes.append(runner.trie.count_bytes())
        if number % max(1, len(requests) // 10) == 0:
            click.echo(f"{number:,} of {len(requests):,} requests", err=True)
    counts["most_bytes"] = max(sizes, default=0)
    return {**counts, "bytes": sizes[:: max(1, len(sizes) // 100)]}


def compare(backend: Backend, requests: Sequence[Request]) -> dict[str, int]:
    """Runs a small day on a trie and on the reference, within a tenth of the bytes that
    its tokens take."""
    small = make_small(requests)
    limit = measure_repetition(small)[1] * CUT_BYTES // 10
    runner = Runner(backend, limit, WINDOW // STRIDE)
    oracle = Oracle(limit, WINDOW // STRIDE, TOKEN_BYTES, STATE_BYTES)
    counts = dict.fromkeys(("small", "possible", "other_reuse", "other_bytes"), 0)
    for request in small:
        reuse, possible = runner.run(request), oracle.run(request)
        counts["small"] += reuse
        counts["possible"] += possible
        counts["other_reuse"] += reuse != possible
        counts["other_bytes"] += runner.trie.count_bytes() != oracle.trie.count_bytes()
    return counts


def get_complaints(found: dict[str, Any]) -> list[str]:
    """Lists what must not be in what `run_day` and `compare` return."""
    return [f"{text}: {found[key]:,}" for key, text in COMPLAINTS.items() if found[key]]
