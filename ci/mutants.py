"""Makes mutants of our caches, and searches for each mutant with generated programs; of
the harness, with the tests that run the changed line.

    python ci/mutants.py --count 100 --seed 1

A mutant is a copy of one file with one small change, such as + instead of -.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from random import Random

THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
os.environ.update(THREADS)  # before a framework is imported
ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

import click  # noqa: E402

from ci.mutation import covering  # noqa: E402
from ci.mutation.mutants import Mutant, list_mutants  # noqa: E402
from ci.mutation.trial import (  # noqa: E402
    BACKENDS,
    TEST_SECONDS,
    Baseline,
    call,
    check_mutant,
    measure_baseline,
)

FOLDERS = "impl/shared", "impl/torch", "impl/mlx", "impl/prefix"
HARNESS = "harness"
TESTS = "tests/harness", "tests/conformance", "tests/impl/test_mistake_scripts.py"
VERDICTS = "found", "explained", "survived", "not reached"
EXPLAINED = "file", "function", "original", "mutated"

EXAMPLES = """\b
Examples:
  python ci/mutants.py --count 100 --seed 1            a sample of all caches
  python ci/mutants.py impl/prefix/tree.py --count 20  a sample of one file
  python ci/mutants.py harness/contracts               a sample of the contracts
  python ci/mutants.py --mutant impl/shared/sequence_index.py:54:44-46:drop-sign
