"""The line for a program that ran again."""

from __future__ import annotations

from lockstep.harness.cli.frame import print_error
from lockstep.harness.jobs.replay import Replayed
from lockstep.harness.reports.console import PlainConsole, print_replayed


def print_result(console: PlainConsole, result: Replayed) -> None:
    """One line; of a file that cannot run on standard error."""
    if result.backend is None:
        print_error(result.words)
        return
    where = f"{result.backend} {result.path}"
    print_replayed(console, where, result.status, result.words)
