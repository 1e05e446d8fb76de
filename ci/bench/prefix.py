"""Measures the speed and reuse of prefix caches, and whether they leak.

    python ci/bench/prefix.py begin
    python ci/bench/prefix.py day
    python ci/bench/prefix.py leaks

begin: the time of Trie.begin with 100, 1,000 and 10,000 prompts stored; what they and the
requests are is in `prefixes/begin.py`. Exit status 1 if a median for 2,000 tokens is over
2 ms.

day: the requests of `prefixes/day.py` on a trie with a byte limit, beside an oracle; what
is compared is in `prefixes/runner.py`. Exit status 1 if anything was wrong; a request
reuses other than the oracle, or what is stored after it takes other bytes; reuse is below
0.98 of the oracle's; or the limit was exceeded by more than what it protects.

leaks: operations at random. Exit status 1 if there is a leak; what counts as one is in
`prefixes/leaks.py`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
os.environ.update(THREADS)  # before a framework is imported
sys.path[0] = str(Path(__file__).resolve().parents[2])

import click  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from ci.bench.options import JSON, load  # noqa: E402
from ci.bench.prefixes.begin import LENGTH, MILLISECONDS, Stored, measure  # noqa: E402
from ci.bench.prefixes.day import make_day  # noqa: E402
from ci.bench.prefixes.leaks import LIMIT, Found, take  # noqa: E402
from ci.bench.prefixes.oracle import measure_repetition  # noqa: E402
from ci.bench.prefixes.runner import (  # noqa: E402
    CUT_BYTES,
    Runner,
    compare,
    get_complaints,
    run_day,
)
from ci.bench.prefixes.shared import get_percentile  # noqa: E402

BACKEND = click.option(
    "--backend",
    type=click.Choice(["torch", "mlx"]),
    default="torch",
    help="Whose layers.",
    show_default=True,
)
SEED = click.option("--seed", default=0, show_default=True)


@click.group()
def main() -> None:
    """Measures prefix caches."""


def make_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def report(path: Path | None, results: Any) -> None:
    if path:
        path.write_text(json.dumps(results, indent=1) + "\n")


@main.command()
@BACKEND
@SEED
@JSON
@click.option("--stored", multiple=True, type=int, default=[100, 1_000, 10_000])
@click.option("--dim", "dims", multiple=True, type=int, default=[1, 8])
@click.option("--rounds", default=100, show_default=True)
def begin(
    backend: str,
    seed: int,
    path: Path | None,
    stored: Sequence[int],
    dims: Sequence[int],
    rounds: int,
) -> None:
    """The time of Trie.begin, by what is stored and by the request."""
    columns = [f"{count:,} stored" for count in stored]
    names = ("dim, request", *columns, "ratio")
    table = make_table("begin, ms: median / 99th percentile", *names)
    rows = []
    for dim in dims:
        tries = {
            count: Stored(load(f"{backend}-cpu"), count, dim, seed) for count in stored
        }
        click.echo(f"dim {dim}: the tries are built", err=True)
        for row in measure(tries, rounds):
            rows.append({"dim": dim, **row})
            cells = [f"{a:.3f} / {b:.3f}" for a, b in row["times"].values()]
            name = f"{dim}  {row['length']:5,} {row['case']}"
            table.add_row(name, *cells, f"{row['ratio']:.2f}")
    Console().print(table)
    report(path, {"unit": "ms", "backend": backend, "rounds": rounds, "rows": rows})
    large = max(stored)
    twos = [row["times"][large][0] for row in rows if row["length"] == LENGTH]
    sys.exit(max(twos) > MILLISECONDS)


@main.command()
@BACKEND
@SEED
@JSON
@click.option("--requests", "count", default=10_000, show_default=True)
@click.option(
    "--limit", type=int, help="Bytes; by default a tenth of what there would be."
)
def day(
    backend: str, seed: int, path: Path | None, count: int, limit: int | None
) -> None:
    """A day of a chat server and of agents: what is reused, and is it right?"""
    requests = make_day(seed, count)
    unlimited, tokens = measure_repetition(requests)
    everything = tokens * CUT_BYTES
    limit = everything // 10 if limit is None else limit
    start = time.perf_counter()
    runner = Runner(load(f"{backend}-cpu"), limit)
    found = run_day(runner, requests) | compare(runner.backend, requests)
    found |= {"unlimited": unlimited, "everything": everything, "limit": limit}
    found |= {"seconds": time.perf_counter() - start, "times": runner.times}
    totals = zip(
        *(runner.times[name] for name in ("begin", "extend", "close")), strict=True
    )
    runner.times["all three"] = [sum(each) for each in totals]
    print_day(f"{count:,} requests, seed {seed}, {backend}", found)
    report(
        path, {"backend": backend, "requests": count, "seed": seed, **summarize(found)}
    )
    complaints = get_complaints(found)
    click.echo("\n".join(complaints) or "all as it must be")
    sys.exit(bool(complaints))


def summarize(found: dict[str, Any]) -> dict[str, Any]:
    times = {
        name: {"median": median(times), "99 %": get_percentile(times)}
        for name, times in found["times"].items()
    }
    return {**found, "times": times, "unit": "ms, for one request"}


def print_day(title: str, found: dict[str, Any]) -> None:
    asked = found["asked"]
    table = make_table(title, "tokens", "")
    table.add_row("asked", f"{asked:,}")
    for name, key in (("reused", "reused"), ("asked before", "unlimited")):
        table.add_row(name, f"{found[key]:,} = {found[key] / asked:.2%}")
    table.add_row("compared after begin", f"{found['compared']:,}")
    table.add_row("wrong", f"{found['wrong']:,}", end_section=True)
    table.add_row("bytes of all tokens", f"{found['everything']:,}")
    table.add_row("limit", f"{found['limit']:,}")
    table.add_row(
        "most bytes after a request", f"{found['most_bytes']:,}", end_section=True
    )
    table.add_row("small day: reused", f"{found['small']:,}")
    table.add_row("the reference", f"{found['possible']:,}")
    table.add_row("requests that reuse other than it", f"{found['other_reuse']:,}")
    table.add_row("after which other bytes are stored", f"{found['other_bytes']:,}")
    Console().print(table)
    table = make_table("ms for one request", "in", "median", "99 %", "sum, s")
    for name, times in found["times"].items():
        middle, high = median(times), get_percentile(times)
        table.add_row(name, f"{middle:.3f}", f"{high:.3f}", f"{sum(times) / 1e3:.1f}")
    Console().print(table)


@main.command()
@BACKEND
@SEED
@JSON
@click.option("--operations", default=100_000, show_default=True)
def leaks(backend: str, seed: int, path: Path | None, operations: int) -> None:
    """Is everything given back that a trie and a session take?"""
    results = {}
    for name in (f"trie, at most {LIMIT:,} bytes", "session"):
        limited = name != "session"
        found = take(load(f"{backend}-cpu"), limited, seed, operations)
        print_samples(name, found)
        click.echo("flat" if found.flat else "it grows, or not all is counted")
        results[name] = {"flat": found.flat, "samples": found.samples}
    report(path, results)
    sys.exit(not all(each["flat"] for each in results.values()))


def print_samples(title: str, found: Found) -> None:
    table = make_table(title, *found.samples[0])
    step = max(1, len(found.samples) // 10)
    for sample in found.samples[step - 1 :: step]:
        *counts, memory = sample.values()
        table.add_row(*(f"{count:,}" for count in counts), f"{memory:.1f}")
    *counts, memory = found.last.values()
    table.add_row("free", *(f"{count:,}" for count in counts), f"{memory:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
