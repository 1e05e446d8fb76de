"""What every command of `lockstep` is made of."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from harness.errors import UsageError


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
            click.echo(f"lockstep: {error}", err=True)
            status = 2
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 2
        except KeyboardInterrupt:
            click.echo("lockstep: stopped", err=True)
            status = 130
        sys.exit(status)

    return run


def count_cores() -> int:
    return (
        len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    )
