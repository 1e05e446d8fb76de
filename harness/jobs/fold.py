"""Adds declarations of backends and events of workers to an outcome."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.failures import Failure, Failures, describe_stop, make_failure
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.jobs.settings import GENERATOR, Settings
from lockstep.harness.programs.program import UNSHRUNK
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool

# --- what backends declare --------------------------------------------------------------


Watch = Callable[[Outcome], None]
"""A function that is called with the outcome whenever the outcome may have changed."""


def list_asked(outcome: Outcome, names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(outcome.settings.backends or names))


def declare(
    pool: Pool, outcome: Outcome, names: Sequence[str], watch: Watch = lambda _: None
) -> dict[str, messages.Declared]:
    """Requests the declaration of each backend, and adds its pairs to the outcome."""
    declared: dict[str, messages.Declared] = {}
    chosen = list_asked(outcome, names)
    tasks: deque[messages.Task[messages.Declared]] = deque(map(messages.Declare, chosen))
    for task, event in pool.run(tasks, lambda: watch(outcome)):
        if isinstance(event, messages.Declared):
            declared[task.backend] = event
        elif isinstance(event, messages.Stopped):
            add_refusal(outcome, task.backend, event)
    for name in chosen:
        if name in declared:
            add_pairs(outcome, name, declared[name])
    return declared


def add_pairs(outcome: Outcome, name: str, declared: messages.Declared) -> None:
    """Adds the requested pairs of a backend."""
    settings, environment = outcome.settings, declared.get_environment()
    pairs = []
    for contract, kinds in declared.contracts.items():
        for kind, promised in kinds.items():
            if not settings.kinds or kind in settings.kinds:
                unchecked = declared.unchecked.get(kind, [])
                about = promised, environment, declared.share, unchecked, declared.name
                pairs.append(Pair(name, contract, kind, *about))
    outcome.pairs += pairs
    outcome.versions.update(declared.versions)
    if not pairs and name in settings.backends:
        present = [kind for kinds in declared.contracts.values() for kind in kinds]
        wanted = " or ".join(settings.kinds)
        reason = f"declares no cache of kind {wanted} (it has: {', '.join(present)})"
        outcome.unavailable[name] = reason


def add_refusal(outcome: Outcome, name: str, event: messages.Stopped) -> None:
    """Adds a backend that could not be loaded."""
    if isinstance(event, messages.Refused):
        outcome.unavailable[name] = event.why
    else:
        outcome.dead[name] = event.describe()


def require_kinds(outcome: Outcome, names: Sequence[str]) -> None:
    """Raises UsageError if no backend declares a requested kind."""
    kinds = outcome.settings.kinds
    declared = {pair.kind for pair in outcome.pairs}
    absent = [kind for kind in kinds if kind not in declared]
    if absent and not outcome.dead and not outcome.unavailable:
        message = "no chosen backend declares a kind"
        raise UsageError(f"{message} {' or '.join(absent)}: {', '.join(names)}")


@contextmanager
def finishing(outcome: Outcome) -> Iterator[None]:
    """Keeps the results if Ctrl-C or an error ends the `with` body, and sets the time.

    Raises:
        UsageError: the error occurred before any result.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        outcome.stop(interrupt)
    except UsageError as error:  # no worker can be started any more
        outcome.give_up(error)
    outcome.seconds = time.monotonic() - outcome.started


# --- what workers report ----------------------------------------------------------------


def fold_ledger(outcome: Outcome, backend: str, event: messages.Event) -> None:
    """Adds the result of running the programs of a ledger: each program must still show
    the signature of its entry."""
    for pair in outcome.pairs:
        if pair.backend != backend:
            continue
        if isinstance(event, messages.Stopped):
            reason = describe_stop(outcome.settings.failures, event, backend)
            pair.errors.append(f"its ledger could not be run: {reason}")
            continue
        assert isinstance(event, messages.LedgerRun)
        pair.unchecked = [*pair.unchecked, *event.strays]
        for entry in event.entries:
            if entry.kind == pair.kind and entry.got == entry.signature:
                pair.known += 1
            elif entry.kind == pair.kind:
                got = entry.got or "its program agrees now"
                pair.outdated.append(f"{entry.id}: expected {entry.signature}; {got}")


def fold_shard(
    outcome: Outcome,
    failures: Failures,
    pair: Pair,
    task: messages.SliceTask,
    event: messages.Event,
    environment: Mapping[str, Any] | None = None,
) -> None:
    """Adds an event of a shard.

    Args:
        outcome: the result so far; the kept failures are added to it.
        failures: diverging programs are added to this collection.
        pair: the pair of the outcome that the event concerns.
        task: the shard.
        event: an event of the shard.
        environment: the environment of the run; None for the environment of the pair.
    """
    if isinstance(event, messages.Found):
        about = pair.environment if environment is None else environment
        failure = describe_failure(outcome.settings, pair, task, event, about)
        failures.add(failure, event.original)
        failures.write()
        show_failures(outcome, failures)
    elif isinstance(event, messages.Agreed):
        message = save_agreed(failures, event, pair.backend)
        pair.outdated += [] if event.entry in pair.agreed else [message]
        pair.agreed.add(event.entry)
    elif isinstance(event, messages.Progress):
        pair.running[task.number] = event.counts
        pair.reached.update(event.reached)
    elif isinstance(event, messages.SliceDone):
        pair.running.pop(task.number, None)
        pair.add(task.number, event)
    else:
        counts = pair.running.pop(task.number, None)
        if counts is not None:
            pair.include(counts)


def describe_failure(
    settings: Settings,
    pair: Pair,
    task: messages.SliceTask,
    event: messages.Found,
    environment: Mapping[str, Any],
) -> Failure:
    """Creates the failure of a diverging program, with the path of its file."""
    source: dict[str, Any] = {
        "front": "every" if isinstance(task, messages.ExhaustiveTask) else GENERATOR,
        "seed": settings.seed,
        "shard": task.number,
    }
    if event.programs:
        source |= {"programs": event.programs, "seconds": event.seconds}
    meta: dict[str, Any] = {"found": source}
    if event.original is None:  # until the shrunk program replaces it
        meta[UNSHRUNK] = "the run ended before it was shrunk"
    meta |= event.get_meta()
    meta |= {"states": event.states} if event.original and event.programs else {}
    about = event.parsed, event.divergence, pair.backend, environment, meta
    return make_failure(settings.failures, *about, settings.get_options())


def show_failures(outcome: Outcome, failures: Failures) -> None:
    """Sets the failures of each pair to the kept failures."""
    chosen = failures.choose()
    for pair in outcome.pairs:
        pair.failures[:] = [
            failure
            for failure in chosen
            if (failure.backend, failure.program.contract, failure.program.kind)
            == pair.key
        ]


def save_agreed(failures: Failures, event: messages.Agreed, backend: str) -> str:
    """Saves a program that agrees but should show a known divergence.

    Returns:
        A message about the ledger entry, with the path of the file.
    """
    message = f"the ledger's entry {event.entry} describes an operation that agrees"
    program = replace(event.parsed, meta={"backend": backend, "what": message})
    message = f"{event.entry}: describes an operation that agrees: its `when` is too wide"
    return f"{message}{failures.save_agreed(program, event.entry, backend)}"
