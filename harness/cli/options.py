"""The frame of the commands of `lockstep`, and options of several of them."""

from __future__ import annotations

import io
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import IO, Any

import click

from lockstep.harness.backends.driver.client import START_SECONDS, STEP_SECONDS
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.document import suggest
from lockstep.harness.core.errors import (
    Terminated,
    UsageError,
    format_error,
    get_interrupt_status,
    is_own,
    make_printable,
)
from lockstep.harness.jobs.outcome import Settings
from lockstep.harness.programs.generate import GENERATORS, GUIDED
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
        chosen = {name: options.pop(name) for name in names & options.keys()}
        if takes_settings:
            options["settings"] = Settings(**chosen)
        sys.exit(run_command(lambda: function(*arguments, **options)))

    return run


def run_command(function: Callable[[], int]) -> int:
    """The exit status of a command, whatever happens. Nothing but a divergence is 1."""
    try:
        with prepared(), signals():
            status = function()
            sys.stdout.flush()
            return status
    except Unprinted as error:
        return end_output(error)
    except UsageError as error:
        print_error(error)
        return 2
    except KeyboardInterrupt as interrupt:
        print_error("stopped")
        return get_interrupt_status(interrupt)
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None:  # not of opening a file
            return end_output(Unprinted(error, 2))
        print_error(describe_own_error(error))
        return 2


def describe_own_error(error: Exception) -> str:
    """One line for an exception that the harness itself should not have raised."""
    own = [*filter(is_own, traceback.extract_tb(error.__traceback__))]
    places = " < ".join(f"{Path(one.filename).name}:{one.lineno}" for one in own[:-4:-1])
    return f"the harness itself failed at {places}: {format_error(error)}"


def print_error(error: UsageError | str) -> None:
    """The one line; what a file or its name says in it does nothing to a terminal."""
    print_line(f"lockstep: {make_printable(str(error))}")


def print_line(text: str) -> None:
    """A line on standard error, if anybody reads it."""
    try:
        click.echo(text, err=True)
    except OSError:
        silence(sys.stderr)


# --- its surroundings: streams, the terminal's size, signals ----------------------------


@contextmanager
def prepared() -> Iterator[None]:
    """Makes the surroundings of a process such that nothing in them breaks a command.

    Raises:
        UsageError: standard output is closed.
    """
    fill_descriptors()
    for name in ("COLUMNS", "LINES"):
        if not is_size(os.environ.get(name, "80")):
            del os.environ[name]
    if sys.stdout is None:
        raise UsageError("standard output is closed; give it a file, or /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # it may not know ✓ and ×
            stream.reconfigure(errors="replace")
    yield


def fill_descriptors() -> None:
    """Opens the standard streams that are closed: another file would get their numbers,
    and the output of a worker would go into it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free


def is_size(text: str) -> bool:
    """Whether rich can use it as the columns or lines of a terminal."""
    return text.isascii() and text.isdigit() and 0 < int(text[:9]) < 100_000


ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command as Ctrl-C does: what was found is kept."""


@contextmanager
def signals() -> Iterator[None]:
    """Raises `Terminated` for signals that would end the process on the spot."""

    def end(number: int, _: Any) -> None:
        raise Terminated(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores SIGHUP
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def shielded() -> Iterator[None]:
    """Lets signals wait until its body is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDING, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Unprinted(UsageError):
    """The report could not be written to standard output. status: of the command."""

    def __init__(self, error: OSError, status: int) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror or error}")
        self.is_closed = isinstance(error, BrokenPipeError)  # as by `head`
        self.status = 1 if status == 1 else 2


@contextmanager
def printing(get_status: Callable[[], int]) -> Iterator[None]:
    """Tells that a report cannot be written from other errors.

    Args:
        get_status: the exit status of the command, had it been written.

    Raises:
        Unprinted: it cannot be written.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        raise Unprinted(error, get_status()) from error


def end_output(error: Unprinted) -> int:
    silence(sys.stdout)
    if not error.is_closed:
        print_error(error)
    return error.status


def silence(stream: Any) -> None:
    """Lets the rest of a stream go nowhere: Python flushes it at its end."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Commands(click.Group):
    """A group whose help may fail to be written as well."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().main(*arguments, **options)
        except OSError as error:
            sys.exit(end_output(Unprinted(error, 2)))


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
        " numbers; hypothesis: a seed for each program; choices: each choice, as tests"
        " with lockstep.programs draw; guided: longer programs.",
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


def require_guided(option: str, generator: str) -> None:
    """Raises UsageError if a generator cannot do what an option asks for."""
    if generator not in GUIDED:
        raise UsageError(
            f"{option}: the generator {generator} starts from no programs; choose"
            f" --generator {' or '.join(GUIDED)}"
        )


def shared(*names: str) -> Callable[..., Any]:
    """Adds options that several commands share, in this order."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names):
            function = OPTIONS[name](function)
        return function

    return add
