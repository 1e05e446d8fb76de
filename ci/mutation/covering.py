"""Runs on mutants of the harness the tests that execute the mutated line."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import coverage
import pytest

from ci.mutation.mutants import Mutant
from ci.mutation.trial import IMPORT, TEST_SECONDS, Beat, call

OPTIONS = "-q", "--tb=no", "-pno:xdist", "-pno:cacheprovider", "--assert=plain"

TESTS_SECONDS = 100.0
"""The time limit for all tests of a mutant."""

SETTINGS = """\
[run]
data_file = {folder}/lines
parallel = true
context = ${{TEST-}}
include = {root}/harness/*
patch = _exit
disable_warnings = no-data-collected
"""
"""Of coverage.py, also for processes that a test starts."""

Measured = Mapping[str, Any]
"""What the tests of a file execute.

* `hashes`: file, relative to the root → its hash, of the tests and of what they execute
* `tests`: the seconds and the name of each test
* `lines`: file → line → the indexes of the tests that execute it, and IMPORT if it is
  executed by an import of the file
* `failed`: the names of the tests that failed, which are in no other field
"""


@dataclass
class Watch:
    """A plugin of pytest.

    Attributes:
        chosen: the tests to run, in this order; if it is empty, all.
        reached: measures the lines that each test executes, if given.
        seconds: the time of each test.
        failed: the tests that failed.
    """

    beat: Beat
    chosen: Sequence[str] = ()
    reached: coverage.Coverage | None = None
    seconds: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.chosen:
            known = {item.nodeid: item for item in items}
            items[:] = [known[name] for name in self.chosen if name in known]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        os.environ["TEST"] = nodeid
        if self.reached:
            self.reached.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.beat()
        self.seconds[report.nodeid] += report.duration
        self.failed += [report.nodeid] if report.failed else []


def run_tests(root: Path, tests: Sequence[str], watch: Watch) -> int:
    """Runs tests of a project in this process; returns the exit status of pytest."""
    for name in [name for name in sys.modules if name.startswith(("lockstep", "tests"))]:
        del sys.modules[name]  # this process has used the harness itself
    os.environ["PYTHONPATH"] = str(root / ".src")
    sys.path[:0] = [str(root), str(root / ".src")]
    os.chdir(root)
    return pytest.main([*OPTIONS, *tests], plugins=[watch])


def compute_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def measure_tests(root: Path, paths: Sequence[Path]) -> list[Measured]:
    """Measures the tests of files and folders, except files that have not changed since
    build/tests/ was written.

    Raises:
        ClickException: the tests cannot be measured.
    """
    import torch  # noqa: F401 - once, for all children

    measured = []
    found = (sorted(path.rglob("test_*.py")) or [path] for path in paths)
    for path in chain(*found):
        file = path.resolve().relative_to(root).as_posix()
        kept = root / "build" / "tests" / f"{file.replace('/', '.')}.json"
        known = json.loads(kept.read_text()) if kept.exists() else {"hashes": {}}
        if known["hashes"].get(file) != compute_hash(root / file):
            click.echo(f"measuring {file}", err=True)
            ended = call(run_measured, root, file, most=TEST_SECONDS)
            if ended.why:
                raise click.ClickException(f"{file}: {ended.why}")
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(ended.answer))
            known = json.loads(kept.read_text())
            for name in known["failed"]:
                click.echo(f"not used, as it fails without a mutation: {name}", err=True)
        measured.append(known)
    return measured


def run_measured(beat: Beat, root: Path, file: str) -> Measured:
    """Runs the tests of a file, and notes which lines of the harness each executes."""
    with TemporaryDirectory() as folder:
        settings = Path(folder, "settings")
        settings.write_text(SETTINGS.format(folder=folder, root=root))
        os.environ["COVERAGE_PROCESS_START"] = str(settings)
        reached = coverage.Coverage(config_file=str(settings))
        watch = Watch(beat, reached=reached)
        with reached.collect():
            run_tests(root, [file], watch)
        reached.save()
        reached.combine()
        data = reached.get_data()
        passed = [name for name in watch.seconds if name not in watch.failed]
        numbers = {"": IMPORT, **{name: index for index, name in enumerate(passed)}}
        lines = {
            Path(own).relative_to(root).as_posix(): {
                line: sorted(numbers[name] for name in found if name in numbers)
                for line, found in data.contexts_by_lineno(own).items()
            }
            for own in data.measured_files()
        }
    hashes = {own: compute_hash(root / own) for own in (file, *lines)}
    tests = [(watch.seconds[name], name) for name in passed]
    failed = watch.failed
    return {"hashes": hashes, "tests": tests, "lines": lines, "failed": failed}


def choose_tests(root: Path, measured: Sequence[Measured], mutant: Mutant) -> list[str]:
    """Lists tests that execute a mutated line, the fastest first, up to TESTS_SECONDS.

    If the line is executed by an import, or if the file has changed since it was
    measured, lists the tests that execute any line of the file.
    """
    tests = []
    for each in measured:
        reached = each["lines"].get(mutant.file, {})
        lines = (reached.get(str(line), ()) for line in mutant.lines)
        numbers = {number for found in lines for number in found}
        same = each["hashes"].get(mutant.file) == compute_hash(root / mutant.file)
        if IMPORT in numbers or not same:
            numbers = {number for found in reached.values() for number in found}
        tests += [each["tests"][number] for number in numbers - {IMPORT}]
    tests.sort()
    ends = accumulate(seconds for seconds, _ in tests)
    both = zip(tests, ends, strict=True)
    return [name for (_, name), end in both if end <= TESTS_SECONDS]


@contextmanager
def mutated(root: Path, mutant: Mutant) -> Iterator[Path]:
    """Yields a copy of the project with the mutant, which also processes of tests and
    scripts made of the harness's text run. Other files are links to the same content."""
    ignored = shutil.ignore_patterns(".git", "build", "failures", ".*_cache")
    (root / "build").mkdir(exist_ok=True)
    with TemporaryDirectory(dir=root / "build") as folder:
        copy = Path(folder, "copy")
        shutil.copytree(root, copy, True, ignored, os.link)
        (copy / mutant.file).unlink()
        (copy / mutant.file).write_bytes(mutant.source)
        yield copy


def check_tests(beat: Beat, root: Path, tests: Sequence[str]) -> str:
    """Returns the first test of a project that fails, or ""."""
    watch = Watch(beat, tests)
    files = dict.fromkeys(name.partition("::")[0] for name in tests)
    status = run_tests(root, ["-x", *files], watch)
    return [*watch.failed, f"pytest ended with status {status}"][0] if status else ""
