"""The matrix of one check or of several: backends × kinds, a table for each contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.printable import say_needed
from lockstep.harness.reports.pages.outcomes import OutcomeSummary, PairSummary


@dataclass(frozen=True)
class Matrix:
    """Backends × kinds of one contract. rows: a backend, and for each kind its pair."""

    contract: str
    kinds: Sequence[str]
    rows: Sequence[tuple[str, Sequence[PairSummary | None]]]


def make_matrices(outcomes: Sequence[OutcomeSummary]) -> list[Matrix]:
    """All outcomes together. A backend of which several have the same kind gets a row for
    each of them."""
    placed = [(outcome, pair) for outcome in outcomes for pair in outcome.pairs]
    times = Counter((pair.backend, pair.contract, pair.kind) for _, pair in placed)
    several = {backend for (backend, *_), count in times.items() if count > 1}
    found: dict[str, dict[str, dict[str, PairSummary]]] = {}
    for outcome, pair in placed:
        row = pair.backend
        if row in several:
            row += f" ({outcome.place})"
        found.setdefault(pair.contract, {}).setdefault(row, {})[pair.kind] = pair
    contracts = sort_as(CONTRACTS, found)
    return [make_matrix(contract, found[contract]) for contract in contracts]


def make_matrix(contract: str, rows: dict[str, dict[str, PairSummary]]) -> Matrix:
    known = CONTRACTS[contract].kinds if contract in CONTRACTS else ()
    kinds = sort_as(known, [kind for pairs in rows.values() for kind in pairs])
    cells = [(row, [pairs.get(kind) for kind in kinds]) for row, pairs in rows.items()]
    return Matrix(contract, kinds, cells)


def sort_as(known: Iterable[str], names: Iterable[str]) -> list[str]:
    """Each name once, in the order of those that are known; others behind."""
    order = [*known]
    return sorted(
        dict.fromkeys(names),
        key=lambda name: order.index(name) if name in order else len(order),
    )


def say_pair(pair: PairSummary) -> str:
    """What a pair has come to, in a cell of the matrix."""
    if pair.verdict == "diverges":
        count = len(pair.failures) + len(pair.outdated)
        return f"✗ {count} diverge" if count > 1 else "✗ diverges"
    if pair.verdict == "unfinished":
        return "! unfinished"
    if pair.verdict == "error":
        return "! ERROR"
    if pair.verdict == "cut":
        return f"… {pair.programs:,} of {pair.wanted:,}"
    return f"✓ {pair.programs:,}"


def list_notes(outcomes: Sequence[OutcomeSummary]) -> Iterator[str]:
    """What the matrix leaves open, each line once."""
    lines = (line for outcome in outcomes for line in list_own_notes(outcome))
    yield from dict.fromkeys(lines)


def list_own_notes(outcome: OutcomeSummary) -> Iterator[str]:
    for pair in outcome.pairs:
        for part, operation in pair.missing.items():
            yield f"{pair.name}: {say_needed(part, operation)}"
        for error in pair.errors:
            yield f"{pair.name}: ERROR: {error}"
        for entry in pair.outdated:
            yield f"{pair.name}: the ledger is outdated: {entry}"
    for backend, why in outcome.dead.items():
        yield f"{backend}: ERROR: {why}"
    for backend, why in outcome.unavailable.items():
        yield f"{backend}: not checked: {why}"
