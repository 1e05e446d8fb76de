"""Defines commands: shared options, settings, exit status, error line."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from inspect import cleandoc, signature
from pathlib import Path
from typing import Any

import click

from lockstep.harness.backends.driver.client import START_SECONDS, STEP_SECONDS
from lockstep.harness.cli.frame import print_error, run_command
from lockstep.harness.cli.project import importing_from, load_project
from lockstep.harness.contracts import KINDS
from lockstep.harness.core.document import suggest
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.workers.registry import get_target


def define(
    *options: str | Callable[..., Any],
    name: str | None = None,
    group: click.Group | None = None,
) -> Callable[[Callable[..., int]], click.Command]:
    """Makes a command from a function that returns an exit status.

    The docstring of the function becomes the help text; the paragraph "Examples:" follows
    the options.

    Args:
        options: names in `OPTIONS`, or decorators of click, in the order of the help
            text.
        name: the name of the command; default: the name of the function.
        group: the group of the command.
    """
    adds = [OPTIONS[add] if isinstance(add, str) else add for add in options]

    def decorate(function: Callable[..., int]) -> click.Command:
        make = group.command if group else click.command
        help, _, examples = cleandoc(function.__doc__ or "").partition("\n\nExamples:\n")
        epilog = f"\b\nExamples:\n{examples}" if examples else None
        decorator = make(name, cls=Command, help=help, epilog=epilog)
        return decorator(compose(*adds)(command(function)))

    return decorate


class Command(click.Command):
    """A command whose error message for an extra argument names the option --backend."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(context, args)
        except click.UsageError as error:
            options = {option for item in self.params for option in item.opts}
            if "extra argument" not in error.message or "--backend" not in options:
                raise
            hint = "; name a backend with --backend NAME"
            raise click.UsageError(f"{error.message}{hint}", context) from None


def command(function: Callable[..., int]) -> Callable[..., None]:
    """Makes a command exit with the function's exit status, and print an error as one
    line.

    If the function has a parameter `settings`, this parameter gets all options that are
    fields of `Settings`.
    """
    takes_settings = "settings" in signature(function).parameters
    names = {field.name for field in fields(Settings)} if takes_settings else set()

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> None:
        chosen = {name: options.pop(name) for name in names & options.keys()}
        folders = options.pop("python_path", ())

        def work() -> int:
            project = load_project()
            if project.ignored is not None:
                print_error(project.ignored)
            if takes_settings:
                options["settings"] = Settings(trusted=project.backends, **chosen)
            with importing_from(folders or project.python_path):
                return function(*arguments, **options)

        sys.exit(run_command(work))

    return run


def get_default(name: str) -> Callable[[], Any]:
    """Returns a function that reads the default of an option from the project's
    settings."""
    return lambda: getattr(load_project(), name)


def count_cores() -> int:
    return (
        len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    )


# --- options ----------------------------------------------------------------------------


class Seconds(click.FloatRange):
    """A number of seconds; refuses "nan", which click's floats accept."""

    def convert(self, value: Any, param: Any, context: Any) -> float:
        seconds = float(super().convert(value, param, context))
        if math.isnan(seconds):
            self.fail(f"{value} is not a number of seconds", param, context)
        return seconds


def check_backends(context: click.Context, option: Any, value: Any) -> Any:
    """Refuses names that no backend can have. value: a name, a sequence of names, or
    None."""
    for name in [value] if isinstance(value, str) else value or ():
        get_target(name)
    return value


def check_kinds(context: click.Context, option: Any, kinds: Sequence[str]) -> Any:
    for kind in kinds:
        if kind not in KINDS:
            similar = suggest(kind, dict.fromkeys(KINDS))
            raise click.BadParameter(f"there is no kind {kind}{similar}")
    return kinds


def option(names: str, help: str, **settings: Any) -> Callable[..., Any]:
    """Returns click's decorator for an option; `names` are separated by spaces."""
    return click.option(*names.split(), help=help, **settings)


def flag(names: str, help: str) -> Callable[..., Any]:
    return option(names, help, is_flag=True)


def limit(names: str, help: str, default: float, least: float = 0.1) -> Any:
    """Returns the decorator for an option with a number of seconds, up to an hour."""
    type = Seconds(least, 3600)
    return option(names, help, type=type, default=default, show_default=True, metavar="S")


def compose(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a decorator that adds these options in this order."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorate in reversed(options):
            function = decorate(function)
        return function

    return add


def name_backends(names: str, note: str, **settings: Any) -> Callable[..., Any]:
    """Returns the decorator for the options with names of backends and with their
    folders."""
    kinds = (
        'A name from `lockstep backends`, package.module:factory, "exec:program …" or'
        " http://host:port"
    )
    folder = click.Path(exists=True, file_okay=False, path_type=Path)
    note = f"{kinds}; {note}."
    return compose(
        option(names, note, metavar="NAME", callback=check_backends, **settings),
        option(
            "--python-path",
            "Also import backends from this folder; may be repeated.",
            multiple=True,
            metavar="DIR",
            type=folder,
        ),
    )


OPTIONS: Mapping[str, Callable[..., Any]] = {
    "paths": click.argument(
        "paths", nargs=-1, required=True, metavar="PATH…", type=click.Path(path_type=Path)
    ),
    "backend": name_backends("-b --backend", "default: the backend of the file"),
    "backends": name_backends(
        "-b --backend backends",
        "may be repeated; default: the project's settings, else all",
        multiple=True,
        default=get_default("backends"),
    ),
    "given": name_backends("-b --backend backends", "may be repeated", multiple=True),
    "kinds": option(
        "-k --kind kinds",
        f"One of {', '.join(KINDS)}; may be repeated.",
        multiple=True,
        metavar="KIND",
        default=get_default("kinds"),
        callback=check_kinds,
    ),
    "failures": option(
        "--failures",
        "Folder for failing programs.",
        type=click.Path(file_okay=False, path_type=Path),
        default=get_default("failures"),
        show_default="failures",
    ),
    "step": limit(
        "--step-time step_seconds",
        "Report a step that takes longer than S seconds as a hang.",
        STEP_SECONDS,
    ),
    "start": limit(
        "--start-time start_seconds",
        "Report a backend that takes longer than S seconds to load as a hang.",
        START_SECONDS,
    ),
    "server": compose(
        option(
            "--probe",
            "The folder of the probe that a server serves; see `lockstep probe`.",
            type=click.Path(
                exists=True, file_okay=False, resolve_path=True, path_type=Path
            ),
            metavar="DIR",
        ),
        option(
            "--allow-host",
            "Also connect to a server on this host, which may be another machine.",
            metavar="HOST",
        ),
        option(
            "--rate",
            "Send a server at most N requests a second.",
            type=click.FloatRange(0.01, 1e6),
            metavar="N",
        ),
    ),
    "strict": flag(
        "--strict", "Validate every message of an exec: backend against its JSON Schema."
    ),
    "unsupported": flag(
        "--unsupported",
        "Also run backends whose installed packages have untested versions.",
    ),
    "seconds": option(
        "--time seconds", "Stop after S seconds.", type=Seconds(0), metavar="S"
    ),
    "seed": option(
        "--seed", "Seed of the programs.", type=int, default=0, show_default=True
    ),
    "jobs": option(
        "-j --jobs",
        "Worker processes; default: one for each core.",
        type=click.IntRange(1, 256),
        default=count_cores,
    ),
    "json": flag("--json as_json", "Print the outcome as JSON."),
}
