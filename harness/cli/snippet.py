"""The command `lockstep snippet`."""

from __future__ import annotations

from pathlib import Path

import click

from lockstep.harness.cli.options import backend_option, command, failures_option
from lockstep.harness.cli.replay import get_own_backend, get_single
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.files import RUNNING
from lockstep.harness.workers.messages import Stopped, WriteSnippet
from lockstep.harness.workers.pool import Pool

SNIPPET_EXAMPLES = """\b
Example:
  lockstep snippet failures/SIGNATURE/FILE.json > bug.py
  python bug.py
"""


@click.command(
    epilog=SNIPPET_EXAMPLES,
    short_help="Prints a failure as code for those who make the cache.",
)
@click.argument("file", type=click.Path(path_type=Path))
@backend_option
@failures_option
@command
def snippet(file: Path, backend: str | None, failures: Path) -> int:
    """Prints a failure as a Python script in the framework's own API.

    It needs nothing of this project, and ends with status 1 as long as the failure is
    there: what a report to the makers of a cache should have.
    """
    program = get_single(file)
    name = backend or get_own_backend(file, program)
    with Pool(1, failures / RUNNING) as pool:
        event = pool.call(WriteSnippet(name, program.to_json()))
    if isinstance(event, Stopped):
        raise UsageError(f"{file}: no snippet: {event.describe()}")
    click.echo(event.text, nl=False)
    return 0
