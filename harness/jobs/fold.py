"""Adds what backends declare, and what workers report, to an outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.outcome import Outcome, Pair, Settings, describe_stop
from lockstep.harness.workers import messages


def list_pairs(
    name: str, declared: messages.Declared, settings: Settings
) -> Iterator[Pair]:
    environment = declared.get_environment()
    for contract, kinds in declared.contracts.items():
        for kind, promised in kinds.items():
            if not settings.kinds or kind in settings.kinds:
                unchecked = declared.unchecked.get(kind, [])
                given = promised, environment, declared.share, unchecked, declared.name
                yield Pair(name, contract, kind, *given)


def add_pairs(outcome: Outcome, name: str, declared: messages.Declared) -> None:
    """Adds the pairs of a backend that were asked for."""
    settings = outcome.settings
    pairs = list(list_pairs(name, declared, settings))
    outcome.pairs += pairs
    outcome.versions.update(declared.versions)
    if not pairs and name in settings.backends:
        kinds = [kind for kinds in declared.contracts.values() for kind in kinds]
        asked = " or ".join(settings.kinds)
        why = f"declares no cache of kind {asked} (it has: {', '.join(kinds)})"
        outcome.unavailable[name] = why


def require_kinds(outcome: Outcome, names: Sequence[str]) -> None:
    """Raises UsageError if no backend declares a kind that was asked for."""
    kinds = outcome.settings.kinds
    declared = {pair.kind for pair in outcome.pairs}
    absent = [kind for kind in kinds if kind not in declared]
    if absent and not outcome.dead and not outcome.unavailable:
        message = "no chosen backend declares a kind"
        raise UsageError(f"{message} {' or '.join(absent)}: {', '.join(names)}")


def fold_ledger(outcome: Outcome, backend: str, event: messages.Event) -> None:
    """Adds the result of a ledger: a known divergence must still be the same."""
    for pair in outcome.pairs:
        if pair.backend != backend:
            continue
        if isinstance(event, messages.Stopped):
            why = describe_stop(outcome.settings.failures, event, backend)
            pair.errors.append(f"its ledger could not be run: {why}")
            continue
        assert isinstance(event, messages.LedgerRun)
        for entry in event.entries:
            if entry.kind == pair.kind and entry.got == entry.signature:
                pair.known += 1
            elif entry.kind == pair.kind:
                got = entry.got or "its program agrees now"
                pair.outdated.append(f"{entry.id}: expected {entry.signature}; {got}")


def fold_counts(pair: Pair, number: int, event: messages.Event) -> None:
    """Adds the progress of a slice, or its end, to the sums of its pair."""
    if isinstance(event, messages.Progress):
        pair.running[number] = event.counts
        pair.reached.update(event.reached)
        return
    counts = pair.running.pop(number, None)
    if isinstance(event, messages.SliceDone):
        pair.add(number, event)
    elif counts is not None:
        pair.include(counts)
