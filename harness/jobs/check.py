"""Runs the job of `lockstep check`: compares every backend and kind to the reference."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from stat import S_ISREG
from typing import Any

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.failures import (
    describe_stop,
    get_order,
    make_failure,
    name_file,
    read_failure,
    slug,
)
from lockstep.harness.jobs.fold import (
    Watch,
    declare,
    finishing,
    list_asked,
    require_kinds,
    show_failures,
)
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.related import compare_backends, number_causes
from lockstep.harness.jobs.replay import AGREEING, find_beside, get_divergence, judge
from lockstep.harness.jobs.shards import Saved, Shards, group_pairs
from lockstep.harness.programs.files import iterate_saved
from lockstep.harness.programs.program import UNSHRUNK, Flaky
from lockstep.harness.workers import messages
from lockstep.harness.workers.messages import Ran, RunProgram, Shown, Stopped
from lockstep.harness.workers.pool import Pool


def check(outcome: Outcome, names: Sequence[str], watch: Watch) -> Outcome:
    """Checks backends until all programs have run, the time is over, or Ctrl-C.

    Args:
        outcome: has the settings; the results are added to it, also after Ctrl-C.
        names: the registered backends, if the settings name none.
        watch: see `Watch`.

    Raises:
        UsageError: no backend can run.
    """
    with finishing(outcome), open_pool(outcome.settings) as pool:
        check_in(pool, outcome, names, watch)
    return outcome


def check_in(
    pool: Pool,
    outcome: Outcome,
    names: Sequence[str] = (),
    watch: Watch = lambda _: None,
) -> Outcome:
    """Checks backends in an open pool: first known divergences, then failures of earlier
    runs, then generated programs."""
    declared = declare(pool, outcome, names, watch)
    require_kinds(outcome, list_asked(outcome, names))
    shards = Shards(outcome, group_pairs(outcome.pairs, declared), watch)
    ledgers = [name for name, event in declared.items() if event.has_ledger]
    requested = dict.fromkeys(pair.backend for pair in outcome.pairs)
    shards.tasks.extend(messages.RunLedger(name) for name in requested if name in ledgers)
    plan_saved(shards)
    shards.plan()
    shards.tick()  # time may be up once all backends are imported
    for task, event in pool.run(shards.tasks, shards.tick):
        if isinstance(task, RunProgram):
            take_saved(shards, task, event)
        else:
            shards.take(task, event)
    number_causes(pool, outcome.pairs)
    compare_backends(pool, outcome.pairs, shards.tick)
    return outcome


# --- failures of earlier runs -----------------------------------------------------------


MAX_SAVED = 100
"""The maximum number of saved programs per backend and kind that run again."""

SHOWN_BEFORE = 64
"""The assumed number of earlier programs with the signature of a saved failure."""

DIGEST = "[0-9a-f]" * 12
"""The beginning of a file's name, as a pattern of `glob`."""


def plan_saved(shards: Shards) -> None:
    """Plans the failures of earlier runs, and protects their files from removal."""
    outcome = shards.outcome
    for pair in outcome.pairs:
        files = list_saved_files(shards.settings.failures, pair)
        names = {f"{path.parent.name}/{path.name}" for path in files}
        shards.failures.protected |= names
        outcome.saved.left_out += max(0, len(files) - MAX_SAVED)
        shards.saved += read_saved(files[:MAX_SAVED], pair, outcome)
    shards.tasks.extend(saved.task for saved in shards.saved)


def read_saved(files: Sequence[Path], pair: Pair, outcome: Outcome) -> list[Saved]:
    """Reads the failures of a pair, the simplest programs first; adds broken files to
    `Outcome.saved`."""
    chosen, rerun = [], outcome.saved
    for path, program in iterate_saved(files):
        try:
            if isinstance(program, UsageError):
                raise program
            failure = read_failure(path, program)
        except (UsageError, ValueError) as error:
            message = str(error)
            rerun.broken.append(message if str(path) in message else f"{path}: {message}")
            continue
        if (failure.backend, program.contract, program.kind) == pair.key:
            runs = 1 if failure.flaky is None else failure.flaky.runs
            beside = find_beside(program, pair.backend, outcome.settings)
            about = pair.backend, program.to_json(), runs, beside
            task = RunProgram(*about, spares_known=True)
            chosen.append(Saved(task, pair, failure))
    return sorted(chosen, key=lambda saved: get_order(saved.failure.program))


