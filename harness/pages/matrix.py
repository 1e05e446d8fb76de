"""The matrix of a check: backends × kinds, a table for each contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.pages.outcomes import OutcomeSummary, PairSummary


@dataclass(frozen=True)
class Matrix:
    """Backends × kinds of one contract. rows: a backend, and for each kind its pair."""

    contract: str
    kinds: Sequence[str]
    rows: Sequence[tuple[str, Sequence[PairSummary | None]]]


def make_matrices(outcome: OutcomeSummary) -> Iterator[Matrix]:
    for contract in dict.fromkeys(pair.contract for pair in outcome.pairs):
        own = [pair for pair in outcome.pairs if pair.contract == contract]
        kinds = list(dict.fromkeys(pair.kind for pair in own))
        found: dict[str, dict[str, PairSummary]] = {}
        for pair in own:
            found.setdefault(pair.backend, {})[pair.kind] = pair
        rows = [
            (backend, [pairs.get(kind) for kind in kinds])
            for backend, pairs in found.items()
        ]
        yield Matrix(contract, kinds, rows)


def say_pair(pair: PairSummary) -> str:
    """What a pair has come to, in a cell of the matrix."""
    if pair.verdict == "diverges":
        count = len(pair.failures) + len(pair.outdated)
        return f"✗ {count} diverge" if count > 1 else "✗ diverges"
    if pair.verdict == "error":
        return "! ERROR"
    if pair.verdict == "cut":
        return f"… {pair.programs:,} of {pair.wanted:,}"
    return f"✓ {pair.programs:,}"


def list_notes(outcome: OutcomeSummary) -> Iterator[str]:
    """What the matrix leaves open."""
    for pair in outcome.pairs:
        for error in pair.errors:
            yield f"{pair.name}: ERROR: {error}"
        for entry in pair.outdated:
            yield f"{pair.name}: the ledger is outdated: {entry}"
    for backend, why in outcome.dead.items():
        yield f"{backend}: ERROR: {why}"
    for backend, why in outcome.unavailable.items():
        yield f"{backend}: not checked: {why}"


def count_missed(outcome: OutcomeSummary) -> int:
    return sum(pair.missed for pair in outcome.pairs)
