"""Runs the nearest tests on mutants of the harness."""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ci.mutation.trial import Beat

LIARS = "tests/harness/test_liars.py", "tests/harness/test_refusals.py"
RELATED = {
    **{"metamorphic": ["relation"], "generate": ["every"], "recording": ["kept"]},
    **{"contracts": ["contract_programs", "words"], "rewrites": ["shrink"]},
    **{"scripts": ["mistake_scripts"], "states": ["cells"], "naming": ["reading"]},
    "system": ["reading", "compare"],
}
"""Package or module → how the names of further tests begin."""

DRAWS, OF_DRAWING = "source: Source", ("drawing", "generators")
"""The parameter of functions that draw, and how the names of their tests begin."""

OPTIONS = "-qx", "--tb=no", "-pno:xdist", "-pno:cacheprovider", "--assert=plain"


def list_tests(root: Path, file: str) -> list[str]:
    """Lists the tests of caches that lie, the tests that have the name of a module or of
    its package in theirs, the tests that import the module, and the tests of the module's
    task."""
    path = file.removesuffix(".py").removesuffix("/__init__")
    module = f"lockstep.{path.replace('/', '.')}"
    *_, package, stem = module.split(".")
    related = [name for word in module.split(".") for name in RELATED.get(word, ())]
    related += OF_DRAWING if DRAWS in (root / file).read_text() else ()
    tests = sorted((root / "tests/harness").rglob("test_*.py"))
    named = [test for test in tests if re.match(f"test_({package}|{stem})", test.name)]
    named += [test for test in tests if re.search(rf"{module}\b", test.read_text())]
    for name in related:
        named += sorted((root / "tests").glob(f"*/test_{name}*.py"))
    listed = (test.relative_to(root).as_posix() for test in named)
    return list(dict.fromkeys([*LIARS, *listed]))


@contextmanager
def mutated(root: Path, file: str, source: bytes) -> Iterator[Path]:
    """Yields a copy of the project with the mutant, which also processes of tests and
    scripts made of the harness's text run. Other files are links to the same content."""
    ignored = shutil.ignore_patterns(".git", "build", "failures", ".*_cache")
    (root / "build").mkdir(exist_ok=True)
    with TemporaryDirectory(dir=root / "build") as folder:
        copy = Path(folder, "copy")
        shutil.copytree(root, copy, True, ignored, os.link)
        (copy / file).unlink()
        (copy / file).write_bytes(source)
        yield copy


def check_tests(beat: Beat, root: Path, tests: Sequence[str]) -> str:
    """Returns the first test of a project that fails, or ""."""
    failed = []

    class Watch:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            beat()
            failed.extend([report.nodeid] if report.failed else [])

    for name in [name for name in sys.modules if name.startswith(("lockstep", "tests"))]:
        del sys.modules[name]  # this process has used the harness itself
    os.environ["PYTHONPATH"] = str(root / ".src")
    sys.path[:0] = [str(root), str(root / ".src")]
    os.chdir(root)
    status = pytest.main([*OPTIONS, *tests], plugins=[Watch()])
    return (failed or [f"pytest ended with status {status}"])[0] if status else ""
