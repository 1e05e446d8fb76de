"""The commands shrink and trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from lockstep.harness.cli.frame import Unprinted, print_error, print_line, printing
from lockstep.harness.cli.options import Seconds, command, several, shared
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.check import open_pool
from lockstep.harness.jobs.outcome import Settings, describe_stop, make_failure, save
from lockstep.harness.jobs.replay import get_own_backend
from lockstep.harness.programs.files import load_saved
from lockstep.harness.programs.program import Program
from lockstep.harness.programs.program import trace as compute_answers
from lockstep.harness.reports.console import PlainConsole, print_failure
from lockstep.harness.workers.messages import Declare, Shrink, Stopped
from lockstep.harness.workers.pool import Pool

SHRINK_EXAMPLES = """\b
Examples:
  lockstep shrink failures/SIGNATURE/FILE.json --time 600
  lockstep shrink FILE --backend mycache:make   on a backend of your own
"""

TRACE_EXAMPLES = """\b
Example:
  echo '{"format": "lockstep/1", "contract": "layer", "config": {"kind": "kv"},
         "ops": [{"op": "update", "length": 2}]}' > two.json
  lockstep trace two.json
"""


@click.command(epilog=SHRINK_EXAMPLES)
@several
@shared("backend")
@click.option(
    "--time",
    "seconds",
    type=Seconds(0.1, 3600),
    default=60,
    show_default=True,
    metavar="S",
    help="Stop after S seconds, for each program.",
)
@shared("step", "start", "strict", "failures")
@command
def shrink(settings: Settings, paths: Sequence[Path], backend: str | None) -> int:
    """Continues to shrink programs that diverge, and saves the shortest ones.

    PATH is what `lockstep replay` takes. Exit status: 0 all agree by now, 1 one still
    diverges, 2 one could not be run.
    """
    found = load_saved(paths)
    console = PlainConsole()
    statuses = set()
    with open_pool(settings, 1) as pool:
        for path, program in found:
            try:
                name = backend or get_own_backend(path, program, settings)
                statuses.add(shrink_one(settings, pool, console, path, program, name))
            except Unprinted:
                raise
            except UsageError as error:
                print_error(error)
                statuses.add(2)
    return next(status for status in (1, 2, 0) if status in statuses)


def shrink_one(
    settings: Settings,
    pool: Pool,
    console: PlainConsole,
    path: Path,
    program: Program,
    name: str,
) -> int:
    """Shrinks one program on the backend `name`; returns its exit status."""
    declared = pool.call(Declare(name))
    if isinstance(declared, Stopped):
        raise UsageError(f"{name}: {declared.describe()}")
    event = pool.call(Shrink(name, program.to_json(), settings.seconds or 0))
    meta = {"shrunk_from": path.name}
    if isinstance(event, Stopped):
        blamed = event.blame()
        if blamed is None:
            raise UsageError(f"{name}: {describe_stop(settings.failures, event, name)}")
        small, divergence = blamed
    elif event.found is None:
        console.print(f"{path}: {name} agrees with the reference: nothing to shrink")
        return 0
    else:
        small, divergence = event.found.parse(), event.found.divergence
        if event.found.flaky is not None:
            meta["flaky"] = event.found.flaky
    place = settings.failures, small, divergence, name, declared.get_environment()
    failure = save(make_failure(*place, meta, settings.get_options()))
    status = 2 if divergence.is_unwritten else 1
    with printing(lambda: status):
        print_failure(console, failure)
        if failure.unsaved:
            print_line(json.dumps(failure.to_json()))
    return status


@click.command(epilog=TRACE_EXAMPLES)
@several
@command
def trace(paths: Sequence[Path]) -> int:
    """Prints what the reference expects of each operation, as JSON.

    PATH is what `lockstep replay` takes. One line for each program.
    """
    for _, program in load_saved(paths):
        answer = {
            "format": "lockstep-trace/1",
            "program": program.to_json(),
            "expected": compute_answers(program),
        }
        click.echo(json.dumps(answer))
    return 0
