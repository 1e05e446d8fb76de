"""Measures the Triton kernels against the bandwidth of the memory, on CUDA.

    python ci/bench/kernels.py [--json FILE]

Each piece of work is captured in a CUDA graph, so that only the device is timed, by
events around replays; ours and the limit take turns, and the median of the rounds' ratios
counts. The limit is what torch takes to move the same bytes without a cache around it.
Exit status 1 if a bar is missed, 2 without a GPU. It takes 12 GB and about a minute.

* put: K and V of a chunk for all layers, into neighbouring and into scattered cells,
  beside a plain copy of as many bytes.
* mask: beside filling it.
* turn, save: of scattered cells of all layers, beside a plain copy of as many bytes.
* step: one token for each of many sequences, changes of the table and the mask included,
  beside index_copy_ for K and V of each layer. Also a whole step, the host's work
  included, for which there is no bar.

A step's few bytes stay in the cache of the device (50 MB on an H100), and what bounds it
is the number of launches, not the memory.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import click  # noqa: E402
import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table as Printed  # noqa: E402

from ci.bench.options import JSON  # noqa: E402
from ci.bench.speed.kernels import (  # noqa: E402
    Case,
    Decoding,
    Form,
    Work,
    list_cases,
)
from lockstep.impl.torch.kernels import Kernels, choose  # noqa: E402

Timer = Callable[[Work], float]
"""Microseconds for a piece of work."""

ROUNDS, REPLAYS = 15, 20


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
    """A row for each case, as soon as it is measured."""
    for case in cases:
        ours, limit = prepare(case.ours), prepare(case.limit)
        times = [(timer(ours), timer(limit)) for _ in range(rounds)]
        own = median(each for each, _ in times)
        ratio = median(each / other for each, other in times)
        yield {
            "work": case.name,
            "us": own,
            "limit_us": median(other for _, other in times),
            "ratio": ratio,
            "gb_per_s": case.moved / own / 1e3,
            "bound": case.bound,
            "holds": case.bound is None or ratio <= case.bound,
        }


def time_steps(form: Form, kernels: Kernels, like: torch.Tensor) -> float:
    """Microseconds from one step to the next until the device is done with it, as a
    model's loop without a model."""
    decoding = Decoding(form, kernels, like)
    decoding.step.capture(decoding.put_each)
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(REPLAYS):
            decoding.run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / REPLAYS)
    return median(times) * 1e6


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    table = Printed(title="kernels on CUDA", title_justify="left")
    for column in ("work", "ours", "limit", "ratio", "at most", "GB/s"):
        table.add_column(column, justify="left" if column == "work" else "right")
    for row in rows:
        bound = "" if row["bound"] is None else f"{row['bound']:.2f}"
        times = (f"{row[name]:.1f} µs" for name in ("us", "limit_us"))
        ratio = f"{row['ratio']:.2f}" + ("" if row["holds"] else " ✗")
        table.add_row(row["work"], *times, ratio, bound, f"{row['gb_per_s']:.0f}")
    Console().print(table)


def save(path: Path | None, document: dict[str, Any]) -> None:
    """Writes what there is so far: whoever ends this keeps it."""
    if path:
        path.write_text(json.dumps(document, indent=1) + "\n")


@click.command()
@JSON
def main(path: Path | None) -> None:
    """Measures the kernels."""
    if not torch.cuda.is_available():
        click.echo("torch finds no CUDA device here: not measured", err=True)
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
    whole = time_steps(form, kernels, like)
    save(path, {**document, "whole_step_us": whole})
    print_rows(rows)
    click.echo(f"a whole step, the host's work included: {whole:.0f} µs")
    sys.exit(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    main()
