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
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import NamedTuple

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

from lockstep.harness.backends.backend import Backend, Kind  # noqa: E402
from lockstep.harness.execution.executor import run  # noqa: E402
from lockstep.harness.jobs.outcome import PROFILES, Settings  # noqa: E402
from lockstep.harness.programs.generate import GENERATORS  # noqa: E402
from lockstep.harness.programs.generate.drawer import Drawer  # noqa: E402
from lockstep.harness.programs.program import Program  # noqa: E402
from lockstep.harness.workers.registry import load  # noqa: E402
from lockstep.harness.workers.slices import get_seed  # noqa: E402

FILES = {"swa": "causal", "swa-memory": "causal", "chunked": "causal"}
"""The file in which a kind is described, if it has another name."""

QUICK = 4
"""Programs of each shard that are run, and not only drawn, if it is to be quick."""


class Work(NamedTuple):
    """One kind of one backend."""

    backend: Backend
    contract: str
    kind: str
    declared: Kind

    @property
    def file(self) -> str:
        return f"{FILES.get(self.kind, self.kind)}.py"

    def check(self, shard: int, programs: int, most: int) -> None:
        """One shard, as a worker does it; at most `most` programs are run."""
        backend, left = self.backend, [most]

        def consume(program: Program) -> None:
            left[0] -= 1
            if left[0] >= 0:
                result = run(program, backend)
                assert result.divergence is None, result.divergence

        drawer = Drawer(self.contract, self.kind, self.declared, backend.dtypes)
        seed = get_seed(0, self.contract, self.kind, shard)
        GENERATORS["hypothesis"](programs, seed, drawer.draw, consume)


def list_work(names: tuple[str, ...]) -> Iterator[Work]:
    """Every kind that is declared, once."""
    seen = []
    for name in names:
        backend = load(name)
        for contract, kinds in backend.contracts.items():
            for kind, declared in kinds.items():
                if (kind, declared, backend.dtypes) not in seen:
                    seen.append((kind, declared, backend.dtypes))
                    yield Work(backend, contract, kind, declared)


def list_incomplete() -> list[str]:
    """The files of the reference of which something was not reached."""
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
    started, work = time.monotonic(), list(list_work(names))
    owned = {each.file for each in work}
    incomplete, drawn = list_incomplete(), 0
    for shard, size in Settings(programs=programs).list_slices():
        if not incomplete:
            break
        everything = shard == 0 or not owned.issuperset(incomplete)
        for each in work:
            if everything or each.file in incomplete:
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
