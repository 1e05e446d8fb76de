"""The job of `lockstep check`: every chosen backend and kind against the reference."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.fold import add_pairs, add_refusal, require_kinds
from lockstep.harness.jobs.groups import group_pairs
from lockstep.harness.jobs.outcome import Outcome
from lockstep.harness.jobs.related import compare_backends, number_causes
from lockstep.harness.jobs.saved import plan_saved, take_saved
from lockstep.harness.jobs.settings import open_pool
from lockstep.harness.jobs.shards import Shards
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool

Watch = Callable[[Outcome], None]
"""Is called with the outcome whenever it may have changed."""


def check(outcome: Outcome, names: Sequence[str], watch: Watch) -> Outcome:
    """Checks backends until all is done, time is up, or Ctrl-C.

    Args:
        outcome: with the settings; gets the result, also what was found until Ctrl-C.
        names: the registered backends, if the settings name none.
        watch: see `Watch`.

    Raises:
        UsageError: nothing can be run.
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
    """Checks backends in a pool that is open already: known divergences first, then
    failures of earlier runs, then programs that are drawn."""
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


def list_asked(outcome: Outcome, names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(outcome.settings.backends or names))


def declare(
    pool: Pool, outcome: Outcome, names: Sequence[str], watch: Watch = lambda _: None
) -> dict[str, messages.Declared]:
    """Asks each backend for its declaration, and adds its pairs to the outcome."""
    declared: dict[str, messages.Declared] = {}
    asked = list_asked(outcome, names)
    tasks: deque[messages.Task[messages.Declared]] = deque(map(messages.Declare, asked))
    for task, event in pool.run(tasks, lambda: watch(outcome)):
        if isinstance(event, messages.Declared):
            declared[task.backend] = event
        elif isinstance(event, messages.Stopped):
            add_refusal(outcome, task.backend, event)
    for name in asked:
        if name in declared:
            add_pairs(outcome, name, declared[name])
    return declared


@contextmanager
def finishing(outcome: Outcome) -> Iterator[None]:
    """Keeps what was found when Ctrl-C or an error ends its body, and notes the time.

    Raises:
        UsageError: nothing was found.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        outcome.stop(interrupt)
    except UsageError as error:  # no worker can be started any more
        outcome.give_up(error)
    outcome.seconds = time.monotonic() - outcome.started
