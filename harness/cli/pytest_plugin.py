"""pytest plugin: the same check as `lockstep check`, as tests.

A test that asks for `lockstep_case` runs once for each backend and kind that is declared;
`lockstep_check` runs such a case and fails the test with the whole story. Backends run in
a process of their own, so one that crashes or hangs fails its own tests and no others.

pytest loads this module wherever the package is installed. It imports the harness only
when a test asks for a case, and every option begins with `--lockstep-`, so that it costs
nothing beside other plugins and takes no name from them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from lockstep.harness.cli.project import Project
    from lockstep.harness.jobs.outcome import Outcome
    from lockstep.harness.workers.pool import Pool


class Case(NamedTuple):
    """One test: a backend and a kind that it declares.

    Attributes:
        backend: its name, as chosen or registered.
        kind: a kind of cache; empty if nothing of the backend can be checked.
        why: the reason for that; empty otherwise.
    """

    backend: str
    kind: str
    why: str = ""


class Declared(NamedTuple):
    """The cases of a session, and backend → why of those that are not checked."""

    cases: list[Case]
    unavailable: dict[str, str]


PROGRAMS = {"quick": 100, "ci": 1000, "nightly": 25_000}
"""The profiles of `harness.jobs.outcome`, which is not imported before it is needed."""

PREFIX = "lockstep-"
"""Of the profiles of Hypothesis that have as many examples."""

FOLDER = pytest.StashKey[Path]()
"""A folder in which the processes of pytest-xdist share one declaration."""

DECLARED = pytest.StashKey[Declared]()
POOL = pytest.StashKey["Pool"]()
CHOSEN = pytest.StashKey["Project"]()
DECLARED_FILE = "declared.json"

SAVED = "lockstep-saved"
"""The property of a test that tells of failures of earlier runs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockstep", "KV caches side by side with their reference")
    group.addoption(
        "--lockstep-backend",
        action="append",
        default=[],
        metavar="NAME",
        help="a registered backend, package.module:factory or exec:program; may be"
        " repeated (default: those of the project's settings, else all registered)",
    )
    group.addoption(
        "--lockstep-kind",
        action="append",
        default=[],
        metavar="KIND",
        help="a kind of cache; may be repeated (default: those of the project's settings,"
        " else all that are declared)",
    )
    group.addoption(
        "--lockstep-profile",
        choices=list(PROGRAMS),
        help="number of programs for each backend and kind (default: the one that"
        " --hypothesis-profile=lockstep-… names, else that of the project's settings,"
        " else ci)",
    )
    group.addoption(
        "--lockstep-seed",
        type=int,
        help="seed of the programs (default: that of --hypothesis-seed, else 0)",
    )
    group.addoption(
        "--lockstep-require-complete",
        action="store_true",
        help="fail a test if a program was not run or a cell not reached",
    )
    group.addoption(
        "--lockstep-failures",
        metavar="DIR",
        help="folder for failing programs (default: that of the project's settings, else"
        " failures)",
    )
    group.addoption(
        "--lockstep-python-path",
        action="append",
        default=[],
        metavar="DIR",
        help="folder to import backends from, besides the current one; may be repeated",
    )


@pytest.hookimpl(tryfirst=True)  # Hypothesis' own plugin loads the profile
def pytest_configure(config: pytest.Config) -> None:
    """Refuses a backend or a kind that does not exist, before anything is collected."""
    options = config.option
    choose_profile(config)
    if not (options.lockstep_backend or options.lockstep_kind):
        return
    from lockstep.harness.contracts import CONTRACTS
    from lockstep.harness.core.document import suggest
    from lockstep.harness.core.errors import UsageError
    from lockstep.harness.workers.registry import get_target

    try:
        for name in options.lockstep_backend:
            get_target(name)
    except UsageError as error:
        text = str(error).replace("--backend", "--lockstep-backend", 1)
        raise pytest.UsageError(text) from None
    kinds = [kind for contract in CONTRACTS.values() for kind in contract.kinds]
    for kind in options.lockstep_kind:
        if kind not in kinds:
            near = suggest(kind, dict.fromkeys(kinds))
            raise pytest.UsageError(
                f"--lockstep-kind {kind}: there is no such kind{near}"
            )


