"""Measures the speed of checking on one core: steps per second and where the time goes.

    python ci/bench/harness.py --backend torch-cpu --backend mlx-cpu

A step is one operation of a program. For each backend and kind, in one process pinned to
one core, in rounds in which all is measured one after the other on other programs than
before; reported are medians of the rounds. On a CPU all times are those of the process,
of all its threads (time.process_time), so that what others take from the core does not
count; on a GPU, for which the process waits, those of the clock.

Steps per second:

* check: programs are drawn from Hypothesis, recorded and checked;
* explore: some programs of four operations of `lockstep explore`, the same;
* shard: what a worker does: besides, one program in twelve gets a derived one, whose
  steps are not counted, and all are hashed.

Shares of the time of check, of the same programs, each obtained by itself:

* draw: the generator, and nothing done with its programs;
* record: the write-ahead record of all programs and steps;
* reference: its answers, and nothing to compare them with;
* backend: the programs are checked while a stopwatch runs whenever the harness has called
  the backend: to make or overwrite an array, to open a cache, in every method, until the
  arrays that it returns are there, and for attention (`pace/stopwatch.py`). It is the
  checked run itself, so that there is no second one to be kept up. What it takes to
  start and stop the watch is taken off;
* compare: what is left of check: making the content of arrays, reading those that come
  back, comparing, arrays under watch, legality, counting cells.

`outside` is all but reference and backend. "all" is all kinds with equally many programs,
total steps by total time. The bars are in BARS and OUTSIDE; what misses one is marked.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
os.environ.update(THREADS)  # before a framework is imported
sys.path[0] = str(Path(__file__).resolve().parents[2])  # this file has a package's name

import click  # noqa: E402
from rich.box import SIMPLE_HEAD  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from ci.bench.options import JSON, load  # noqa: E402
from ci.bench.pace.passes import Bench, measure_rounds  # noqa: E402
from ci.bench.speed.report import get_processor  # noqa: E402
from lockstep.harness.contracts import CONTRACTS  # noqa: E402
from lockstep.harness.execution.record import Record  # noqa: E402
from lockstep.harness.workers.guard import spare_garbage  # noqa: E402

KINDS = [kind for rules in CONTRACTS.values() for kind in rules.kinds]

RATES = ("check", "explore", "shard")
PARTS = ("draw", "record", "reference", "backend", "compare")
WITHIN = ("reference", "backend")

BARS = {
    "torch-cpu": {"check": 7_500},
    "mlx-cpu": {"check": 3_750},
}
"""The least steps per second."""

OUTSIDE = 0.55
"""The largest share of check outside of backend and reference."""

SHORT = {"reference": "refer."}

Row = dict[str, Any]


def make_row(backend: str, kind: str, taken: dict[str, float]) -> Row:
    """Makes a row from `taken`: the microseconds per step, from `measure_rounds`."""
    rates = {name: 1e6 / taken[name] for name in RATES}
    shares = {name: taken[name] / taken["check"] for name in PARTS}
    shares["outside"] = 1 - sum(shares[name] for name in WITHIN)
    bars = BARS.get(backend, {})
    holds = {name: rates[name] >= bar for name, bar in bars.items()}
    if bars:
        holds["outside"] = shares["outside"] <= OUTSIDE
    names = {"backend": backend, "kind": kind}
    return {**names, "rates": rates, "shares": shares, "holds": holds, "taken": taken}


def add_up(rows: Sequence[Row]) -> dict[str, float]:
    """Of several kinds, microseconds a step over all steps."""
    steps = [row["taken"]["steps"] for row in rows]
    return {
        name: sum(row["taken"][name] * own for row, own in zip(rows, steps, strict=True))
        / sum(steps)
        for name in rows[0]["taken"]
    }


def describe_machine() -> dict[str, Any]:
    system = platform.platform()
    return {"cpu": get_processor(), "cores": os.cpu_count(), "system": system}


@click.command()
@click.option("--backend", "names", multiple=True, default=list(BARS))
@click.option("--kind", "kinds", multiple=True, default=KINDS)
@click.option("--programs", type=click.IntRange(1), default=100, help="In each round.")
@click.option("--rounds", type=click.IntRange(1), default=5)
@JSON
def main(
    names: Sequence[str],
    kinds: Sequence[str],
    programs: int,
    rounds: int,
    path: Path | None,
) -> None:
    """Measures checked steps per second on one core."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows: list[Row] = []
    versions = {"python": platform.python_version(), "hypothesis": version("hypothesis")}

    def save() -> None:
        if path:
            report = {
                "machine": describe_machine(),
                "versions": versions,
                "unit": "taken: µs a step; rates: steps per second; shares: of plain",
                "bars": {**BARS, "outside": OUTSIDE},
                "programs": programs,
                "rounds": rounds,
                "rows": rows,
            }
            path.write_text(json.dumps(report, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        record = Record(Path(folder) / "record.json")
        for name in names:
            backend = load(name)
            spare_garbage()  # as a worker does
            versions.update(backend.versions)
            own = []
            for kind in kinds:
                bench = Bench(backend, kind, record, programs)
                own.append(make_row(name, kind, measure_rounds(bench, rounds)))
                rows.append(own[-1])
                save()  # whoever ends this keeps what there is
            rows.append(make_row(name, "all", add_up(own)))
            save()
            show(name, [*own, rows[-1]])
        record.close()


def show(backend: str, rows: Sequence[Row]) -> None:
    table = Table(
        title=f"{backend}: checked steps per second; percent of plain (! misses its bar)",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("kind", no_wrap=True)
    for name in (*RATES, *PARTS, "outside"):
        table.add_column(SHORT.get(name, name), justify="right", no_wrap=True)
    for row in rows:
        marks = {name: "" if holds else "!" for name, holds in row["holds"].items()}
        rates = [f"{row['rates'][name]:,.0f}{marks.get(name, '')}" for name in RATES]
        shares = [f"{row['shares'][name]:.0%}" for name in PARTS]
        outside = f"{row['shares']['outside']:.0%}{marks.get('outside', '')}"
        table.add_row(row["kind"], *rates, *shares, outside)
    Console(width=96).print(table)


if __name__ == "__main__":
    main()
