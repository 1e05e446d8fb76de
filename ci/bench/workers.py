"""Measures how many programs a second several workers check on one device.

    python ci/bench/workers.py --backend torch-cuda

On a GPU a program is a row of small launches, between which the device waits for the
host. Further workers, each a process, fill the gaps, until the cores of the host or the
device are the limit; this tells from how many on. The programs are those of `lockstep
check`, in small slices, and are handed out by its pool.

Neither the start of the workers is timed, nor the passes in which each compiles and loads
the kernels of these programs: as many as there are workers. Then all programs run in each
round; the median of the rounds counts. Exit status 1 if a program diverges.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])  # this file has a package's name

import click  # noqa: E402

from ci.bench.options import JSON  # noqa: E402
from lockstep.harness.core.errors import UsageError  # noqa: E402
from lockstep.harness.programs.files import RUNNING  # noqa: E402
from lockstep.harness.workers.messages import (  # noqa: E402
    Declare,
    Declared,
    Found,
    RandomTask,
    SliceDone,
    Stopped,
    Task,
)
from lockstep.harness.workers.pool import Pool  # noqa: E402

SLICE = 5
"""Programs of a slice: few, so that no worker is left alone with a long one."""

STEP_SECONDS = 120.0
"""Of a step: a kernel may be compiled in it."""


def open_pool(size: int, folder: str) -> Pool:
    return Pool(size, Path(folder) / RUNNING, STEP_SECONDS, STEP_SECONDS)


def declare(name: str) -> Declared:
    """Raises click.UsageError if the backend cannot be used here."""
    with tempfile.TemporaryDirectory() as folder, open_pool(1, folder) as pool:
        event = pool.call(Declare(name))
    if isinstance(event, Stopped):
        raise click.UsageError(f"{name}: {event.describe()}")
    return event


def list_tasks(
    name: str, declared: Declared, kinds: Sequence[str], programs: int
) -> list[RandomTask]:
    """Lists the slices of all kinds in turns."""
    pairs = [
        (contract, kind)
        for contract, own in declared.contracts.items()
        for kind in own
        if not kinds or kind in kinds
    ]
    return [
        RandomTask(
            *(name, contract, kind, begin // SLICE),
            generator="hypothesis",
            seed=0,
            programs=min(SLICE, programs - begin),
        )
        for begin in range(0, programs, SLICE)
        for contract, kind in pairs
    ]


def run_all(pool: Pool, tasks: Iterable[Task[Any]]) -> tuple[int, int]:
    """Returns the number of programs and of steps. Raises SystemExit if one fails."""
    programs = steps = 0
    for _, event in pool.run(deque(tasks)):
        if isinstance(event, Stopped):
            raise SystemExit(event.describe())
        if isinstance(event, Found):
            raise SystemExit(f"a program diverges: {event.divergence}")
        if isinstance(event, SliceDone):
            programs += event.counts.programs
            steps += event.counts.steps
    return programs, steps


def measure(
    name: str, workers: int, tasks: Sequence[RandomTask], rounds: int
) -> dict[str, Any]:
    """Returns the row of so many workers."""
    with tempfile.TemporaryDirectory() as folder, open_pool(workers, folder) as pool:
        begin = time.perf_counter()
        run_all(pool, [Declare(name) for _ in range(workers)])
        start = time.perf_counter() - begin
        for _ in range(workers):
            programs, steps = run_all(pool, tasks)
        taken = median(time_call(lambda: run_all(pool, tasks)) for _ in range(rounds))
    return {
        "workers": workers,
        "start_s": round(start, 2),
        "round_s": taken,
        "programs_per_s": programs / taken,
        "steps_per_s": steps / taken,
    }


def time_call(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


@click.command()
@click.option("--backend", "name", default="torch-cuda", show_default=True)
@click.option("--kind", "kinds", multiple=True, help="Not all of the backend.")
@click.option(
    "--workers",
    "numbers",
    type=click.IntRange(1),
    multiple=True,
    default=(1, 2, 4, 8),
    show_default=True,
)
@click.option("--programs", type=click.IntRange(1), default=40, help="Of each kind.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@JSON
def main(
    name: str,
    kinds: Sequence[str],
    numbers: Sequence[int],
    programs: int,
    rounds: int,
    path: Path | None,
) -> None:
    """Measures checked programs per second with several workers on one device."""
    try:
        declared = declare(name)
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    tasks = list_tasks(name, declared, kinds, programs)
    if not tasks:
        raise click.UsageError(f"{name} declares no cache of kind {' or '.join(kinds)}")
    rows: list[dict[str, Any]] = []
    document = {
        "backend": name,
        "versions": declared.versions,
        "cores": os.cpu_count(),
        "kinds": list(dict.fromkeys(task.kind for task in tasks)),
        "programs": programs,
        "rounds": rounds,
        "rows": rows,
    }
    for workers in numbers:
        rows.append(measure(name, workers, tasks, rounds))
        if path:  # whoever ends this keeps what there is
            path.write_text(json.dumps(document, indent=1) + "\n")
        row = rows[-1]
        click.echo(
            f"{workers} workers: {row['programs_per_s']:,.0f} programs/s,"
            f" {row['steps_per_s']:,.0f} steps/s; started in {row['start_s']} s"
        )


if __name__ == "__main__":
    main()
