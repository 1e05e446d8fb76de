"""Defines the commands for saved programs: `replay`, `snippet`, `known`, `shrink` and
`trace`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from lockstep.harness.cli.frame import (
    Unprinted,
    print_error,
    print_line,
    print_unsaved,
    printing,
)
from lockstep.harness.cli.options import define, flag, limit, option
from lockstep.harness.core.errors import UsageError, clean
from lockstep.harness.jobs.failures import describe_stop, make_failure, save
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.replay import (
    Replayed,
    describe_test,
    find_beside,
    get_own_backend,
    get_replay_status,
    get_single,
    make_entry,
    replay_paths,
    replayed_to_json,
)
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.programs.files import load_saved
from lockstep.harness.programs.program import Program, read_beside
from lockstep.harness.programs.program import trace as compute_answers
from lockstep.harness.reports.console import (
    PlainConsole,
    print_failure,
    print_replayed,
)
from lockstep.harness.workers.messages import (
    Declare,
    Describe,
    Excluded,
    Shrink,
    Stopped,
    WriteSnippet,
)
from lockstep.harness.workers.pool import Pool


def run_each(
    settings: Settings,
    programs: Sequence[tuple[Path, Program]],
    backend: str | None,
    run: Callable[[Pool, Path, Program, str], int],
) -> int:
    """Runs a function for each program, on `backend` or on the backend of its file.

    Returns:
        The exit status of the command: 1 if any program's status is 1, else the largest
        status.
    """
    statuses = {0}
    with open_pool(settings, 1) as pool:
        for path, program in programs:
            try:
                name = backend or get_own_backend(path, program, settings)
                statuses.add(run(pool, path, program, name))
            except Unprinted:
                raise
            except UsageError as error:
                print_error(error)
                statuses.add(2)
    return 1 if 1 in statuses else max(statuses)


# --- replay -----------------------------------------------------------------------------


@define(
    *("paths", "given", "unsupported", "step", "start", "strict"),
    *("server", "failures", "json"),
)
def replay(settings: Settings, paths: Sequence[Path], as_json: bool) -> int:
    """Runs saved programs again: FIXED, AGREES, EXCLUDED, FAILED, FLAKY or ERROR.

    FIXED failed before and agrees now. AGREES has never failed, such as a recording.
    EXCLUDED breaks a duty of callers that the backend declares, and does not run.

    PATH is a program file, a folder of them, or a line of a .jsonl file (found.jsonl:3).
    Without --backend, a program runs on the backend in its file, if that is registered or
    in the project's settings. If a program no longer fails, the line lists what differs
    from the machine that found it.

    Examples:
      lockstep replay failures                          all saved failures
      lockstep replay FILE --backend torch-cpu          on another backend
    """
    console = PlainConsole(stderr=as_json)
    results: list[Replayed] = []
    with open_pool(settings, 1) as pool:
        for result in replay_paths(pool, paths, settings):
            results.append(result)
            print_result(console, result)
    if as_json:
        with printing(lambda: get_replay_status(results)):
            click.echo(json.dumps(replayed_to_json(results), indent=1))
    return get_replay_status(results)


def print_result(console: PlainConsole, result: Replayed) -> None:
    """Prints a line; for a file that cannot run, on standard error."""
    if result.backend is None:
        print_error(result.words)
    else:
        subject = f"{result.backend} {result.path}"
        print_replayed(console, subject, result.status, result.words)


# --- snippet ----------------------------------------------------------------------------


@define("paths", "backend", "start", "server", "failures")
def snippet(settings: Settings, paths: Sequence[Path], backend: str | None) -> int:
    """Prints a failure as a script.

    PATH is a path as for `lockstep replay`. For a Python backend, the script calls its
    methods. For a third-party cache, the script contains a copy of our adapter, and
    needs only the framework. The script exits with status 1 while the failure persists,
    and with 0 once it is fixed. For a driver, it is a shell script with the lines that
    the driver receives and the expected answers.

    Examples:
      lockstep snippet failures/SIGNATURE/FILE.json > bug.py
      lockstep snippet FILE --backend my_cache:make > bug.py
      lockstep snippet FILE --backend exec:./driver > bug.sh
    """

    def write(pool: Pool, path: Path, program: Program, name: str) -> int:
        if beside := read_beside(program.meta):
            reason = f"it diverges only beside {clean(beside[0])}; use `lockstep replay`"
            raise UsageError(f"{path}: no snippet: {reason}")
        event = pool.call(WriteSnippet(name, program.to_json()))
        if isinstance(event, Stopped):
            raise UsageError(f"{path}: a snippet cannot be made: {event.describe()}")
        click.echo(event.text, nl=False)
        return 0

    return run_each(settings, [get_single(paths, "a snippet")], backend, write)


# --- known ------------------------------------------------------------------------------


@define(
    *("paths", "backend"),
    option(
        "--reason",
        "What is wrong, and where: a sentence that reports show.",
        required=True,
        metavar="TEXT",
    ),
    option(
        "--verdict",
        "Whether the backend is wrong, documents this limit, or was called wrongly.",
        type=click.Choice(["bug", "limit", "misuse"]),
        default="bug",
        show_default=True,
    ),
    option("--link", "The report of its maintainers.", metavar="URL"),
    flag("--duty is_duty", "Print a Duty for the declaration of the backend instead."),
    option(
        "--programs count",
        "Number of programs for each operation of the failing program.",
        type=click.IntRange(20, 100_000),
        default=400,
        show_default=True,
    ),
    *("seed", "step", "start", "server", "failures"),
)
def known(
    settings: Settings,
    paths: Sequence[Path],
    backend: str | None,
    reason: str,
    verdict: str,
    link: str | None,
    is_duty: bool,
    count: int,
) -> int:
    """Turns a failure into a known divergence, which checks no longer report.

    PATH is a path as for `lockstep replay`. Programs are drawn and run, and their
    operations show which condition leads to the divergence. The entry of the ledger is
    printed; it belongs into the folder `Backend.ledger`. Exit status: 0 the condition is
    exact; 2 it must be completed by hand, or the program could not run.

    Examples:
      lockstep known FILE --reason "trim loses a token (cache.py:90)" > ledger/trim.json
      lockstep known FILE --duty --reason "trim at most `length` tokens"
    """

    def write(pool: Pool, path: Path, program: Program, name: str) -> int:
        print_error(f"running {count} programs for each operation of {path}")
        event = pool.call(Describe(name, program.to_json(), count, settings.seed))
        if isinstance(event, Stopped):
            raise UsageError(f"{path}: cannot be described: {event.describe()}")
        entry = make_entry(event, program, (verdict, reason, link))
        lines = (
            f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entry.items()
        )
        duty_text = f"Duty({event.when!r}, {reason!r}),"
        status = 0 if event.is_exact else 2
        with printing(lambda: status):
            click.echo(duty_text if is_duty else "{\n  " + ",\n  ".join(lines) + "\n}")
        print_line(describe_test(event, program))
        return status

    return run_each(settings, [get_single(paths, "an entry")], backend, write)


# --- shrink -----------------------------------------------------------------------------


@define(
    *("paths", "backend"),
    limit("--time seconds", "Stop after S seconds, for each program.", 60),
    *("step", "start", "strict", "server", "failures"),
)
def shrink(settings: Settings, paths: Sequence[Path], backend: str | None) -> int:
    """Continues to shrink programs that diverge, and saves the shortest ones.

    PATH is a path as for `lockstep replay`. Exit status: 0 all agree now; 1 a program
    still diverges; 2 a program could not run.

    Examples:
      lockstep shrink failures/SIGNATURE/FILE.json --time 600
      lockstep shrink FILE --backend mycache:make   on a backend of your own
    """
    console = PlainConsole()

    def run(pool: Pool, path: Path, program: Program, name: str) -> int:
        declared = pool.call(Declare(name))
        if isinstance(declared, Stopped):
            raise UsageError(f"{name}: {declared.describe()}")
        beside = find_beside(program, name, settings)
        task = Shrink(name, program.to_json(), settings.seconds or 0, beside)
        event = pool.call(task)
        meta = {"shrunk_from": path.name}
        if isinstance(event, Stopped):
            blamed = event.blame()
            if isinstance(event, Excluded):
                console.print(f"{path}: EXCLUDED: {event.why}: nothing to shrink")
                return 0
            if blamed is None:
                reason = describe_stop(settings.failures, event, name)
                raise UsageError(f"{name}: {reason}")
            small, divergence = blamed
        elif event.found is None:
            console.print(f"{path}: {name} agrees with the reference: nothing to shrink")
            return 0
        else:
            small, divergence = event.found.parsed, event.found.divergence
            meta |= event.found.get_meta()
        shrunk = settings.failures, small, divergence, name, declared.get_environment()
        failure = save(make_failure(*shrunk, meta, settings.get_options()))
        status = 2 if divergence.is_unwritten else 1
        with printing(lambda: status):
            print_failure(console, failure)
            print_unsaved([failure])
        return status

    return run_each(settings, load_saved(paths), backend, run)


# --- trace ------------------------------------------------------------------------------


@define("paths")
def trace(paths: Sequence[Path]) -> int:
    """Prints the reference's answer to each operation as JSON, a line for each program.

    PATH is a path as for `lockstep replay`.

    Examples:
      echo '{"format": "lockstep/1", "contract": "layer", "config": {"kind": "kv"},
             "ops": [{"op": "update", "length": 2}]}' > two.json
      lockstep trace two.json
    """
    for _, program in load_saved(paths):
        answer = {
            "format": "lockstep-trace/1",
            "program": program.to_json(),
            "expected": compute_answers(program),
        }
        click.echo(json.dumps(answer))
    return 0