def choose_profile(config: pytest.Config) -> None:
    """Registers the profile that Hypothesis is to load, if it is one of ours; chooses the
    profile and the seed of the check, if they were not chosen."""
    options = config.option
    name = getattr(options, "hypothesis_profile", None) or ""
    own = name.removeprefix(PREFIX) if name.startswith(PREFIX) else ""
    if own in PROGRAMS:
        from hypothesis import settings

        settings.register_profile(
            name,
            max_examples=PROGRAMS[own],
            deadline=None,  # the first program imports a framework
            derandomize=own != "nightly",
            database=None if own == "ci" else settings().database,
        )
    options.lockstep_profile = options.lockstep_profile or own
    if options.lockstep_seed is None:
        seed = str(getattr(options, "hypothesis_seed", None))
        options.lockstep_seed = int(seed) if seed.lstrip("-").isdigit() else 0


def choose(config: pytest.Config) -> Project:
    """The options, and the project's settings for those that are not given."""
    from lockstep.harness.cli.project import load_project
    from lockstep.harness.core.errors import UsageError

    if CHOSEN in config.stash:
        return config.stash[CHOSEN]
    try:
        project = load_project()
    except UsageError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    option = config.option
    chosen = config.stash[CHOSEN] = replace(
        project,
        backends=tuple(option.lockstep_backend) or project.backends,
        kinds=tuple(option.lockstep_kind) or project.kinds,
        profile=option.lockstep_profile or project.profile or "ci",
        failures=Path(option.lockstep_failures or project.failures),
        python_path=tuple(map(Path, option.lockstep_python_path)) or project.python_path,
    )
    return chosen


# --- collection -------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lockstep_case" in metafunc.fixturenames:
        metafunc.parametrize("lockstep_case", get_declared(metafunc.config).cases)


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


def get_declared(config: pytest.Config) -> Declared:
    """Returns the cases of this session; the first call loads every chosen backend.

    The workers of pytest-xdist must collect the same tests: the first one asks the
    backends, and the others read its answer.
    """
    if DECLARED in config.stash:
        return config.stash[DECLARED]
    folder = Path(getattr(config, "workerinput", {}).get("lockstep_folder", ""))
    if folder.is_absolute() and folder.is_dir():
        import fcntl

        path = folder / DECLARED_FILE
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.write_text(json.dumps(ask_backends(config)))
        found = read_declared(path)
    else:
        found = ask_backends(config)
    config.stash[DECLARED] = found
    return found


def read_declared(path: Path) -> Declared:
    cases, unavailable = json.loads(path.read_text())
    return Declared([Case(*case) for case in cases], unavailable)


def ask_backends(config: pytest.Config) -> Declared:
    """Loads the chosen backends in the worker process, for what they declare."""
    from lockstep.harness.jobs.fold import declare
    from lockstep.harness.jobs.outcome import Outcome, Pair
    from lockstep.harness.jobs.settings import Settings
    from lockstep.harness.workers.registry import list_names

    chosen = choose(config)
    named = chosen.backends
    outcome = Outcome(Settings(named, chosen.kinds))
    declare(get_pool(config), outcome, list(list_names()))

    def estimate_work(pair: Pair) -> float:
        """Kinds with many states have long programs."""
        return len(pair.cells) / pair.share

    # pytest-xdist is done sooner if long tests begin first.
    pairs = sorted(outcome.pairs, key=estimate_work, reverse=True)
    broken = {name: f"could not be loaded: {why}" for name, why in outcome.dead.items()}
    for name in named:
        if name in outcome.unavailable:
            broken[name] = outcome.unavailable[name]
    cases = [Case(name, "", why) for name, why in broken.items()]
    cases += [Case(pair.backend, pair.kind) for pair in pairs]
    others = outcome.unavailable.items()
    return Declared(cases, {name: why for name, why in others if name not in broken})


