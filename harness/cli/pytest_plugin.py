"""pytest options and fixtures: the same check, as tests.

A test that asks for `lockstep_case` runs once for each backend, kind and share of the
programs; `lockstep_check` runs such a case and fails the test with the whole story. The
backend runs in a process of its own, so one that crashes or hangs fails its own tests and
no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Case(NamedTuple):
    """One test: a share of the programs for one backend and kind."""

    backend: str
    kind: str
    part: int


PARTS = 2
"""Tests for each backend and kind, so that workers are done at about the same time."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockstep", "KV caches side by side with their reference")
    group.addoption(
        "--backend",
        action="append",
        default=[],
        metavar="NAME",
        help="a registered backend, package.module:factory or exec:program"
        " (default: all registered)",
    )
    group.addoption(
        "--kind", action="append", default=[], help="a kind of cache (default: all)"
    )
    group.addoption(
        "--profile",
        choices=["quick", "ci", "nightly"],
        default="quick",
        help="how many programs each pair runs (default: quick)",
    )
    group.addoption(
        "--seed", type=int, default=0, help="seed of the programs (default: 0)"
    )
    group.addoption(
        "--failures", default="failures", help="where failures go (default: failures)"
    )
    group.addoption(
        "--strict-messages",
        action="store_true",
        help="hold all messages of an exec: backend against their schemas",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lockstep_case" in metafunc.fixturenames:
        from lockstep.harness.contracts import CONTRACTS
        from lockstep.harness.core.errors import UsageError
        from lockstep.harness.core.fields import suggest
        from lockstep.harness.workers.registry import get_target, list_names

        options = metafunc.config.option
        every = [kind for rules in CONTRACTS.values() for kind in rules.kinds]
        try:
            for name in options.backend:
                get_target(name)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None
        for kind in options.kind:
            if kind not in every:
                near = suggest(kind, dict.fromkeys(every))
                raise pytest.UsageError(f"--kind {kind}: there is no such kind{near}")
        cases = [
            Case(backend, kind, part)
            for backend in options.backend or list_names()
            for kind in options.kind or every
            for part in range(PARTS)
        ]
        ids = ["-".join(map(str, case)) for case in cases]
        metafunc.parametrize("lockstep_case", cases, ids=ids)


@pytest.fixture(scope="session")
def lockstep_pool(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One worker process for all tests of this pytest process."""
    from lockstep.harness.programs.files import RUNNING
    from lockstep.harness.workers.pool import Pool

    options = request.config.option
    folder = Path(options.failures) / RUNNING
    with Pool(1, folder, strict=options.strict_messages) as pool:
        yield pool


@pytest.fixture
def lockstep_check(
    request: pytest.FixtureRequest, lockstep_pool: Any
) -> Callable[[Case], Any]:
    """Runs a case; fails with the story of each divergence, skips what is not there."""
    from lockstep.harness.jobs.check import Campaign
    from lockstep.harness.jobs.outcome import PROFILES, Settings
    from lockstep.harness.workers.registry import get_target

    options = request.config.option
    profile = PROFILES[options.profile]
    programs = profile.programs

    def check(case: Case) -> Any:
        get_target(case.backend)
        settings = Settings(
            backends=(case.backend,),
            kinds=(case.kind,),
            programs=programs,
            seed=options.seed,
            failures=Path(options.failures),
            shard=-(-programs // PARTS) if programs < 1000 else 125,
            part=(case.part, PARTS),
        )
        outcome = Campaign(settings, ()).run_in(lockstep_pool)
        if case.backend in outcome.unavailable:
            why = outcome.unavailable[case.backend]
            if options.backend:
                pytest.fail(f"{case.backend}: {why}", pytrace=False)
            pytest.skip(f"{case.backend}: {why}")
        if not outcome.pairs:
            pytest.skip(f"{case.backend} declares no {case.kind} cache")
        if outcome.get_exit_status():
            pytest.fail(describe(outcome), pytrace=False)
        return outcome

    return check


def describe(outcome: Any) -> str:
    """What went wrong, as on the terminal."""
    from io import StringIO

    from rich.console import Console

    from lockstep.harness.reports.console import list_notes, print_failure

    text = StringIO()
    console = Console(file=text, width=100, highlight=False)
    for failure in outcome.failures:
        print_failure(console, failure)
    for note in list_notes(outcome):
        console.print(note)
    return text.getvalue()
