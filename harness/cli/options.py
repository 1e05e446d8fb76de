"""Options that several commands have, and how they become `Settings`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import IO, Any

import click

from lockstep.harness.backends.driver.client import START_SECONDS, STEP_SECONDS
from lockstep.harness.cli.frame import describe_own_error, print_error, run_command
from lockstep.harness.cli.project import importing_from, load_project
from lockstep.harness.contracts import KINDS
from lockstep.harness.core.document import suggest
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.outcome import Settings
from lockstep.harness.programs.generate import GENERATORS, GUIDED
from lockstep.harness.workers.registry import get_target


def command(function: Callable[..., int]) -> Callable[..., None]:
    """Gives a command its exit status, and one line for what it cannot do.

    If it has a parameter `settings`, the options that are fields of `Settings` are in
    there.
    """
    takes_settings = "settings" in signature(function).parameters
    names = {field.name for field in fields(Settings)} if takes_settings else set()

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> None:
        chosen = {name: options.pop(name) for name in names & options.keys()}
        folders = options.pop("python_path", ())

        def work() -> int:
            project = load_project()
            if takes_settings:
                options["settings"] = Settings(trusted=project.backends, **chosen)
            with importing_from(folders or project.python_path):
                return function(*arguments, **options)

        sys.exit(run_command(work))

    return run


def settle(name: str) -> Callable[[], Any]:
    """The default of an option that the project's settings may choose."""

    def get() -> Any:
        try:
            return getattr(load_project(), name)
        except UsageError as error:
            raise BadInput(str(error)) from None
        except Exception as error:
            raise BadInput(describe_own_error(error)) from error

    return get


def count_cores() -> int:
    return (
        len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    )


# --- options ----------------------------------------------------------------------------


class Seconds(click.FloatRange):
    """A number of seconds; "nan" is a float, but not a number."""

    def convert(self, value: Any, param: Any, context: Any) -> float:
        seconds = float(super().convert(value, param, context))
        if math.isnan(seconds):
            self.fail(f"{value} is not a number of seconds", param, context)
        return seconds


class BadInput(click.ClickException):
    """An option that cannot be used; it ends the command in one line, status 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        print_error(UsageError(self.message))


def check_backends(context: click.Context, option: Any, value: Any) -> Any:
    """Refuses names that no backend can have. value: a name, several, or None."""
    for name in [value] if isinstance(value, str) else value or ():
        try:
            get_target(name)
        except UsageError as error:
            raise BadInput(str(error)) from None
    return value


def check_kinds(context: click.Context, option: Any, kinds: Sequence[str]) -> Any:
    for kind in kinds:
        if kind not in KINDS:
            near = suggest(kind, dict.fromkeys(KINDS))
            raise click.BadParameter(f"there is no kind {kind}{near}")
    return kinds


BACKEND_HELP = (
    'A name from `lockstep backends`, package.module:factory, or "exec:program …"'
)

FOLDERS = click.option(
    "--python-path",
    multiple=True,
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder to import backends from, besides the current one; may be repeated.",
)


def compose(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Adds several options, in this order."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def make_backends(default: Callable[[], Any] | None, note: str) -> Callable[..., Any]:
    return compose(
        click.option(
            "-b",
            "--backend",
            "backends",
            multiple=True,
            metavar="NAME",
            default=default,
            callback=check_backends,
            help=f"{BACKEND_HELP}; may be repeated{note}.",
        ),
        FOLDERS,
    )


OPTIONS: Mapping[str, Callable[..., Any]] = {
    "backend": compose(
        click.option(
            "-b",
            "--backend",
            metavar="NAME",
            callback=check_backends,
            help=f"{BACKEND_HELP}; default: the one that the file names.",
        ),
        FOLDERS,
    ),
    "backends": make_backends(
        settle("backends"), "; default: those of the project's settings, else all"
    ),
    "given": make_backends(None, ""),
    "kinds": click.option(
        "-k",
        "--kind",
        "kinds",
        multiple=True,
        metavar="KIND",
        default=settle("kinds"),
        callback=check_kinds,
        help=f"One of {', '.join(KINDS)}; may be repeated.",
    ),
    "failures": click.option(
        "--failures",
        type=click.Path(file_okay=False, path_type=Path),
        default=settle("failures"),
        show_default="failures",
        help="Folder for failing programs.",
    ),
    "step": click.option(
        "--step-time",
        "step_seconds",
        type=Seconds(0.1, 3600),
        default=STEP_SECONDS,
        show_default=True,
        metavar="S",
        help="A step that takes longer than S seconds counts as hanging.",
    ),
    "start": click.option(
        "--start-time",
        "start_seconds",
        type=Seconds(0.1, 3600),
        default=START_SECONDS,
        show_default=True,
        metavar="S",
        help="A backend that takes longer than S seconds to load counts as hanging.",
    ),
    "strict": click.option(
        "--strict",
        is_flag=True,
        help="Validate every message of an exec: backend against its JSON Schema.",
    ),
    "unsupported": click.option(
        "--unsupported",
        is_flag=True,
        help="Also run a backend with versions of its packages that it is not tested"
        " with.",
    ),
    "seconds": click.option(
        "--time", "seconds", type=Seconds(0), metavar="S", help="Stop after S seconds."
    ),
    "generator": click.option(
        "--generator",
        "--front",
        "generator",
        type=click.Choice(list(GENERATORS)),
        default="hypothesis",
        help="Generator of the programs; default: hypothesis. plain: seeded random"
        " numbers; hypothesis: a seed for 25 programs; choices: each choice, as tests"
        " with lockstep.programs draw; guided: longer programs.",
    ),
    "jobs": click.option(
        "-j",
        "--jobs",
        type=click.IntRange(1, 256),
        default=count_cores,
        help="Number of worker processes; default: one for each core.",
    ),
    "json": click.option(
        "--json", "as_json", is_flag=True, help="Print the outcome as JSON."
    ),
}


def several(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the argument of commands on saved programs."""
    paths = click.Path(path_type=Path)
    add = click.argument("paths", nargs=-1, required=True, metavar="PATH…", type=paths)
    return add(function)


def require_guided(option: str, generator: str) -> None:
    """Raises UsageError if a generator cannot do what an option asks for."""
    if generator not in GUIDED:
        raise UsageError(
            f"{option}: the generator {generator} starts from no programs; choose"
            f" --generator {' or '.join(GUIDED)}"
        )


def shared(*names: str) -> Callable[..., Any]:
    """Adds options that several commands share, in this order."""
    return compose(*(OPTIONS[name] for name in names))
