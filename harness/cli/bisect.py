"""The command `lockstep bisect`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from lockstep.harness.cli.frame import print_error, printing
from lockstep.harness.cli.options import Seconds, command, shared
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.bisect.commits import Commits, find_commits
from lockstep.harness.jobs.bisect.job import Bisection, Source
from lockstep.harness.jobs.bisect.releases import (
    Releases,
    find_declared,
    list_releases,
    parse_companions,
    parse_range,
    select,
)
from lockstep.harness.jobs.bisect.scratch import get_cache_folder
from lockstep.harness.jobs.replay import get_own_backend
from lockstep.harness.jobs.settings import (
    Settings,
)
from lockstep.harness.programs.files import load_saved
from lockstep.harness.programs.program import Program
from lockstep.harness.reports.bisect import (
    bisection_to_json,
    get_bisect_status,
    print_bisection,
)
from lockstep.harness.reports.console import PlainConsole, Progress

LIMIT_SECONDS = 1800.0

BISECT_EXAMPLES = """\b
Examples:
  lockstep bisect FILE --package mlx-lm             releases that are tested here
  lockstep bisect FILE --package mlx-lm --versions 0.30.0.. --unsupported
  lockstep bisect FILE --package mlx --with "mlx-cpu=={version}"
  lockstep bisect FILE --backend mycache:make --git . --good v1.2 --bad HEAD \\
      --build "pip install -e ."
"""


@click.command(epilog=BISECT_EXAMPLES)
@shared("paths")
@shared("backend")
@click.option("--package", metavar="NAME", help="Package whose releases are tried.")
@click.option(
    "--versions",
    metavar="A..B",
    help="The oldest and the newest release to try; one of them may be missing. Default:"
    " those that the backend is tested with.",
)
@shared("unsupported")
@click.option(
    "--with",
    "companions",
    multiple=True,
    metavar="REQUIREMENT",
    help='Also install this beside each release, such as "mlx==0.31.2"; {version} stands'
    " for the version of the release. May be repeated.",
)
@click.option(
    "--deps",
    "dependencies",
    is_flag=True,
    help="Also install what a release requires and this environment does not have.",
)
@click.option(
    "--git",
    "repository",
    metavar="REPO",
    type=click.Path(path_type=Path),
    help="Folder of a repository whose commits are tried, in a clone.",
)
@click.option("--good", metavar="REVISION", help="Revision that agrees.")
@click.option("--bad", metavar="REVISION", help="Revision that shows the failure.")
@click.option(
    "--build",
    metavar="COMMAND",
    help="Command line for the shell that builds and installs a commit, in the clone and"
    " with a scratch environment. Default: the clone itself is on PYTHONPATH.",
)
@click.option(
    "--limit",
    type=Seconds(1, 86_400),
    default=LIMIT_SECONDS,
    show_default=True,
    metavar="S",
    help="A release that takes longer than S seconds to install, to build or to replay is"
    " skipped.",
)
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for scratch environments, which are used again, and for what builds"
    " print. Default: ~/.cache/kv-lockstep/bisect; it may be removed at any time.",
)
@shared("step", "start", "strict", "json")
@command
def bisect(
    settings: Settings,
    paths: Sequence[Path],
    backend: str | None,
    package: str | None,
    versions: str | None,
    companions: Sequence[str],
    dependencies: bool,
    repository: Path | None,
    good: str | None,
    bad: str | None,
    build: str | None,
    limit: float,
    cache: Path | None,
    as_json: bool,
) -> int:
    """Finds the release of a package, or the commit, that broke or mended a program.

    PATH is what `lockstep replay` takes. Releases are tried by binary search, each in a
    scratch environment that shares all other packages of this one. One that does not
    install, build or import is skipped. Exit status: 0 one release or commit is named,
    for each program; 2 it could not be told.
    """
    refuse_mixture(
        {"--package": package, "--versions": versions, "--with": companions}
        | {"--deps": dependencies},
        {"--git": repository, "--good": good, "--bad": bad, "--build": build},
    )
    cache = (cache or get_cache_folder()).absolute()

    def search(name: str, program: Program, folder: Path) -> int:
        left_out = 0
        source: Source
        if package is not None:
            beside = parse_companions(companions)
            declared = None if settings.unsupported else find_declared(name, package)
            chosen, left_out = find_releases(package, versions, declared)
            source = Releases(package, chosen, beside, dependencies, cache)
        elif repository is not None and good is not None and bad is not None:
            found = find_commits(repository, good, bad)
            source = Commits(repository, found, build, folder)
        else:
            raise UsageError("give --package NAME, or --git REPO with --good and --bad")
        own = source, program, name, settings, cache / "logs", limit, left_out
        work = Bisection(*own)
        works.append(work)
        return try_all(work, folder, as_json)

    works: list[Bisection] = []
    programs, statuses = load_saved(paths), []
    try:
        for path, program in programs:
            if len(programs) > 1:
                PlainConsole(stderr=as_json).print(f"{path}:", soft_wrap=True)
            with tempfile.TemporaryDirectory(prefix="lockstep-bisect-") as made:
                folder = Path(made).resolve()
                try:
                    name = backend or get_own_backend(path, program, settings)
                    statuses.append(search(name, program, folder))
                except UsageError as error:
                    if len(programs) == 1:
                        raise
                    print_error(error)
                    statuses.append(2)
    finally:
        if as_json and works:
            print_documents(works)
    return max(statuses)


def print_documents(works: Sequence[Bisection]) -> None:
    """What was learned as JSON: a document, or a list of them, one for each program."""
    documents = [bisection_to_json(work) for work in works]
    with printing(lambda: max(work.get_exit_status() for work in works)):
        click.echo(json.dumps(documents if len(works) > 1 else documents[0], indent=1))


def refuse_mixture(first: Mapping[str, object], second: Mapping[str, object]) -> None:
    """Refuses options of one way beside those of another."""
    given = [[name for name, value in way.items() if value] for way in (first, second)]
    if all(given):
        raise UsageError(f"{given[0][0]} does not go together with {given[1][0]}")


def find_releases(
    package: str, text: str | None, declared: SpecifierSet | None
) -> tuple[list[Version], int]:
    """The releases to try, and how many are left out because the backend is not tested
    with them. text: of --versions."""
    ends = (None, None) if text is None else parse_range(text)
    prereleases = any(end is not None and end.is_prerelease for end in ends)
    found = list_releases(package, prereleases)
    chosen = select(package, found, ends, declared)
    if text is None:
        return chosen, 0
    return chosen, len(select(package, found, ends, None)) - len(chosen)


def try_all(work: Bisection, folder: Path, as_json: bool) -> int:
    """Runs the search and prints what it has learned, also if Ctrl-C ends it; the exit
    status."""
    console = PlainConsole(stderr=as_json)
    try:
        with Progress(console, get_bisect_status, get_bisect_status) as progress:
            work.watch = progress.show
            work.run(folder)
    except KeyboardInterrupt:
        print_all(console, work, as_json)
        raise
    print_all(console, work, as_json)
    return work.get_exit_status()


def print_all(console: PlainConsole, work: Bisection, as_json: bool) -> None:
    if not as_json:
        with printing(work.get_exit_status):
            print_bisection(console, work)