def list_saved_files(folder: Path, pair: Pair) -> list[Path]:
    """Lists the files of a pair's failures, by their names, the smallest first. It opens
    no files, because there may be thousands.
    """
    names = {name_file(pair.backend), slug(pair.backend)}  # the latter in older files
    paths = chain.from_iterable(
        folder.glob(f"{pair.contract}-{pair.kind}-*/{DIGEST}-{name}.json")
        for name in names
    )
    sizes = {path: get_size(path) for path in paths if is_of_kind(path.parent.name, pair)}
    files = [path for path, size in sizes.items() if size is not None]
    return sorted(files, key=lambda path: (sizes[path], path))


def is_of_kind(signature: str, pair: Pair) -> bool:
    """Returns whether a signature belongs to a pair's kind, and not to a kind with a
    longer name: "swa-memory" starts with "swa"."""
    matching = [
        kind
        for kind in CONTRACTS[pair.contract].kinds
        if signature.startswith(f"{pair.contract}-{kind}-")
    ]
    return max(matching, key=len) == pair.kind


def get_size(path: Path) -> int | None:
    """Returns the size of a file in bytes; None if it is not a regular file or is
    missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if S_ISREG(status.st_mode) else None


def take_saved(shards: Shards, task: RunProgram, event: messages.Event) -> None:
    """Adds the result of a failure of an earlier run.

    A failure is ignored if the backend no longer declares its operations.
    """
    assert isinstance(event, Ran | Stopped)
    saved = next(saved for saved in shards.saved if saved.task is task)
    failure, rerun = saved.failure, shards.outcome.saved
    status, _ = judge(event, failure.program, failure.flaky, task.beside)
    rerun.ran += status not in ("ERROR", "EXCLUDED")
    if status in ("FAILED", "FLAKY") and get_divergence(event):
        keep_saved(shards, saved, event)
    elif status in AGREEING:
        insort(rerun.agreeing, str(failure.path))
    elif status == "EXCLUDED":
        insort(rerun.excluded, str(failure.path))
    elif status == "FLAKY" or (task.beside and isinstance(event, messages.Refused)):
        insort(rerun.absent, str(failure.path))
    elif not isinstance(event, Ran | messages.Refused):
        failures = shards.settings.failures
        saved.pair.errors.append(describe_stop(failures, event, task.backend))
        shards.leave_out(saved.pair)


def keep_saved(shards: Shards, saved: Saved, event: Ran | Stopped) -> None:
    """Adds a failure of an earlier run that still diverges. The failure keeps its file;
    if the program now diverges in another way, it is a new failure."""
    divergence, failures = get_divergence(event), shards.failures
    assert divergence is not None
    pair, former, options = saved.pair, saved.failure, shards.settings.get_options()
    program, flaky = former.program, former.flaky
    if flaky is not None and isinstance(event, Ran):
        flaky = Flaky(event.failed, flaky.runs)
    if divergence.get_signature(program) == former.signature:
        failure = replace(former, divergence=divergence, flaky=flaky, options=options)
        failures.written[failures.get_name(failure)] = program
        states = program.meta.get("states")
        if isinstance(states, list) and all(isinstance(state, str) for state in states):
            shown = Shown(SHOWN_BEFORE, {program.digest(): states})
            shards.tell(pair, {failure.signature: shown})
    else:
        meta: dict[str, Any] = {"found": {"saved": str(former.path)}}
        meta[UNSHRUNK] = "it was shrunk for another failure"
        meta |= {} if flaky is None else {"flaky": str(flaky)}
        program = replace(program, ops=program.ops[: divergence.step + 1])
        about = program, divergence, pair.backend, pair.environment, meta, options
        failure = make_failure(shards.settings.failures, *about)
    failures.add(failure, program.digest())
    failures.write()
    show_failures(shards.outcome, failures)
    if divergence.is_fatal:  # each costs a process, and maybe the time of a hang
        shards.leave_out_saved(pair, former.signature)
