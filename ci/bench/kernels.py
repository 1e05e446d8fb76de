"""Measures the Triton kernels against the bandwidth of the memory, on CUDA.

    python ci/bench/kernels.py [--json FILE]

Each piece of work is captured in a CUDA graph, so that only the device is timed, by
events around replays; ours and the limit take turns, and the median of the rounds' ratios
counts. The limit is what torch takes to move the same bytes without a cache around it.
Exit status 1 if a bar is missed, 2 without a GPU that has 12 GB free.

* put: K and V of a chunk for all layers, into neighbouring and into scattered cells,
  beside a plain copy of as many bytes.
* mask: beside filling it.
* turn, save: of scattered cells of all layers, beside a plain copy of as many bytes.
* step: one token for each of many sequences, changes of the table and the mask included,
  beside index_copy_ for K and V of each layer.
* whole steps of 1, 64 and 256 sequences, the host's work included: eager, and as a CUDA
  graph. There is no bar.

A step's few bytes stay in the cache of the device (50 MB on an H100), and what limits it
is the number of launches, not the memory. Each row says what limits it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import click  # noqa: E402
import torch  # noqa: E402

from ci.bench.options import JSON, print_table  # noqa: E402
from ci.bench.speed.kernels import (  # noqa: E402
    Case,
    Form,
    Work,
    list_cases,
    measure_steps,
)
from lockstep.impl.torch.kernels import choose  # noqa: E402

Timer = Callable[[Work], float]
"""Microseconds for a piece of work."""

ROUNDS, REPLAYS = 15, 20

ROOM = 12 << 30
"""Bytes of the device."""


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
