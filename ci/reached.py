"""Checks that the ci profile reaches every line and branch of the reference, or of our
caches.

    python ci/reached.py reference --quick       draws most programs without a
                                                 backend, which runs the reference
    python ci/reached.py caches --kind trie --programs 250

The programs of `lockstep check` run on torch-cpu and mlx-cpu, slice by slice, until every
line and branch is reached. `unreached.json` lists the code of our caches that no program
can reach, with the reasons. The exit status is 1 if other code is not reached after the
last slice, or if a reason is outdated.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from linecache import getline
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import coverage

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
os.environ.update(THREADS)  # before a framework is imported
ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

CODE = {
    "reference": ["reference"],
    "caches": ["impl/shared", "impl/torch", "impl/mlx", "impl/prefix"],
}
IS_REFERENCE = "reference" in sys.argv

# The modules that are imported below are measured from their first line on.
REACHED = coverage.Coverage(
    branch=True,
    source=[str(ROOT / name) for name in CODE["reference" if IS_REFERENCE else "caches"]],
    data_file=None,
    config_file=False,
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
"""Kind → the name of its file in the reference, if it differs from the kind."""

TOYS = ("tests.harness.engines:toy", "tests.harness.test_paged_admission:takes")
"""The backends of the suite that run what our caches do not have: engines, and a block
manager that preempts."""

QUICK = 9
"""With `--quick`, the number of programs of a slice that run; the others are only drawn.
The last of these programs is the first program with all checks."""

EVERYTHING = "*"
UNREACHED: Mapping[str, Mapping[str, Sequence[str]]] = (
    {} if IS_REFERENCE else json.loads((ROOT / "ci" / "unreached.json").read_text())
)
"""File → reason why no program reaches the code on a CPU → functions, lines, or
EVERYTHING."""


class Missed(NamedTuple):
    """A line that was not reached, or a branch that was not taken.

    Attributes:
        function: the function that contains the line; empty at module level.
        target: the target line of the branch; None if the line itself was not reached.
    """

    file: str
    function: str
    line: int
    target: int | None

    def list_names(self) -> tuple[str, str, str]:
        """Returns the names in `UNREACHED` that explain why the line or branch is not
        reached."""
        return EVERYTHING, self.function, self.get_text()

    def get_text(self) -> str:
        """Returns the line; for a statement in brackets over several lines, all of it,
        as if it stood on one line."""
        text, line = "", self.line
        while True:
            text += getline(str(ROOT / self.file), line).strip()
            if text.count("(") <= text.count(")") or line > self.line + 20:
                return text
            line += 1

    def is_explained(self) -> bool:
        return not list_explained(self.file).keys().isdisjoint(self.list_names())

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}  {self.get_text()}"
        if self.target is None:
            return text
        end = "the end" if self.target < 0 else f"line {self.target}"
        return f"{text}  never goes to {end}"


def list_explained(file: str) -> Mapping[str, str]:
    """Returns, for a file, each name in `UNREACHED` → the reason why it is not
    reached."""
    reasons = UNREACHED.get(file, {})
    return {name: why for why, names in reasons.items() for name in names}


def measure() -> dict[str, Any]:
    """Returns the files of coverage's report, by path relative to the root."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        REACHED.json_report(outfile=str(path))
        files: dict[str, Any] = json.loads(path.read_text())["files"]
    return {
        Path(name).resolve().relative_to(ROOT).as_posix(): report
        for name, report in files.items()
    }


def list_missed(files: Mapping[str, Any]) -> Iterator[Missed]:
    """Iterates over the lines and branches that were not reached."""
    for file, measured in sorted(files.items()):
        for function, numbers in measured["functions"].items():
            missed = numbers["missing_lines"]
            yield from (Missed(file, function, line, None) for line in missed)
            for line, target in numbers["missing_branches"]:
                if line not in missed:
                    yield Missed(file, function, line, target)


def list_stale(missed: Sequence[Missed]) -> Iterator[str]:
    """Yields the names in `UNREACHED` whose code is now reached or no longer exists."""
    used = {(each.file, name) for each in missed for name in each.list_names()}
    for file in UNREACHED:
        names = list_explained(file)
        yield from (f"{file}: {name}" for name in names if (file, name) not in used)


def choose(works: Sequence[Work], files: set[str]) -> Sequence[Work]:
    """Returns the works whose kinds are defined in these files of the reference.

    Returns all works if one of the files defines no kind.
    """
    described = [f"reference/{FILES.get(work.kind, work.kind)}.py" for work in works]
    if not files <= {*described}:
        return works
    return [work for work, file in zip(works, described, strict=True) if file in files]


@click.command()
@click.argument("code", type=click.Choice([*CODE]))
@click.option("--backend", "names", multiple=True, default=["torch-cpu", "mlx-cpu"])
@click.option("--kind", "kinds", multiple=True, help="Only this kind.")
@click.option("--programs", default=PROFILES["ci"].programs, show_default=True)
@click.option("--quick", is_flag=True, help="Run a few programs, only draw the others.")
def main(
    code: str, names: Sequence[str], kinds: Sequence[str], programs: int, quick: bool
) -> None:
    """Runs the ci profile until it has reached every line and branch."""
    if IS_REFERENCE:
        names = [*names, *TOYS]
    started, works = time.monotonic(), list(list_work(names, kinds))
    if IS_REFERENCE:
        works = list_different(works)
    files: Mapping[str, Any] = {}
    missed: list[Missed] = []
    left: list[Missed] = []
    ran, chosen = 0, works
    for number, size in Settings(programs=programs).list_slices():
        for work in chosen:
            work.check(number, size, QUICK if quick else size)
        files, ran = measure(), ran + size
        missed = list(list_missed(files))
        left = [each for each in missed if not each.is_explained()]
        seconds = time.monotonic() - started
        print(f"{ran} programs of a kind, {seconds:.0f} s: {len(left)} left", flush=True)
        if not left:
            break
        if IS_REFERENCE:
            chosen = choose(works, {each.file for each in left})
    REACHED.stop()
    stale = list(list_stale(missed))
    report(files, left, stale)
    sys.exit(1 if left or stale else 0)


def report(
    files: Mapping[str, Any], left: Sequence[Missed], stale: Sequence[str]
) -> None:
    """Prints the covered share of each file, the missed code and the stale names."""
    for file, numbers in sorted(files.items()):
        share = numbers["summary"]["percent_covered"]
        why = list_explained(file).get(EVERYTHING, "")
        print(f"{share:6.1f} %  {file}  {why}".rstrip())
    print(f"\n{len(left)} lines and branches left", *left, sep="\n  ")
    if stale:
        print("\nexplained, but reached or gone", *stale, sep="\n  ")


if __name__ == "__main__":
    main()
