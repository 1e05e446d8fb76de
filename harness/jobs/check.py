"""The job of `lockstep check`: every chosen backend and kind against the reference."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from itertools import chain

from lockstep.harness.jobs.failures import describe_stop
from lockstep.harness.jobs.fold import (
    Watch,
    declare,
    finishing,
    list_asked,
    require_kinds,
    show_failures,
)
from lockstep.harness.jobs.outcome import Outcome
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.related import compare_backends, number_causes
from lockstep.harness.jobs.replay import AGREEING, get_divergence, judge
from lockstep.harness.jobs.saved import Saved, find_saved, list_files
from lockstep.harness.jobs.shards import Shards, group_pairs
from lockstep.harness.workers import messages
from lockstep.harness.workers.messages import Ran, RunProgram, Stopped
from lockstep.harness.workers.pool import Pool


def check(outcome: Outcome, names: Sequence[str], watch: Watch) -> Outcome:
    """Checks backends until all programs have run, time is up, or Ctrl-C.

    Args:
        outcome: has the settings; gets the result, also after Ctrl-C.
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
    asked = dict.fromkeys(pair.backend for pair in outcome.pairs)
    shards.tasks.extend(messages.RunLedger(name) for name in asked if name in ledgers)
    plan_saved(shards)
    shards.plan()
    shards.tick()  # time may be up once all backends are imported
    for task, event in pool.run(shards.tasks, shards.tick):
        if isinstance(task, messages.RunProgram):
            take_saved(shards, task, event)
        else:
            shards.take(task, event)
    number_causes(pool, outcome.pairs)
    compare_backends(pool, outcome.pairs, shards.tick)
    return outcome


# --- failures of earlier runs -----------------------------------------------------------


def plan_saved(shards: Shards) -> None:
    """Plans the failures of earlier runs. Their files are never removed."""
    outcome, folder = shards.outcome, shards.settings.failures
    saved = [find_saved(folder, pair, outcome.saved) for pair in outcome.pairs]
    files = [list_files(folder, pair) for pair in outcome.pairs]
    names = {f"{path.parent.name}/{path.name}" for path in chain.from_iterable(files)}
    shards.failures.protected |= names
    shards.saved = list(chain.from_iterable(saved))
    shards.tasks.extend(failure.task for failure in shards.saved)


def take_saved(shards: Shards, task: RunProgram, event: messages.Event) -> None:
    """Adds the result of a failure of an earlier run.

    One that cannot run any more, as the backend does not declare it, is passed over.
    """
    assert isinstance(event, Ran | Stopped)
    saved = next(failure for failure in shards.saved if failure.task is task)
    status, _ = judge(event, saved.program, saved.flaky)
    rerun, path = shards.outcome.saved, str(saved.path)
    rerun.ran += status != "ERROR"
    if status == "FAILED":
        keep_saved(shards, saved, event)
    elif status in AGREEING:
        insort(rerun.agreeing, path)
    elif status == "FLAKY":
        insort(rerun.absent, path)
    elif not isinstance(event, Ran | messages.Refused):
        failures = shards.settings.failures
        saved.pair.errors.append(describe_stop(failures, event, task.backend))
        shards.leave_out(saved.pair)


def keep_saved(shards: Shards, saved: Saved, event: Ran | Stopped) -> None:
    """Adds a failure of an earlier run that still diverges."""
    divergence, failures = get_divergence(event), shards.failures
    assert divergence is not None
    failure = saved.make_failure(divergence, event, shards.settings)
    if failure.path == saved.path:
        failures.written[failures.get_name(failure)] = failure.program
    failures.add(failure, failure.program.digest())
    failures.write()
    show_failures(shards.outcome, failures)
    if saved.is_short:
        shown = saved.get_shown(divergence)
        shards.tell(saved.pair, {failure.signature: shown})
    if divergence.is_fatal:  # each costs a process, and maybe the time of a hang
        shards.leave_out_saved(saved.pair, saved.signature)
