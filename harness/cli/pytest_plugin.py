"""The pytest plugin, which runs the same check as `lockstep check`, as tests.

A test with the fixture `lockstep_case` runs once for each declared backend and kind;
`lockstep_check` runs such a case, and fails the test with a report of the failure.
Backends run in another process, so that a crash or a hang fails one test and not the
whole session.

pytest loads this module in every environment that has this package. Therefore, the module
imports the harness only when a test uses a case, and every option begins with
`--lockstep-`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from lockstep.harness.cli.project import Project
    from lockstep.harness.jobs.outcome import Outcome
    from lockstep.harness.jobs.settings import Settings
    from lockstep.harness.workers.pool import Pool


class Case(NamedTuple):
    """A test of a backend and a kind that it declares.

    Attributes:
        backend: the name of the backend, as the user chose it or as it is registered.
        kind: the kind of cache; empty if the backend cannot be checked.
        reason: the reason why the backend cannot be checked; empty if it can.
    """

    backend: str
    kind: str
    reason: str = ""


Declared = tuple[list[Case], dict[str, str]]
"""The cases of a session, and backend → the reason why it is not checked."""


PROGRAMS = {"quick": 50, "ci": 600, "nightly": 14_000}
"""The profiles of `harness.jobs.settings`, copied because this module must not import
it."""

PREFIX = "lockstep-"
"""The prefix of the Hypothesis profiles with the same numbers of examples."""

FOLDER = pytest.StashKey[Path]()
"""The folder through which the processes of pytest-xdist share the declarations."""

DECLARED = pytest.StashKey[Declared]()
DECLARED_FILE = "declared.json"

SAVED = "lockstep-saved"
"""The property of a test with notes on failures of earlier runs."""


SETTINGS = "default: the project's settings"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockstep", "KV caches side by side with their reference")

    def add(name: str, text: str, **settings: Any) -> None:
        group.addoption(f"--lockstep-{name}", help=text, **settings)

    repeated: dict[str, Any] = {"action": "append", "default": []}
    text = "a registered backend, package.module:factory or exec:program; may be repeated"
    add(
        "backend", f"{text} ({SETTINGS}, else all registered)", metavar="NAME", **repeated
    )
    text = f"a kind of cache; may be repeated ({SETTINGS}, else all)"
    add("kind", text, metavar="KIND", **repeated)
    text = (
        "number of programs for each backend and kind (default: that of"
        " --hypothesis-profile=lockstep-…, else the project's settings, else ci)"
    )
    add("profile", text, choices=list(PROGRAMS))
    add("seed", "seed of the programs (default: --hypothesis-seed, else 0)", type=int)
    text = "fail a test if a program was not run or a cell not reached"
    add("require-complete", text, action="store_true")
    add(
        "failures",
        f"folder for failing programs ({SETTINGS}, else failures)",
        metavar="DIR",
    )
    text = "also import backends from this folder; may be repeated"
    add("python-path", text, metavar="DIR", **repeated)
    add("probe", "folder of the probe that a server serves", type=Path, metavar="DIR")
    add("allow-host", "host of a server on another machine", metavar="HOST")
    add("rate", "send a server at most N requests a second", type=float, metavar="N")


@pytest.hookimpl(tryfirst=True)  # Hypothesis' own plugin loads the profile
def pytest_configure(config: pytest.Config) -> None:
    """Refuses a backend or a kind that does not exist, before pytest collects tests."""
    options = config.option
    choose_profile(config)
    if not (options.lockstep_backend or options.lockstep_kind):
        return
    from lockstep.harness.cli.project import read_list
    from lockstep.harness.core.errors import UsageError

    try:
        read_list("backends", options.lockstep_backend, "--lockstep-backend", Path())
        read_list("kinds", options.lockstep_kind, "--lockstep-kind", Path())
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def choose_profile(config: pytest.Config) -> None:
    """Registers our Hypothesis profile. Uses Hypothesis' profile and seed as our
    defaults."""
    options = config.option
    name = getattr(options, "hypothesis_profile", None) or ""
    profile = name.removeprefix(PREFIX) if name.startswith(PREFIX) else ""
    if profile in PROGRAMS:
        from hypothesis import settings

        settings.register_profile(
            name,
            max_examples=PROGRAMS[profile],
            deadline=None,  # the first program imports a framework
            derandomize=profile != "nightly",
            database=None if profile == "ci" else settings().database,
        )
    options.lockstep_profile = options.lockstep_profile or profile
    if options.lockstep_seed is None:
        options.lockstep_seed = 0
        with suppress(ValueError):  # no number, or one of 5,000 digits
            options.lockstep_seed = int(str(getattr(options, "hypothesis_seed", None)))


@cache
def choose(config: pytest.Config) -> Project:
    """Returns the options, completed by the project's settings."""
    from lockstep.harness.cli.project import load_project
    from lockstep.harness.core.errors import UsageError

    try:
        project = load_project()
    except UsageError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    option = config.option
    return replace(
        project,
        backends=tuple(option.lockstep_backend) or project.backends,
        kinds=tuple(option.lockstep_kind) or project.kinds,
        profile=option.lockstep_profile or project.profile or "ci",
        failures=Path(option.lockstep_failures or project.failures),
        python_path=tuple(map(Path, option.lockstep_python_path)) or project.python_path,
    )


