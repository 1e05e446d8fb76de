"""Lines and branches of the reference that the ci profile reaches: it must be all.

    python ci/reference_coverage.py            checks shard by shard, until all is reached
    python ci/reference_coverage.py --quick    most programs are only drawn, which takes
                                               the reference along, too

What the reference says and no program asks for is checked by nobody. The programs are
those of `lockstep check`, drawn for the declarations of our backends; of two backends
that declare the same, the first. Exit status 1 if something is left after the last shard.
"""

from __future__ import annotations

import os
import sys
import time
from io import StringIO
from pathlib import Path

import coverage

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
os.environ.update(THREADS)  # before a framework is imported
ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

# What is imported below is measured from its first line on.
REACHED = coverage.Coverage(
    branch=True, source=["reference"], data_file=None, config_file=False
)
REACHED.start()

import click  # noqa: E402

from ci.work import Work, list_different, list_work  # noqa: E402
from lockstep.harness.contracts import CONTRACTS  # noqa: E402
from lockstep.harness.jobs.settings import PROFILES, Settings  # noqa: E402

FILES = {
    **dict.fromkeys(("swa", "swa-memory", "chunked"), "causal"),
    **dict.fromkeys(("batch-kv", "batch-rotating", "batch-state"), "batched"),
    "batch-list": "list",
    **dict.fromkeys(CONTRACTS["paged"].kinds, "paged"),
}
"""The file in which a kind is described, if it has another name."""

QUICK = 9
"""Programs of each shard that are run, and not only drawn, if it is to be quick: the last
of them is the first with every check."""


def get_file(work: Work) -> str:
    return f"{FILES.get(work.kind, work.kind)}.py"


def list_incomplete() -> list[str]:
    """Lists the files of the reference with unreached lines or branches."""
    paths = sorted((ROOT / "reference").glob("*.py"))
    return [
        path.name
        for path in paths
        if REACHED.report(include=[str(path)], file=StringIO()) < 100
    ]


@click.command()
@click.option("--backend", "names", multiple=True, default=["torch-cpu", "mlx-cpu"])
@click.option("--programs", default=PROFILES["ci"].programs, show_default=True)
@click.option("--quick", is_flag=True, help="Run a few programs, only draw the others.")
def main(names: tuple[str, ...], programs: int, quick: bool) -> None:
    """Runs the ci profile until it has reached every line and branch of reference/."""
    started, work = time.monotonic(), list_different(list(list_work(names)))
    owned = {get_file(each) for each in work}
    incomplete, drawn = list_incomplete(), 0
    for shard, size in Settings(programs=programs).list_slices():
        if not incomplete:
            break
        everything = shard == 0 or not owned.issuperset(incomplete)
        for each in work:
            if everything or get_file(each) in incomplete:
                each.check(shard, size, QUICK if quick else size)
        incomplete, drawn = list_incomplete(), drawn + size
        seconds = time.monotonic() - started
        left = f"left in {', '.join(incomplete)}" if incomplete else "nothing is left"
        print(f"{drawn} programs of a kind, {seconds:.0f} s: {left}", flush=True)
    REACHED.stop()
    REACHED.report(show_missing=True, skip_covered=bool(incomplete))
    sys.exit(1 if incomplete else 0)


if __name__ == "__main__":
    main()
