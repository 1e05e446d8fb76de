"""The frame of every command of `lockstep`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from lockstep.harness.core.errors import UsageError, make_printable


def command(function: Callable[..., int]) -> Callable[..., None]:
    """Gives a command its exit status, and one line for what it cannot do."""

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # it may not know ✓ and ×
                stream.reconfigure(errors="replace")
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
