"""The command `lockstep bisect`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from lockstep.harness.cli.frame import printing
from lockstep.harness.cli.options import Seconds, define, option
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.bisect.job import Bisection
from lockstep.harness.jobs.bisect.sources import Commits, Releases, Source
from lockstep.harness.jobs.failures import list_arguments
from lockstep.harness.jobs.replay import find_beside, get_own_backend, get_single
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.reports.bisect import format_conclusion, format_verdict

LIMIT_SECONDS = 1800.0


@define(
    *("paths", "backend"),
    option("--package", "Package whose releases are tried.", metavar="NAME"),
    option("--versions", "Oldest and newest release to try.", metavar="A..B"),
    "unsupported",
    option(
        "--with companions",
        'Package to install with each release, such as "mlx==0.31.2"; {version} stands'
        " for the version of the release. May be repeated.",
        multiple=True,
        metavar="REQUIREMENT",
    ),
    option(
        "--git repository",
        "Folder of a repository whose commits are tried, in a clone.",
        type=click.Path(path_type=Path),
        metavar="REPO",
    ),
    option("--good", "Revision that agrees.", metavar="REVISION"),
    option("--bad", "Revision that shows the failure.", metavar="REVISION"),
    option(
        "--build",
        "Shell command that builds and installs a commit in the clone. Default: the clone"
        " itself is on PYTHONPATH.",
        metavar="COMMAND",
    ),
    option(
        "--limit",
        "Skip a release that takes longer to install, to build or to replay.",
        type=Seconds(1, 86_400),
        default=LIMIT_SECONDS,
        show_default=True,
        metavar="S",
    ),
    "server",
)
def bisect(
    settings: Settings,
    paths: Sequence[Path],
    backend: str | None,
    package: str | None,
    versions: str | None,
    companions: Sequence[str],
    repository: Path | None,
    good: str | None,
    bad: str | None,
    build: str | None,
    limit: float,
) -> int:
    """Finds the release of a package, or the commit, that broke or mended a program.

    PATH is a path as for `lockstep replay`, with one program. Releases are tried by
    bisection, each in a scratch environment that shares all other packages of this one.
    One that does not install, build or import is skipped. Exit status: 0 one release or
    commit is named; 2 it could not be told.

    Examples:
      lockstep bisect FILE --package mlx-lm --versions 0.30.0.. --unsupported
      lockstep bisect FILE --package mlx --with "mlx-cpu=={version}"
      lockstep bisect FILE --backend mycache:make --git . --good v1.2 --bad HEAD \\
          --build "pip install -e ."
    """
    path, program = get_single(paths, "a search")
    name = backend or get_own_backend(path, program, settings)
    commits = {"--git": repository, "--good": good, "--bad": bad, "--build": build}
    chosen = [option for option, value in commits.items() if value]
    if package is not None and chosen:
        raise UsageError(
            f"--package cannot be used with {chosen[0]}; give only one of them"
        )
    with tempfile.TemporaryDirectory(prefix="lockstep-bisect-") as scratch:
        folder = Path(scratch).resolve()
        source: Source
        if package is not None:
            source = Releases(package, versions, companions)
        elif repository is not None and good is not None and bad is not None:
            source = Commits(repository, good, bad, build, folder / "repository")
        else:
            raise UsageError("give --package NAME, or --git REPO with --good and --bad")
        chosen = [name, *find_beside(program, name, settings)]
        options = [argument for target in chosen for argument in ("--backend", target)]
        options += ["--unsupported"] * settings.unsupported
        options += list_arguments(settings.get_options())

        def tell(work: Bisection, number: int) -> None:
            click.echo(format_verdict(work, number))

        work = Bisection(source, program, options, limit, tell)
        try:
            work.run(folder)
        finally:  # also if Ctrl-C ends it
            with printing(work.get_exit_status):
                click.echo(format_conclusion(work))
    return work.get_exit_status()