def make_settings(config: pytest.Config, **more: Any) -> Settings:
    from lockstep.harness.jobs.settings import Settings

    options, chosen = config.option, choose(config)
    return Settings(
        probe=options.lockstep_probe and options.lockstep_probe.resolve(),
        allow_host=options.lockstep_allow_host,
        rate=options.lockstep_rate,
        failures=chosen.failures,
        trusted=chosen.backends,
        **more,
    )


# --- collection -------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lockstep_case" in metafunc.fixturenames:
        cases, _ = get_declared(metafunc.config)
        metafunc.parametrize("lockstep_case", cases)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    if argname != "lockstep_case" or not isinstance(val, Case):
        return None
    return f"{val.backend} × {val.kind}" if val.kind else val.backend


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Gives a worker of pytest-xdist the folder that all workers share."""
    config = node.config
    if FOLDER not in config.stash:
        folder = config.stash[FOLDER] = Path(tempfile.mkdtemp(prefix="lockstep-"))
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    node.workerinput["lockstep_folder"] = str(config.stash[FOLDER])


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any, sched: Any) -> None:
    """Adds the program of `lockstep.run` that ended a worker of pytest-xdist."""
    chosen = sched.config.option.lockstep_failures or "failures"
    for seconds in (0, 0.1, 0.5):  # until the worker has released its record
        time.sleep(seconds)
        for folder in dict.fromkeys((Path(chosen), Path("failures"))):
            if not any((folder / "running").glob("test-*.json")):
                continue
            from lockstep.harness.jobs.crash import recover
            from lockstep.harness.reports.console import format_whole

            for failure in recover(folder):
                report.longrepr = f"{report.longrepr}\n{format_whole(failure)}"
                return


def get_declared(config: pytest.Config) -> Declared:
    """Returns the cases of this session; the first call loads every chosen backend.

    The workers of pytest-xdist must collect the same tests. Therefore, the first worker
    requests the declarations, and writes the cases to a file for the other workers.
    """
    if DECLARED in config.stash:
        return config.stash[DECLARED]
    shared = getattr(config, "workerinput", {}).get("lockstep_folder")
    if shared is None:
        declared = ask_backends(config)
    else:
        import fcntl

        path = Path(shared, DECLARED_FILE)
        with Path(shared, "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.write_text(json.dumps(ask_backends(config)))
        declared = read_declared(path)
    config.stash[DECLARED] = declared
    return declared


def read_declared(path: Path) -> Declared:
    cases, unavailable = json.loads(path.read_text())
    return [Case(*case) for case in cases], unavailable


def ask_backends(config: pytest.Config) -> Declared:
    """Loads the chosen backends in the worker process, and returns their cases."""
    from lockstep.harness.jobs.fold import declare
    from lockstep.harness.jobs.outcome import Outcome, Pair
    from lockstep.harness.workers.registry import list_names

    chosen = choose(config)
    settings = make_settings(config, backends=chosen.backends, kinds=chosen.kinds)
    outcome = Outcome(settings)
    declare(get_pool(config), outcome, list(list_names()))

    def estimate_work(pair: Pair) -> float:
        """Estimates the run time: kinds with many states have long programs."""
        return len(pair.cells) / pair.share

    # pytest-xdist is done sooner if long tests begin first.
    pairs = sorted(outcome.pairs, key=estimate_work, reverse=True)
    broken = {
        name: f"could not be loaded: {error}" for name, error in outcome.dead.items()
    }
    unavailable = dict(outcome.unavailable)
    for name in filter(unavailable.__contains__, chosen.backends):
        broken[name] = unavailable.pop(name)
    cases = [Case(name, "", reason) for name, reason in broken.items()]
    return [*cases, *(Case(pair.backend, pair.kind) for pair in pairs)], unavailable


@cache
def get_pool(config: pytest.Config) -> Pool:
    """Returns the worker process of this pytest process."""
    from lockstep.harness.cli.project import importing_from
    from lockstep.harness.core.errors import UsageError
    from lockstep.harness.jobs.pools import open_pool

    try:
        with importing_from(choose(config).python_path):
            pool = open_pool(make_settings(config), 1).__enter__()
    except UsageError as error:
        message = str(error).replace("--failures", "--lockstep-failures")
        raise pytest.Collector.CollectError(message) from None
    config.add_cleanup(pool.__exit__)
    return pool


# --- a test -----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def lockstep_pool(request: pytest.FixtureRequest) -> Pool:
    """The worker process for all tests of this pytest process."""
    return get_pool(request.config)


@pytest.fixture
def lockstep_check(
    request: pytest.FixtureRequest, lockstep_pool: Pool
) -> Callable[[Case], Outcome]:
    """Runs a case, and fails the test with a report of each divergence."""
    from lockstep.harness.jobs.check import check_in
    from lockstep.harness.jobs.outcome import Outcome
    from lockstep.harness.jobs.settings import PROFILES
    from lockstep.harness.reports.model import list_saved_notes

    options, chosen = request.config.option, choose(request.config)
    profile = chosen.profile or "ci"

    def check(case: Case) -> Outcome:
        if case.reason:
            pytest.fail(f"{case.backend}: {case.reason}", pytrace=False)
        settings = make_settings(
            request.config,
            backends=(case.backend,),
            kinds=(case.kind,),
            programs=PROGRAMS[profile],
            least=PROFILES[profile].least,
            seed=options.lockstep_seed,
            require_complete=options.lockstep_require_complete,
        )
        outcome = check_in(lockstep_pool, Outcome(settings))
        if outcome.get_exit_status():
            pytest.fail(describe(outcome), pytrace=False)
        for note in list_saved_notes(outcome.saved):
            message = f"{case.backend} × {case.kind}: {note.format()}"
            request.node.user_properties.append((SAVED, message))
        return outcome

    return check


def describe(outcome: Outcome) -> str:
    """Returns the cause on the first line, followed by the terminal report."""
    from io import StringIO

    from lockstep.harness.reports.console import (
        PlainConsole,
        print_failures,
        print_notes,
    )
    from lockstep.harness.reports.model import format_gaps, list_notes
    from lockstep.harness.reports.outcome_file import summarize

    summary = summarize(outcome)
    failures = outcome.failures
    causes = [
        f"{failure.signature}: {failure.divergence.message}" for failure in failures
    ]
    harmless = "undeclared", "unchecked", "saved", "beside", "attention", "covered"
    notes = (note for note in list_notes(summary) if note.sort not in harmless)
    causes += [note.format() for note in notes]
    cause = causes[0] if causes else format_gaps([summary]) or "nothing was checked"
    text = StringIO()
    console = PlainConsole(file=text, width=100)
    console.print(cause, soft_wrap=True)
    print_failures(console, outcome)
    print_notes(console, summary)
    return text.getvalue()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints which registered backends were not checked, notes on saved failures, and
    settings that are not obeyed."""
    cases, unavailable = config.stash.get(DECLARED, ([], {}))
    folder = config.stash.get(FOLDER, None)
    if folder is not None and (folder / DECLARED_FILE).exists():
        cases, unavailable = read_declared(folder / DECLARED_FILE)
    if cases and (ignored := choose(config).ignored):
        terminalreporter.write_line(ignored)
    if unavailable:
        from lockstep.harness.reports.model import list_unavailable_notes

        for note in list_unavailable_notes(unavailable):
            terminalreporter.write_line(note.format())
    for report in terminalreporter.getreports("passed"):
        for name, message in report.user_properties:
            if name == SAVED:
                terminalreporter.write_line(message)
