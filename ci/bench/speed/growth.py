"""Measures how a one-token pass on four sequences grows with the pool.

The pass is announced, put and got in one layer, the mask included, evaluated, with a pool
of 4k and of 64k cells. The rows see the same number of tokens in both, so the time should
be the same. Measured in one process, interleaved; the ratio of the medians counts.

Two ways to have a larger pool with the same visible range:

* `full`: four sequences that fill the pool, of which a window of 256 is seen. Nothing is
  evicted: memory is as large as the capacity.
* `empty`: 256 tokens of each sequence in a pool that is otherwise free.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Simplest

SEQUENCES, WINDOW, HEADS, DIM = 4, 256, 8, 64
SMALL, LARGE = 1 << 12, 1 << 16
FILL = 512
"""Rows of a pass while the pool is filled."""

ROUNDS, STEPS = 15, 40
BOUND = 1.5


class Decoding:
    """Four sequences that get one token each, in a pool of `cells`."""

    def __init__(self, backend: Backend, cells: int, tokens: int) -> None:
        self.arrays = backend.arrays
        rules = CONTRACTS["unified"]
        declared = backend.contracts["unified"]["swa"]
        config = rules.draw_config(Simplest(), "swa", declared)
        config |= {"window": WINDOW, "sequences": SEQUENCES, "batch": FILL}
        config |= {"heads": HEADS, "key_dim": DIM, "value_dim": DIM, "poison": False}
        # A memory as large as the capacity keeps everything.
        config |= {"kind": "swa-memory", "capacity": cells // SEQUENCES}
        config |= {"memory": cells // SEQUENCES}
        self.cache = backend.open(config)
        self.ends = [0] * SEQUENCES
        self.inputs = {rows: self.make(rows) for rows in (SEQUENCES, FILL)}
        while self.ends[0] < tokens:
            part = min(FILL // SEQUENCES, tokens - self.ends[0])
            self.step(part)

    def make(self, rows: int) -> tuple[Any, Any]:
        array = np.ones((1, HEADS, rows, DIM), np.float32)
        keys = self.arrays.from_numpy(array, "float32")
        return keys, self.arrays.from_numpy(array, "float32")

    def step(self, part: int = 1) -> None:
        """`part` tokens for each sequence, as a model's loop does it in one layer."""
        positions, sequences = [], []
        for owner, end in enumerate(self.ends):
            positions += range(end, end + part)
            sequences += [owner] * part
            self.ends[owner] += part
        self.cache.forward(positions, sequences, (), (), False)
        rows = len(positions)
        if rows not in self.inputs:
            self.inputs[rows] = self.make(rows)
        self.cache.put(0, *self.inputs[rows])
        keys, _, mask = self.cache.get(0)
        self.arrays.to_numpy(mask)
        self.arrays.to_numpy(keys[:, :, -1:])

    def time(self) -> float:
        """Microseconds a step; then the tokens are taken back, so that all is as it
        was."""
        ends = list(self.ends)
        start = time.perf_counter()
        for _ in range(STEPS):
            self.step()
        seconds = time.perf_counter() - start
        for owner, end in enumerate(ends):
            self.cache.remove(owner, end, None)
        self.ends = ends
        return seconds / STEPS * 1e6


def measure(backend: Backend, tokens: Callable[[int], int]) -> dict[str, float]:
    """Medians for both pools. tokens: of each sequence, for a number of cells."""
    pools = {cells: Decoding(backend, cells, tokens(cells)) for cells in (SMALL, LARGE)}
    times: dict[int, list[float]] = {cells: [] for cells in pools}
    for _ in range(ROUNDS):
        for cells, pool in pools.items():
            times[cells].append(pool.time())
    small, large = median(times[SMALL]), median(times[LARGE])
    return {"small": small, "large": large, "ratio": large / small}


CASES: dict[str, Callable[[int], int]] = {
    "full": lambda cells: cells // SEQUENCES - STEPS,
    "empty": lambda cells: WINDOW,
}


def make_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="one token for each of 4 sequences", title_justify="left")
    for column in ("backend", "pool", "4k cells", "64k cells", "ratio"):
        table.add_column(column, justify="left" if column < "a" else "right")
    for row in rows:
        times = [f"{row[size]:.0f} µs" for size in ("small", "large")]
        table.add_row(row["backend"], row["pool"], *times, f"{row['ratio']:.2f}")
    return table