def get_pool(config: pytest.Config) -> Pool:
    """The one worker process of this pytest process."""
    from lockstep.harness.cli.project import importing_from
    from lockstep.harness.core.errors import UsageError
    from lockstep.harness.programs.files import RUNNING
    from lockstep.harness.workers.pool import Pool

    if POOL not in config.stash:
        chosen = choose(config)
        try:
            with importing_from(chosen.python_path):
                pool = config.stash[POOL] = Pool(1, chosen.failures / RUNNING).__enter__()
        except UsageError as error:
            words = str(error).replace("--failures", "--lockstep-failures")
            raise pytest.Collector.CollectError(words) from None
        config.add_cleanup(lambda: pool.__exit__())
    return config.stash[POOL]


# --- a test -----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def lockstep_pool(request: pytest.FixtureRequest) -> Pool:
    """One worker process for all tests of this pytest process."""
    return get_pool(request.config)


@pytest.fixture
def lockstep_check(
    request: pytest.FixtureRequest, lockstep_pool: Pool
) -> Callable[[Case], Outcome]:
    """Runs a case, and fails the test with the story of each divergence."""
    from lockstep.harness.jobs.check import check_in
    from lockstep.harness.jobs.outcome import Outcome
    from lockstep.harness.jobs.settings import Settings
    from lockstep.harness.reports.model import list_saved_notes

    options, chosen = request.config.option, choose(request.config)

    def check(case: Case) -> Outcome:
        if case.why:
            pytest.fail(f"{case.backend}: {case.why}", pytrace=False)
        settings = Settings(
            backends=(case.backend,),
            kinds=(case.kind,),
            programs=PROGRAMS[chosen.profile or "ci"],
            seed=options.lockstep_seed,
            require_complete=options.lockstep_require_complete,
            failures=chosen.failures,
        )
        outcome = check_in(lockstep_pool, Outcome(settings))
        if outcome.get_exit_status():
            pytest.fail(describe(outcome), pytrace=False)
        for note in list_saved_notes(outcome.saved):
            words = f"{case.backend} × {case.kind}: {note.format()}"
            request.node.user_properties.append((SAVED, words))
        return outcome

    return check


def describe(outcome: Outcome) -> str:
    """The first line names the cause; the rest is the story, as on the terminal."""
    from collections import Counter
    from io import StringIO

    from lockstep.harness.reports.console import PlainConsole, print_failure, print_notes
    from lockstep.harness.reports.model import format_gaps, list_notes, summarize

    text = StringIO()
    counts = sum((pair.count_signatures() for pair in outcome.pairs), Counter[str]())
    console = PlainConsole(file=text, width=100)
    summary = summarize(outcome)
    causes = [f"{one.signature}: {one.divergence.message}" for one in outcome.failures]
    harmless = "undeclared", "unchecked", "saved"
    notes = (note for note in list_notes(summary) if note.sort not in harmless)
    causes += [note.format() for note in notes]
    cause = causes[0] if causes else format_gaps([summary]) or "nothing was checked"
    console.print(cause, markup=False, soft_wrap=True)
    for failure in outcome.failures:
        print_failure(console, failure, counts[failure.signature])
    print_notes(console, summary)
    return text.getvalue()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, None]:
    """Leaves the cause alone in the summary; the section of the test has the rest."""
    result = yield
    if call.excinfo is None or "lockstep_case" not in getattr(item, "fixturenames", ()):
        return
    crash = getattr(result.get_result().longrepr, "reprcrash", None)
    if crash is not None and call.excinfo.errisinstance(pytest.fail.Exception):
        crash.message = str(call.excinfo.value).partition("\n")[0]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says which registered backends were not checked, and why; and what became of saved
    failures, if no test failed that tells of them."""
    found = config.stash.get(DECLARED, None)
    folder = config.stash.get(FOLDER, None)
    if folder is not None and (folder / DECLARED_FILE).exists():
        found = read_declared(folder / DECLARED_FILE)
    if found is not None and found.unavailable:
        from lockstep.harness.reports.model import list_unavailable_notes

        for note in list_unavailable_notes(found.unavailable):
            terminalreporter.write_line(note.format())
    for report in terminalreporter.getreports("passed"):
        for name, words in report.user_properties:
            if name == SAVED:
                terminalreporter.write_line(words)