"""

Explanations = dict[tuple[str, ...], str]
"""Why no program can find a mutant, by the values of its fields EXPLAINED."""


@dataclass(frozen=True)
class Outcome:
    """The result of one mutant.

    Attributes:
        verdict: one of VERDICTS.
        how: if the mutant was found, the signature of the divergence, or the test;
            otherwise the explanation why nothing finds it, or "" if there is no
            explanation.
        programs: the number of programs, or of setups, tests and teardowns, that ran.
        seconds: the time of all programs, including imports.
    """

    mutant: Mutant
    verdict: str
    how: str
    programs: int
    seconds: float

    def describe(self) -> str:
        mutant, by = self.mutant, f" by {self.how}" if self.verdict == "found" else ""
        return (
            f"{mutant.id}  {mutant.old} → {mutant.new}  {self.verdict}{by} after"
            f" {self.programs} runs, {self.seconds:.1f} s"
        )

    def describe_survivor(self) -> str:
        """Describes the mutant, and the known reason why no program finds it."""
        mutant, why = self.mutant, f"\n{self.how}" if self.how else ""
        text = f"{self.verdict}: {mutant.id} in {mutant.function or 'the module'}"
        return f"{text}\n- {mutant.original}\n+ {mutant.mutated}{why}\n"


def get_key(mutant: Mutant) -> tuple[str, ...]:
    return tuple(getattr(mutant, name) for name in EXPLAINED)


def is_tested(file: str) -> bool:
    """Tells whether tests look for the mutants of a file, and not programs."""
    return file.startswith(HARNESS)


def try_mutant(
    mutant: Mutant,
    baseline: Baseline,
    measured: Sequence[covering.Measured],
    explanations: Explanations,
    seconds: float,
) -> Outcome:
    """Runs the programs that run the mutated line, then other programs of the same kinds;
    for the harness, the tests that run the line."""
    started = time.monotonic()
    runs = baseline.list_runs(mutant.file, mutant.lines)
    tests = covering.choose_tests(ROOT, measured, mutant)
    ended = None
    if tests:
        with covering.mutated(ROOT, mutant) as copy:
            ended = call(covering.check_tests, copy, tests, most=TEST_SECONDS)
    elif runs:
        ended = call(check_mutant, mutant.module, mutant.source, runs, seconds)
    programs, taken = ended.beats if ended else 0, time.monotonic() - started
    if ended and (how := ended.answer or ended.why):
        return Outcome(mutant, "found", how, programs, taken)
    how = explanations.get(get_key(mutant), "")
    verdict = "explained" if how else "survived" if ended else "not reached"
    return Outcome(mutant, verdict, how, programs, taken)


def list_stale(
    explanations: Explanations, mutants: Sequence[Mutant], outcomes: Sequence[Outcome]
) -> list[str]:
    """Lists explanations that are wrong or outdated."""
    known = set(map(get_key, mutants))
    found = {get_key(each.mutant) for each in outcomes if each.verdict == "found"}
    gone = [
        f"explained, but no longer there: {key}" for key in explanations.keys() - known
    ]
    return gone + [f"explained, but found: {key}" for key in explanations.keys() & found]


def list_files(paths: Sequence[str]) -> list[str]:
    """Lists the Python files at these paths, relative to the root.

    Raises:
        UsageError: a path does not exist, or is not in one of FOLDERS, or HARNESS.
    """
    files: list[Path] = []
    for name in paths:
        path = (ROOT / name).resolve()
        folders = *FOLDERS, HARNESS
        if not any(path.is_relative_to(ROOT / folder) for folder in folders):
            raise click.UsageError(
                f"{name} is not in a folder that can be mutated: {', '.join(folders)}"
            )
        if not path.exists():
            raise click.UsageError(f"{name}: there is no such file or folder")
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [file.relative_to(ROOT).as_posix() for file in dict.fromkeys(files)]


def load_explanations(path: Path, files: Sequence[str]) -> Explanations:
    """Loads the explanations for these files and for files that no longer exist.

    Raises:
        UsageError: the explanations cannot be read.
    """
    try:
        rows = json.loads(path.read_text())["explanations"]
        pairs = [(tuple(row[name] for name in EXPLAINED), row["reason"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.UsageError(f"{path}: cannot be read: {error!r}") from None
    gone = [key for key, _ in pairs if not (ROOT / key[0]).is_file()]
    return {key: why for key, why in pairs if key[0] in files or key in gone}


def find(mutants: Sequence[Mutant], ids: Sequence[str]) -> list[Mutant]:
    """Returns the mutants with these ids.

    Raises:
        UsageError: no mutant has one of the ids.
    """
    known = {mutant.id: mutant for mutant in mutants}
    for id in ids:
        if id not in known:
            near = ", ".join(get_close_matches(id, known)) or "see the ids in a run"
            raise click.UsageError(f"there is no mutant {id}; near: {near}")
    return [known[id] for id in ids]


def measure(programs: int, seed: int) -> Baseline:
    """Measures the baseline of the correct backends.

    Raises:
        ClickException: a program diverges.
    """
    click.echo(f"importing, drawing {programs} programs of each kind", err=True)
    import mlx.core  # noqa: F401 - once, for all children
    import torch  # noqa: F401

    ended = call(measure_baseline, ROOT, programs, seed)
    if ended.why:
        raise click.ClickException(
            f"the programs fail even without a mutation: {ended.why}"
        )
    baseline: Baseline = ended.answer
    return baseline


def list_used(files: Sequence[str], baseline: Baseline) -> list[str]:
    """Lists the files that programs run."""
    unused = [file for file in files if not baseline.list_runs(file)]
    if unused:
        click.echo(f"not run on {' and '.join(BACKENDS)}: {', '.join(unused)}", err=True)
    return [file for file in files if file not in unused]


@click.command(epilog=EXAMPLES)
@click.argument("paths", nargs=-1, metavar="[FILE_OR_FOLDER]...")
@click.option("--count", type=click.IntRange(1), default=100, show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of sample and programs.")
@click.option("--mutant", "ids", multiple=True, metavar="ID", help="Only this one.")
@click.option("--programs", type=click.IntRange(1), default=200, help="For each kind.")
@click.option(
    "--time",
    "seconds",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="CPU seconds for each mutant of a cache.",
)
@click.option(
    "--tests",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    default=[ROOT / name for name in TESTS],
    help="For mutants of the harness: files or folders of tests.",
)
@click.option(
    "--explained",
    type=click.Path(path_type=Path),
    default=Path(__file__).parent / "mutants.json",
    help="Explanations of survivors; default: ci/mutants.json.",
)
def main(
    paths: Sequence[str],
    count: int,
    seed: int,
    ids: Sequence[str],
    programs: int,
    seconds: float,
    tests: Sequence[Path],
    explained: Path,
) -> None:
    """Makes mechanical mutants and looks for each.

    Mutates copies of the given files, by default of all of our caches. Each mutant
    runs on torch-cpu and mlx-cpu in a process of its own, first with those of the
    generated programs that run the changed line. For a mutant of the harness, the tests
    run that run this line, the fastest first. What tests run is measured first, and again
    only if a file of tests has changed: build/tests/ has the results.

    Exit status: 0 all were found or are explained, 1 some were not, 2 an error, or an
    explanation that is out of date, 130 Ctrl-C.
    """
    files = list_files(paths or FOLDERS)
    explanations = load_explanations(explained, files)
    mutants = [
        each for file in files for each in list_mutants(file, (ROOT / file).read_bytes())
    ]
    sample = find(mutants, ids)
    outcomes: list[Outcome] = []
    is_complete = False
    try:
        caches = [file for file in files if not is_tested(file)]
        baseline = measure(programs, seed) if caches else Baseline([], {})
        measured = covering.measure_tests(ROOT, tests) if caches != files else []
        if not sample:
            unused = {*caches} - {*list_used(caches, baseline)}
            drawn = [mutant for mutant in mutants if mutant.file not in unused]
            sample = Random(seed).sample(drawn, min(count, len(drawn)))
        for number, mutant in enumerate(sample, 1):
            outcomes.append(try_mutant(mutant, baseline, measured, explanations, seconds))
            click.echo(f"{number}/{len(sample)}  {outcomes[-1].describe()}")
        is_complete = True
    except KeyboardInterrupt:
        click.echo("stopped before the end", err=True)
    survivors = [each for each in outcomes if each.verdict != "found"]
    click.echo("\n".join(["", *(each.describe_survivor() for each in survivors)]))
    totals = Counter(outcome.verdict for outcome in outcomes)
    counts = ", ".join(f"{totals[verdict]} {verdict}" for verdict in VERDICTS)
    click.echo(f"{len(outcomes)} mutants: {counts}")
    stale = list_stale(explanations, mutants, outcomes)
    click.echo("".join(f"{line}\n" for line in stale), err=True, nl=False)
    missed = any(each.verdict in VERDICTS[2:] for each in outcomes)
    sys.exit(130 if not is_complete else 2 if stale or not outcomes else int(missed))


if __name__ == "__main__":
    main()
