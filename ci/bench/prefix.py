"""Measures `Trie.begin` by the number of stored prompts and by the request.

    python ci/bench/prefix.py begin
    python ci/bench/prefix.py begin --stored 1000 --rounds 20 --json begin.json

Stored are prompts of 2,000 tokens, which begin with one of four system prompts. A request
of 500, 2,000 or 8,000 tokens repeats a stored prompt as far as both go ("repeat"), leaves
it inside an edge of the tree ("edge"), or has nothing in common with any ("miss"). It is
cancelled unread. With dim 1 the contents, 8 bytes a token, hardly count; with dim 8 begin
copies 64 bytes for each reused token that the layer does not hold yet. Sizes take turns,
with the garbage collector on. Exit status 1 if a median for 2,000 tokens is over 2 ms.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import click  # noqa: E402
import numpy as np  # noqa: E402

from ci.bench.options import JSON, load, print_table  # noqa: E402
from lockstep.harness.backends.backend import Backend  # noqa: E402
from lockstep.harness.contracts import CONTRACTS  # noqa: E402
from lockstep.impl.prefix.trie import Trie  # noqa: E402

MAX_MILLISECONDS, LENGTH = 2.0, 2_000
SYSTEMS = 200, 500, 1_000, 1_500
LENGTHS = 500, 2_000, 8_000
CASES = "repeat", "edge", "miss"


class Stored:
    """A trie of one kv layer with `count` prompts."""

    def __init__(self, backend: Backend, count: int, dim: int, seed: int) -> None:
        self.random, self.backend = np.random.default_rng(seed), backend
        contract, declared = CONTRACTS["layer"], backend.contracts["layer"]["kv"]
        config = contract.get_plain_config("kv", declared, backend.dtypes)
        form = {"heads": 1, "key_dim": dim, "value_dim": dim, "step": 256}
        self.layer = backend.open({**config, **form, "poison": False})
        self.trie = Trie([self.layer])
        ones = np.ones((1, 1, LENGTH, dim), np.float32)
        array = backend.arrays.from_numpy(ones, "float32")
        systems = [self.draw(length) for length in SYSTEMS]
        self.prompts: list[list[int]] = []
        for number in range(count):
            system = systems[number % len(systems)]
            self.prompts.append(system + self.draw(LENGTH - len(system)))
            new = array[:, :, : len(self.trie.begin(self.prompts[-1]))]
            self.finish(self.layer.update(new, new))
            self.trie.close()

    def draw(self, length: int, first: int = 0) -> list[int]:
        tokens: list[int] = self.random.integers(first, first + 50_000, length).tolist()
        return tokens

    def finish(self, arrays: Any) -> None:
        """Waits until the framework has computed the arrays."""
        for array in arrays or ():
            self.backend.arrays.to_numpy(array)

    def make_request(self, case: str, length: int) -> list[int]:
        number = int(self.random.integers(len(self.prompts)))
        system, common = SYSTEMS[number % len(SYSTEMS)], min(length, LENGTH)
        if case == "edge":
            lowest = system if system < common - 1 else 0
            common = int(self.random.integers(lowest + 1, common))
        common *= case != "miss"
        return self.prompts[number][:common] + self.draw(length - common, 60_000)

    def time_begin(self, case: str, length: int) -> float:
        """Returns the milliseconds of one `begin`."""
        tokens = self.make_request(case, length)
        start = time.perf_counter()
        self.trie.begin(tokens)
        self.finish(self.layer.view())
        milliseconds = (time.perf_counter() - start) * 1e3
        self.trie.cancel()
        return milliseconds


def measure(tries: dict[int, Stored], rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each request: (median, 99th percentile) in ms by stored prompts,
    and the ratio of the medians with most and with fewest prompts."""
    rows = []
    for length, case in product(LENGTHS, CASES):
        turns = [[trie.time_begin(case, length) for trie in tries.values()]
                 for _ in range(rounds)]  # fmt: skip
        percentiles = np.percentile(turns, (50, 99), axis=0).T.tolist()
        times = dict(zip(tries, percentiles, strict=True))
        ratio = times[max(tries)][0] / times[min(tries)][0]
        rows.append({"length": length, "case": case, "times": times, "ratio": ratio})
    return rows


@click.group()
def main() -> None:
    """Measures prefix caches."""


@main.command()
@click.option("--backend", type=click.Choice(["torch", "mlx"]), default="torch")
@click.option("--seed", default=0, show_default=True)
@click.option("--stored", multiple=True, type=int, default=[100, 1_000, 10_000])
@click.option("--dim", "dims", multiple=True, type=int, default=[1, 8])
@click.option("--rounds", default=100, show_default=True)
@JSON
def begin(
    backend: str,
    seed: int,
    stored: Sequence[int],
    dims: Sequence[int],
    rounds: int,
    path: Path | None,
) -> None:
    """The time of Trie.begin, by what is stored and by the request."""
    rows = []
    for dim in dims:
        opened = load(f"{backend}-cpu")
        tries = {count: Stored(opened, count, dim, seed) for count in stored}
        rows += [{"dim": dim, **row} for row in measure(tries, rounds)]
    columns = ["dim", "request", *(f"{count:,} stored" for count in stored), "ratio"]
    cells = [
        [
            str(row["dim"]),
            f"{row['length']:,} {row['case']}",
            *(f"{middle:.3f} / {high:.3f}" for middle, high in row["times"].values()),
            f"{row['ratio']:.2f}",
        ]
        for row in rows
    ]
    print_table("begin, ms: median / 99th percentile", columns, cells)
    if path:
        document = {"unit": "ms", "backend": backend, "rounds": rounds, "rows": rows}
        path.write_text(json.dumps(document, indent=1) + "\n")
    largest = max(stored)
    medians = [row["times"][largest][0] for row in rows if row["length"] == LENGTH]
    sys.exit(max(medians) > MAX_MILLISECONDS)


if __name__ == "__main__":
    main()
