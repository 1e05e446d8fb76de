"""The frame of the commands of `lockstep`, and options of several of them."""

from __future__ import annotations

import io
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

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.document import suggest
from lockstep.harness.core.errors import UsageError, make_printable
from lockstep.harness.jobs.outcome import Settings
from lockstep.harness.workers.registry import get_target

# --- the frame of a command -------------------------------------------------------------


def command(function: Callable[..., int]) -> Callable[..., None]:
    """Gives a command its exit status, and one line for what it cannot do.

    If it has a parameter `settings`, the options that are fields of `Settings` are in
    there.
    """
    takes_settings = "settings" in signature(function).parameters
    names = {field.name for field in fields(Settings)} if takes_settings else set()

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # it may not know ✓ and ×
                stream.reconfigure(errors="replace")
        chosen = {name: options.pop(name) for name in names & options.keys()}
        if takes_settings:
            options["settings"] = Settings(**chosen)
        try:
            status = function(*arguments, **options)
            sys.stdout.flush()
        except UsageError as error:
            print_error(error)
            status = 2
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 2
        except KeyboardInterrupt:
            click.echo("lockstep: stopped", err=True)
            status = 130
        sys.exit(status)

    return run


def print_error(error: UsageError) -> None:
    """The one line; what a file or its name says in it does nothing to a terminal."""
    click.echo(f"lockstep: {make_printable(str(error))}", err=True)


def count_cores() -> int:
    return (
        len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    )


# --- options ----------------------------------------------------------------------------


KINDS = list(dict.fromkeys(kind for rules in CONTRACTS.values() for kind in rules.kinds))


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
OPTIONS: Mapping[str, Callable[..., Any]] = {
    "backend": click.option(
        "--backend", metavar="NAME", callback=check_backends, help=f"{BACKEND_HELP}."
    ),
    "backends": click.option(
        "--backend",
        "backends",
        multiple=True,
        metavar="NAME",
        callback=check_backends,
        help=f"{BACKEND_HELP}; may be repeated.",
    ),
    "kinds": click.option(
        "--kind",
        "kinds",
        multiple=True,
        metavar="KIND",
        callback=check_kinds,
        help=f"One of {', '.join(KINDS)}; may be repeated.",
    ),
    "failures": click.option(
        "--failures",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("failures"),
        show_default=True,
        help="Folder for failing programs.",
    ),
    "step": click.option(
        "--step-time",
        "step_seconds",
        type=Seconds(0.1, 3600),
        default=20.0,
        show_default=True,
        metavar="S",
        help="A step that takes longer than S seconds counts as hanging.",
    ),
    "strict": click.option(
        "--strict",
        is_flag=True,
        help="Validate every message of an exec: backend against its JSON Schema.",
    ),
    "seconds": click.option(
        "--time", "seconds", type=Seconds(0), metavar="S", help="Stop after S seconds."
    ),
    "jobs": click.option(
        "--jobs",
        type=click.IntRange(1, 256),
        default=count_cores,
        help="Number of worker processes; default: one for each core.",
    ),
    "json": click.option(
        "--json", "as_json", is_flag=True, help="Print the outcome as JSON."
    ),
}


def shared(*names: str) -> Callable[..., Any]:
    """Adds options that several commands share, in this order."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names):
            function = OPTIONS[name](function)
        return function

    return add
