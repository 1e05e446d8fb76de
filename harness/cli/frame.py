"""Runs every command: exit status, streams, signals.

This module imports what `lockstep --help` needs, and nothing else. Each command is
imported when it runs.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from lockstep.harness.core.errors import (
    UsageError,
    clean,
    format_error,
    is_own,
    make_printable,
)
from lockstep.harness.core.interrupts import get_interrupt_status, signals


def run_command(function: Callable[[], int]) -> int:
    """Runs a command, and returns its exit status. The status 1 always means a
    divergence."""
    try:
        with prepared(), signals():
            status = function()
            sys.stdout.flush()
            return status
    except KeyboardInterrupt as interrupt:
        print_error("stopped")
        return get_interrupt_status(interrupt)
    except Exception as error:
        return end(error)


def end(error: Exception) -> int:
    """Prints one line about an exception, and returns the exit status."""
    if isinstance(error, OSError) and error.filename is None:  # no file was opened
        error = Unprinted(error, 2)
    if isinstance(error, Unprinted):
        silence(sys.stdout)
        if not error.is_closed:
            print_error(error)
        return error.status
    if isinstance(error, OSError):
        error = UsageError(f"{clean(str(error.filename))}: {error.strerror or error}")
    is_ours = isinstance(error, UsageError)
    print_error(error if is_ours else describe_own_error(error))
    return 2


def describe_own_error(error: Exception) -> str:
    """Returns a line for an exception that is a bug of the harness."""
    frames = [*filter(is_own, traceback.extract_tb(error.__traceback__))]
    lines = (f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[:-4:-1])
    return f"the harness itself failed at {' < '.join(lines)}: {format_error(error)}"


def print_error(error: Exception | str) -> None:
    """Prints the line of an error. Control characters from files have no effect."""
    print_line(f"lockstep: {make_printable(str(error))}")


def print_line(text: str) -> None:
    """Prints a line on standard error, if it is open."""
    try:
        click.echo(text, err=True)
    except OSError:
        silence(sys.stderr)


def print_unsaved(failures: Iterable[Any]) -> None:
    """Prints the failures that could not be saved, as JSON on standard error."""
    for failure in failures:
        if failure.unsaved:
            print_line(json.dumps(failure.program.to_json()))


# --- streams and the terminal's size ----------------------------------------------------


@contextmanager
def prepared() -> Iterator[None]:
    """Prepares streams and environment for a command.

    Raises:
        UsageError: standard output is closed.
    """
    fill_descriptors()
    for name in ("COLUMNS", "LINES"):
        if not is_size(os.environ.get(name, "80")):
            del os.environ[name]
    if sys.stdout is None:
        raise UsageError(
            "standard output is closed; redirect it to a file, or to /dev/null"
        )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # its encoding may lack ✓ and ×
            stream.reconfigure(errors="replace")
    yield


def fill_descriptors() -> None:
    """Opens closed standard streams.

    Otherwise, another file would get the descriptor of a standard stream, and receive the
    output of workers.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest unused descriptor


def is_size(text: str) -> bool:
    """Returns whether rich accepts the text as columns or lines of a terminal."""
    return text.isascii() and text.isdigit() and 0 < int(text[:9]) < 100_000


class Unprinted(UsageError):
    """Standard output cannot be written. status: the exit status of the command."""

    def __init__(self, error: OSError, status: int) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror or error}")
        self.is_closed = isinstance(error, BrokenPipeError)  # as by `head`
        self.status = 1 if status == 1 else 2


@contextmanager
def printing(get_status: Callable[[], int]) -> Iterator[None]:
    """Converts an OSError of the `with` body, which prints a report, to `Unprinted`.

    Args:
        get_status: returns the exit status of the command if the report was printed.

    Raises:
        Unprinted: standard output cannot be written.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        raise Unprinted(error, get_status()) from error


def print_report(
    outcome: Any, as_json: bool, to_json: Callable[[Any], Any], show: Callable[[], None]
) -> int:
    """Prints an outcome, as JSON or by `show`, and returns its exit status."""
    with printing(outcome.get_exit_status):
        if as_json:
            click.echo(json.dumps(to_json(outcome), indent=1))
        else:
            show()
    status: int = outcome.get_exit_status()
    return status


def silence(stream: Any) -> None:
    """Discards the rest of a stream, which Python flushes when it exits."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
