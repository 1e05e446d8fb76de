"""Compares the Triton kernels with the bandwidth of the memory, on CUDA.

    python ci/bench/kernels.py [--json FILE]

Each case is captured in a CUDA graph and timed by events around replays, so that only the
device is timed. Our kernel and the limit take turns; the result is the median of the
rounds' ratios. The limit is the time that torch needs to move the same bytes without a
cache. The exit status is 1 if a bar (the largest allowed ratio) is missed, and 2 without
a GPU with 12 GB of free memory.

* put: writes K and V of a chunk for all layers into contiguous cells, and into scattered
  cells; the limit is a plain copy of the same number of bytes.
* mask: makes a mask; the limit is filling the mask.
* turn, save: rotates or reads scattered cells of all layers; the limit is a plain copy of
  the same number of bytes.
* step: writes one token for each of many sequences, and updates the table and the mask;
  the limit is index_copy_ for K and V of each layer.
* whole steps of 1, 64 and 256 sequences, including the work of the host: eager, and as a
  CUDA graph. They have no bar.

The few bytes of a step stay in the L2 cache of the device (50 MB on an H100), so the
number of launches limits a step, not the memory. Each row names the resource that limits
the case.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import click  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from ci.bench.options import JSON, print_table  # noqa: E402
from lockstep.impl.shared.causal import Sizes  # noqa: E402
from lockstep.impl.torch.causal import CausalCache  # noqa: E402
from lockstep.impl.torch.graphs import FixedStep  # noqa: E402
from lockstep.impl.torch.kernels import Kernels, Table, choose  # noqa: E402
from lockstep.impl.torch.rope import Rope  # noqa: E402

Work = Callable[[], object]
Timer = Callable[[Work], float]
"""Returns the microseconds that a piece of work takes."""

ROUNDS, REPLAYS = 15, 20

ROOM = 12 << 30
"""The required free memory of the device, in bytes."""

COPIES = 4
"""Masks that are made in a row, in separate memory: one mask would stay in L2."""

LAUNCHES = "launches; its bytes stay in the L2 cache"


@dataclass(frozen=True)
class Form:
    """The sizes of the measured cases.

    Attributes:
        layers, heads, dim: the sizes of the model.
        cells: the number of cells of a pool.
        chunk: the number of tokens of a long pass.
        rows, columns: the shape of a mask.
        sequences: the number of sequences of a step.
        visible: the number of columns that a step sees.
    """

    layers: int = 32
    heads: int = 8
    dim: int = 128
    cells: int = 1 << 15
    chunk: int = 8192
    rows: int = 512
    columns: int = 1 << 16
    sequences: int = 64
    visible: int = 8192


@dataclass(frozen=True)
class Case:
    """A measured case.

    Attributes:
        bound: the maximal allowed ratio of the times.
        moved: the number of bytes that our kernel moves.
        limited_by: the resource that limits our kernel.
    """

    name: str
    ours: Work
    limit: Work
    moved: int
    bound: float | None = None
    limited_by: str = "memory"


# --- the work of the kernels ------------------------------------------------------------


def list_cases(form: Form, kernels: Kernels, like: torch.Tensor) -> Iterator[Case]:
    yield from list_copies(form, kernels, like)
    yield make_mask_case(form, kernels, like)
    yield from list_steps(form, kernels, like)


def list_copies(form: Form, kernels: Kernels, like: torch.Tensor) -> Iterator[Case]:
    pool = (form.layers, 1, form.heads)
    pools = tuple(like.new_zeros((*pool, form.cells, form.dim)) for _ in "kv")
    tokens = tuple(like.new_ones((*pool, form.chunk, form.dim)) for _ in "kv")
    others = tuple(map(torch.empty_like, tokens))
    rope = Rope((1e4,), form.layers, form.dim, like.device)
    source = np.random.default_rng(1)
    scattered = source.permutation(form.cells)[: form.chunk]
    moved = 4 * tokens[0].nbytes  # K and V, read and written

    def copy_pair() -> None:
        others[0].copy_(tokens[0])
        others[1].copy_(tokens[1])

    for name, cells in (("put", np.arange(form.chunk)), ("put, scattered", scattered)):
        index = kernels.place(cells, like.device)

        def put(index: Any = index) -> None:
            kernels.scatter(pools, tokens, index, False)

        yield Case(name, put, copy_pair, moved, 1 / 0.85)
    index = kernels.place(scattered, like.device)
    yield Case("save", lambda: kernels.gather(pools, index, False), copy_pair, moved)
    yield Case(
        "turn",
        lambda: kernels.turn(pools[0], index, rope, -3),
        lambda: others[0].copy_(tokens[0]),
        moved // 2,
    )


def make_mask_case(form: Form, kernels: Kernels, like: torch.Tensor) -> Case:
    """Makes the mask of a chunk after a long context of the same sequence.

    The cells of a second sequence alternate with the cells of this sequence.
    """
    positions, owners = np.divmod(np.arange(form.columns), 2)
    table = torch.from_numpy(np.stack((positions, 1 << owners))).to(like.device)
    high = np.arange(form.rows) + form.columns // 2 - form.rows
    limits = torch.from_numpy(np.stack((high * 0 + 1, high * 0, high))).to(like.device)
    outs = [like.new_empty((form.rows, form.columns)) for _ in range(COPIES)]

    def ours() -> None:
        for out in outs:
            kernels.mask(Table(table, True, True), limits, 0, out, alone=True)

    def limit() -> None:
        for out in outs:
            out.fill_(1)

    return Case("mask", ours, limit, COPIES * outs[0].nbytes, 1 / 0.8)


class Decoding:
    """A step that adds one token to each of several sequences."""

    def __init__(self, form: Form, kernels: Kernels, like: torch.Tensor) -> None:
        sizes = Sizes(form.sequences, form.cells // form.sequences, form.visible)
        options: dict[str, Any] = {"like": like, "mask": like, "kernels": kernels}
        self.form = form
        self.cache = CausalCache(sizes, form.layers, **options)
        self.position = form.visible // form.sequences - 1
        for owner in range(form.sequences):
            self.cache.forward(range(self.position), [owner] * self.position)
        shape = (form.layers, 1, form.heads, form.sequences, form.dim)
        self.tokens = like.new_ones(shape), like.new_ones(shape)
        self.step = FixedStep(self.cache, form.sequences, form.visible)

    def put_each(self) -> None:
        for layer, tokens in enumerate(zip(*self.tokens, strict=True)):
            self.step.put(layer, *tokens)

    def run(self) -> None:
        """Runs a whole step with a CUDA graph."""
        self.do_step(self.step.run)

    def run_eagerly(self) -> None:
        """Runs a whole step, with a launch for each layer and a launch for the mask."""
        self.do_step(self.put_and_get)

    def put_and_get(self) -> None:
        for layer, tokens in enumerate(zip(*self.tokens, strict=True)):
            self.cache.put(layer, *tokens)
            self.cache.get(layer)

    def do_step(self, work: Work) -> None:
        """Opens a pass, does the work, and removes the tokens of the pass.

        Removing tokens needs no work on the device.
        """
        rows = range(self.form.sequences)
        self.cache.forward([self.position] * len(rows), rows)
        work()
        for owner in rows:
            self.cache.remove(owner, self.position, None)


def list_steps(form: Form, kernels: Kernels, like: torch.Tensor) -> Iterator[Case]:
    decoding = Decoding(form, kernels, like)
    step, tokens = decoding.step, decoding.tokens
    step.capture(decoding.put_each)
    decoding.run()  # sets the inputs of a step
    pools = decoding.cache.keys, decoding.cache.values
    index = torch.arange(form.sequences, device=like.device) + form.visible

    def limit() -> None:
        for pool, content in zip(pools, tokens, strict=True):
            for layer in range(form.layers):
                pool[layer].index_copy_(2, index, content[layer])

    moved = 4 * tokens[0].nbytes + step.mask.nbytes
    for name, work in (
        ("step, layer by layer", decoding.put_each),
        ("step, all layers at once", lambda: step.put_all(*tokens)),
    ):
        ours = partial(step.execute, work)
        yield Case(name, ours, limit, moved, bound=1.5, limited_by=LAUNCHES)


# --- whole steps ------------------------------------------------------------------------


def time_step(step: Work, repeats: int, wait: Work) -> tuple[float, float]:
    """Returns the microseconds of a step: on the host, and until the device has
    finished."""
    wait()
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    issued = time.perf_counter()
    wait()
    end = time.perf_counter()
    return (issued - begin) / repeats * 1e6, (end - begin) / repeats * 1e6


def measure_steps(
    form: Form,
    kernels: Kernels,
    like: torch.Tensor,
    wait: Work,
    sequences: Sequence[int] = (1, 64, 256),
    rounds: int = 15,
    repeats: int = 20,
) -> list[dict[str, Any]]:
    """Measures whole steps, including the work of the host.

    Each step runs eagerly, with separate launches, and as one CUDA graph. The first round
    is not counted.

    Args:
        form: the sizes of the cases; `sequences` and `cells` are replaced.
        kernels: the measured kernels.
        like: an empty tensor with the device and dtype of K and V.
        wait: waits for the device.
        sequences: the numbers of sequences to measure.
        rounds: the number of counted rounds.
        repeats: the number of steps in a round.

    Returns:
        A row for each number of sequences and for each way (eager or graph), with medians
        in
        microseconds: "host_us" is the time on the host, "us" the time until the device
            has
        finished.
    """
    rows = []
    for count in sequences:
        sizes = replace(form, sequences=count, cells=form.visible)
        decoding = Decoding(sizes, kernels, like)
        decoding.step.capture(decoding.put_each)
        for way, step in (("eager", decoding.run_eagerly), ("graph", decoding.run)):
            times = [time_step(step, repeats, wait) for _ in range(rounds + 1)]
            host, whole = (median(column) for column in zip(*times[1:], strict=True))
            row = {"sequences": count, "way": way, "host_us": host, "us": whole}
            rows.append(row)
    return rows


# --- the kernels alone ------------------------------------------------------------------


def capture(work: Work) -> Work:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def time_device(replay: Work) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    replay()
    begin.record()
    for _ in range(REPLAYS):
        replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / REPLAYS * 1e3


def measure(
    cases: Iterator[Case], prepare: Callable[[Work], Work], timer: Timer, rounds: int
) -> Iterator[dict[str, Any]]:
    """Measures each case, and yields its row immediately."""
    for case in cases:
        ours, limit = prepare(case.ours), prepare(case.limit)
        times = [(timer(ours), timer(limit)) for _ in range(rounds)]
        us = median(time for time, _ in times)
        ratio = median(time / limit for time, limit in times)
        yield {
            "work": case.name,
            "us": us,
            "limit_us": median(limit for _, limit in times),
            "ratio": ratio,
            "gb_per_s": case.moved / us / 1e3,
            "limited_by": case.limited_by,
            "bound": case.bound,
            "holds": case.bound is None or ratio <= case.bound,
        }


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    columns = ["work", "ours", "limit", "ratio", "at most", "GB/s", "limited by"]
    cells = [
        [
            row["work"],
            *(f"{row[name]:.1f} µs" for name in ("us", "limit_us")),
            f"{row['ratio']:.2f}" + ("" if row["holds"] else " ✗"),
            "" if row["bound"] is None else f"{row['bound']:.2f}",
            f"{row['gb_per_s']:.0f}",
            row["limited_by"],
        ]
        for row in rows
    ]
    print_table("kernels on CUDA", columns, cells)


def save(path: Path | None, document: dict[str, Any]) -> None:
    """Writes the results so far, so that they are kept if the process is ended."""
    if path:
        path.write_text(json.dumps(document, indent=1) + "\n")


@click.command()
@JSON
def main(path: Path | None) -> None:
    """Measures the kernels."""
    if not torch.cuda.is_available():
        click.echo("torch finds no CUDA device here: not measured", err=True)
        sys.exit(2)
    free, _ = torch.cuda.mem_get_info()
    if free < ROOM:
        needed = f"{ROOM >> 30} GB are needed: not measured"
        click.echo(f"the device has {free / 2**30:.1f} GB free; {needed}", err=True)
        sys.exit(2)
    torch.set_grad_enabled(False)
    form, device = Form(), torch.device("cuda")
    like = torch.empty(0, dtype=torch.bfloat16, device=device)
    kernels = choose(device)
    rows: list[dict[str, Any]] = []
    document = {"form": vars(form), "rows": rows}
    for row in measure(list_cases(form, kernels, like), capture, time_device, ROUNDS):
        rows.append(row)
        save(path, document)
    steps = measure_steps(form, kernels, like, torch.cuda.synchronize)
    save(path, {**document, "steps": steps})
    print_rows(rows)
    for row in steps:
        times = f"{row['us']:.0f} µs, the host {row['host_us']:.0f}"
        click.echo(f"a step of {row['sequences']} sequences, {row['way']}: {times}")
    sys.exit(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    main()
