"""A day's requests, one after the other, on a trie with a byte limit.

Four layers: kv, rotating (512), state, kv. What they compute are the numbers of
`numbers.py`: after every begin all that the layers hold is compared with them. The oracle
is the `Simulation` of `simulation.py`, which reuses all that the rules allow under the
same limit.

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

from ci.bench.prefixes.conversations import Kind
from ci.bench.prefixes.day import Request, play
from ci.bench.prefixes.numbers import Floats, Numbers
from ci.bench.prefixes.shared import DIM, FORM, STATE, open_layer, wait
from ci.bench.prefixes.simulation import Simulation
from lockstep.harness.backends.backend import Backend
from lockstep.impl.prefix.trie import Trie

Times = dict[str, list[float]]

WINDOW = 512
MODEL: Sequence[tuple[str, dict[str, Any]]] = (
    ("kv", FORM),
    ("rotating", {**FORM, "window": WINDOW}),
    ("state", STATE),
    ("kv", FORM),
)
TOKEN_BYTES, STATE_BYTES = 4 * 2 * DIM, 4 * (12 + 16)
KINDS = (
    Kind(TOKEN_BYTES),
    Kind(TOKEN_BYTES, WINDOW),
    Kind(state_bytes=STATE_BYTES),
    Kind(TOKEN_BYTES),
)
CHUNK = 2_048
"""Tokens of a pass."""

RATIO = 0.98
"""The least share of the oracle's reuse."""

COMPLAINTS = {
    "wrong": "tokens in the layers that are wrong",
    "other_reuse": "requests that reuse other than the oracle",
    "other_bytes": "requests after which other bytes are stored than the oracle's",
    "over": "requests after which there is more than the limit and what it protects",
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

    def __init__(self, backend: Backend, limit: int | None) -> None:
        self.backend, self.arrays = backend, backend.arrays
        self.layers = [open_layer(backend, kind, **fields) for kind, fields in MODEL]
        self.trie = Trie(self.layers, limit)
        self.times: Times = {"begin": [], "extend": [], "close": [], "updates": []}

    def begin(self, request: Request) -> int:
        """How many tokens are reused."""
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
        first = max(0, end - MODEL[number][1].get("window", end))
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

    def spoil(self) -> None:
        """One wrong number, in a layer that has read something: to see that it is
        seen."""
        if self.computed:
            keys, values = self.numbers.get_pair(0, self.computed - 1, self.computed)
            self.layers[0].trim(1)
            self.layers[0].update(self.make(keys + 1), self.make(values))


def simulate(requests: Sequence[Request], limit: int | None) -> tuple[int, int]:
    """How many tokens can be reused, and the bytes that are stored at the end."""
    simulation, reused = Simulation(KINDS, limit), 0
    for request in requests:
        reused += simulate_one(simulation, request)
        simulation.close()
    return reused, simulation.count_bytes()


def simulate_one(simulation: Simulation, request: Request) -> int:
    reuse = simulation.begin(request.prompt, request.checkpoints)
    play(request, simulation, lambda _, end: simulation.feed(end), simulation.feed)
    return reuse


def run_day(
    runner: Runner, requests: Sequence[Request], limit: int | None, plant: int = 0
) -> dict[str, Any]:
    """All requests. plant: in every so manyth a wrong number is put into a layer."""
    oracle = Simulation(KINDS, limit)
    counts = dict.fromkeys(("asked", "reused", "possible", "wrong", "compared"), 0)
    counts |= dict.fromkeys(("other_reuse", "other_bytes", "over", "most_bytes"), 0)
    sizes = []
    for number, request in enumerate(requests, 1):
        reuse = runner.begin(request)
        if plant and number % plant == 0:
            runner.spoil()
        counts["wrong"] += runner.count_wrong()
        counts["compared"] += 2 * reuse + min(reuse, WINDOW) + 1
        play(request, runner, runner.feed, runner.feed_some)
        runner.close(request)
        possible = simulate_one(oracle, request)
        oracle.close()
        size = runner.trie.count_bytes()
        counts["asked"] += len(request.prompt)
        counts["reused"] += reuse
        counts["possible"] += possible
        counts["other_reuse"] += reuse != possible
        counts["other_bytes"] += size != oracle.count_bytes()
        if limit is not None and size > limit:
            counts["over"] += size > max(limit, oracle.count_protected())
        counts["most_bytes"] = max(counts["most_bytes"], size)
        sizes.append(size)
        if number % max(1, len(requests) // 10) == 0:
            click.echo(f"{number:,} of {len(requests):,} requests", err=True)
    ratio = counts["reused"] / max(1, counts["possible"])
    return {**counts, "ratio": ratio, "bytes": sizes[:: max(1, len(sizes) // 100)]}


def get_complaints(found: dict[str, Any]) -> list[str]:
    """What is not as it must be in what `run_day` returns."""
    complaints = [
        f"{text}: {found[key]:,}" for key, text in COMPLAINTS.items() if found[key]
    ]
    if found["ratio"] < RATIO:
        complaints.append(f"reuse is {found['ratio']:.5f} of the oracle's, below {RATIO}")
    return complaints
