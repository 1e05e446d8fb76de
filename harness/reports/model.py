"""The report model: notes, verdicts and matrices of checks, for every form of report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.protocol import list_messages
from lockstep.harness.core.errors import clean, format_needed
from lockstep.harness.jobs.outcome import Rerun
from lockstep.harness.programs.program import Flaky
from lockstep.harness.reports.outcome_file import OutcomeSummary, PairSummary

# --- notes ------------------------------------------------------------------------------


class Note(NamedTuple):
    """A line about a gap or a problem that the matrix does not show.

    Attributes:
        sort: "missing", "undeclared", "unchecked", "error", "unproven", "stopped",
            "outdated", "dead", "unavailable", "saved", "beside", "attention", "covered"
            or "folded".
        subject: the backend, or backend × kind.
        message: a description of the gap, and advice.
    """

    sort: str
    subject: str
    message: str

    def format(self, verb: str = "checked") -> str:
        if self.sort == "folded":
            return f"{self.subject} {self.message}"
        prefixes = {
            "error": "ERROR: ",
            "unproven": "no tick: ",
            "dead": "ERROR: could not be loaded: ",
            "unavailable": f"not {verb}: ",
        }
        return f"{self.subject}: {prefixes.get(self.sort, '')}{self.message}"


def list_notes(outcome: OutcomeSummary) -> Iterator[Note]:
    for pair in outcome.pairs:
        for function, operation in pair.missing.items():
            yield Note("missing", pair.name, format_needed(function, operation))
        if uncalled := ", ".join(list_uncalled(pair)):
            message = f"not called yet, as each program ended before: {uncalled}"
            yield Note("missing", pair.name, message)
        if pair.undeclared and pair.backend in outcome.backends:
            names = ", ".join(pair.undeclared)
            yield Note("undeclared", pair.name, f"not declared, not checked: {names}")
        for error in pair.errors:
            yield Note("error", pair.name, error)
        if pair.shortfall:
            yield Note("stopped", pair.name, pair.shortfall)
        for entry in pair.outdated:
            yield Note("outdated", pair.name, f"the ledger is outdated: {entry}")
    yield from list_common_notes(outcome.pairs)
    yield from list_coverage_notes(outcome.pairs)
    for backend, reason in outcome.dead.items():
        yield Note("dead", backend, reason)
    yield from list_unavailable_notes(outcome.unavailable)
    yield from list_saved_notes(outcome.saved)


def list_uncalled(pair: PairSummary) -> list[str]:
    """Lists the methods (of a driver: messages) that no program has called, because other
    methods are not written yet."""
    if not pair.missing:
        return []
    rules = CONTRACTS[pair.contract]
    reached = {cell.rpartition(" × ")[2] for cell in pair.coverage}
    reached |= {*pair.undeclared, *pair.missing.values()}
    reached |= {function.partition(" ")[0] for function in pair.missing}
    names = [name for name in rules.list_operations(pair.kind) if name not in reached]
    always = () if pair.steps else rules.list_methods(pair.kind, ())
    names += [name for name in always if name not in (*reached, *names)]
    messages = list_messages(pair.contract)
    return [name for name in names if not pair.own_name or name in messages]


FOLDED = {
    "undeclared": "backends do not declare all operations",
    "unchecked": "backends have promises that cannot be checked",
    "unavailable": "backends were not checked: `lockstep backends` shows what they need",
}
"""Sorts of notes that a short report counts instead of listing, if there are many."""


def fold_notes(outcome: OutcomeSummary) -> list[Note]:
    """Lists the notes of a short report, with a count for each sort with many notes."""
    notes = [note for note in list_notes(outcome) if note.sort != "beside"]
    folded = []
    for sort, message in FOLDED.items():
        listed = [note for note in notes if note.sort == sort]
        backends = {note.subject.partition(" × ")[0] for note in listed}
        count = len(outcome.unavailable if sort == "unavailable" else backends)
        if max(count, len(listed)) > MOST_LISTED:
            notes = [note for note in notes if note.sort != sort]
            folded.append(Note("folded", f"{count}", message))
    return notes + folded


def list_common_notes(pairs: Sequence[PairSummary]) -> Iterator[Note]:
    """Merges notes that several kinds of a backend share."""
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for pair in pairs:
        unchecked = f"not checked: {', '.join(pair.unchecked)}"
        for sort, message, holds in (
            ("unproven", "; ".join(pair.unproven), pair.unproven),
            ("unchecked", unchecked, pair.unchecked),
            ("beside", f"ran the programs of {pair.programs_of}", pair.programs_of),
            ("beside", f"ran alone: {pair.parted}", pair.parted),
        ):
            if holds:
                kinds.setdefault((sort, pair.backend, message), []).append(pair.kind)
    for (sort, backend, message), names in kinds.items():
        yield Note(sort, f"{backend} × {shorten_list(names)}", message)


def list_unavailable_notes(unavailable: Mapping[str, str]) -> Iterator[Note]:
    """Lists notes on backends that cannot run here; many backends share a single note."""
    if len(unavailable) <= MOST_LISTED:
        for backend, reason in unavailable.items():
            yield Note("unavailable", backend, reason)
        return
    backends: dict[str, list[str]] = {}
    for backend, reason in unavailable.items():
        backends.setdefault(reason.partition(": pip install")[0], []).append(backend)
    causes = [f"{reason} ({shorten_list(names)})" for reason, names in backends.items()]
    message = f"{'; '.join(causes)}; to see what to install: lockstep backends"
    yield Note("unavailable", f"{len(unavailable)} backends", message)


def list_saved_notes(saved: Rerun) -> Iterator[Note]:
    """Lists notes on saved failures that did not fail, or did not run, in this check."""
    mended = "`lockstep replay` shows them; delete the files of mended failures"
    for files, singular, plural, *advice in (
        (saved.agreeing, "failure agrees now", "failures agree now", mended),
        (saved.excluded, "failure is EXCLUDED: it breaks a duty of callers", "failures"
         " are EXCLUDED: they break duties of callers", "`lockstep replay` says which"),
        (saved.absent, "flaky failure did not come back", "flaky failures did not come"
         " back", "they may come back in a later run"),
        (saved.broken, "file cannot be read", "files cannot be read"),
    ):  # fmt: skip
        if files:
            subject = f"{len(files):,} saved {singular if len(files) == 1 else plural}"
            yield Note("saved", subject, "; ".join([shorten_list(files), *advice]))
    if saved.left_out:
        subject = f"{saved.left_out:,} saved failures were not run"
        yield Note("saved", subject, "`lockstep replay` runs all of them")


def list_coverage_notes(pairs: Sequence[PairSummary]) -> Iterator[Note]:
    """Lists notes on the comparisons and the sizes of the programs of all pairs."""
    blind = [
        pair.name
        for pair in pairs
        if pair.compared
        and not pair.compared.get("attention")
        and pair.contract in CONTRACTS
        and pair.kind not in CONTRACTS[pair.contract].without_attention
    ]
    if blind:
        yield Note("attention", shorten_list(blind), "attention: never compared")
    if any(pair.sizes for pair in pairs):
        yield Note("covered", "covered up to", format_covered(pairs))


MEASURES = {
    "heads": "{} heads",
    "key_dim": "key_dim {}",
    "value_dim": "value_dim {}",
    "cache": "{} tokens in a cache",
    "offset": "offset {}",
    "update": "{} tokens in an update",
    "updates": "{} updates in a program",
    "special numbers": "programs with special numbers: {}",
}


def format_covered(pairs: Sequence[PairSummary]) -> str:
    """Formats the largest sizes. For several pairs, formats the range from the smallest
    to the largest."""
    measures = []
    counts = [{"special numbers": 0, **pair.compared, **pair.sizes} for pair in pairs]
    for name, text in MEASURES.items():
        sizes = sorted({count[name] for count in counts if name in count})
        ends = dict.fromkeys([*sizes[:1], *sizes[-1:]])
        measures += [text.format("–".join(f"{size:,}" for size in ends))] if sizes else []
    dtypes = ", ".join(dict.fromkeys(name for pair in pairs for name in pair.dtypes))
    return f"{', '.join(measures)}; {dtypes}; not checked: threads"


MOST_LISTED = 3
"""The maximal number of states, operations or files that a line lists."""


def shorten_list(
    items: Sequence[str], separator: str = ", ", most: int | None = MOST_LISTED
) -> str:
    """Joins the first `most` items, and counts the rest; None joins all items."""
    extra = 0 if most is None else max(0, len(items) - most)
    return separator.join(
        [*items[: len(items) - extra], *[f"{extra} more"] * (extra > 0)]
    )


def format_missed(
    pair: PairSummary, separator: str = "; ", most: int | None = None
) -> str:
    """Formats the cells that were never reached, by state. Each list is cut after `most`
    items."""
    groups = [
        f"{state} × {shorten_list(operations, most=most)}"
        for state, operations in pair.cells.empty.items()
    ]
    count = f"{pair.missed} of {pair.cells.reachable} cells never reached"
    return f"{pair.name}: {count}: {shorten_list(groups, separator, most)}"


# --- a failure --------------------------------------------------------------------------


def list_remarks(
    programs: int | None,
    flaky: Flaky | None,
    answers: Mapping[str, str] = {},
    unshrunk: Any = None,
) -> list[str]:
    """Lists the lines below a failure.

    Args:
        programs: the number of programs with its signature.
        flaky: the reruns, if the failure did not occur in each of them; else None.
        answers: the answers of other backends; see `Failure`.
        unshrunk: why the program may not be the shortest, as its file says.
    """
    lines = [] if flaky is None else [flaky.describe()]
    if isinstance(unshrunk, str) and flaky is None:
        reason = clean(unshrunk)
        lines.append(f"not shrunk to the end: {reason}; `lockstep shrink` goes on")
    if programs and programs > 1:
        lines.append(f"{programs:,} programs fail with this signature")
    return lines + compare_answers(answers)


def compare_answers(answers: Mapping[str, str]) -> list[str]:
    """Lists which other backends agree with the reference about a failing program."""
    backends: dict[str, list[str]] = {}
    for backend, answer in answers.items():
        backends.setdefault(answer, []).append(backend)
    agreeing, same = backends.pop("agrees", []), backends.pop("same", [])
    lines = [f"agrees with the reference: {shorten_list(agreeing)}"] if agreeing else []
    if same:
        lines.append(f"gives the same wrong answer: {shorten_list(same)}")
    if same and not agreeing:
        lines.append("no backend agrees with the reference here: suspect it, too")
    others = [
        f"{', '.join(names)} ({signature})" for signature, names in backends.items()
    ]
    return lines + ([f"gives another answer: {shorten_list(others)}"] if others else [])


# --- all of it --------------------------------------------------------------------------


def format_verdict(outcomes: Sequence[OutcomeSummary], failures: int) -> str:
    """Returns the verdict on several checks in a few words."""
    pairs = [pair for outcome in outcomes for pair in outcome.pairs]
    verdicts = {pair.verdict for pair in pairs}
    failed = any(
        outcome.dead
        or (outcome.exit_status not in (0, 129, 130, 143) and not is_short(outcome))
        for outcome in outcomes
    )
    is_cut = not all(outcome.complete for outcome in outcomes)
    if failures:
        verdict = f"{failures} failure" + "s" * (failures > 1)
    elif "unfinished" in verdicts:
        verdict = "unfinished"
    elif not any(pair.programs for pair in pairs):
        verdict = "nothing was checked"
    elif failed or verdicts - {"agrees", "cut" if is_cut else "agrees"}:
        verdict = "no failure, but not all agree"
    elif any(map(is_short, outcomes)):
        verdict = "no failure, but incomplete"
    else:
        verdict = "all agree"
    return verdict + " (stopped before the end)" * is_cut


def is_short(outcome: OutcomeSummary) -> bool:
    """Returns whether a check is incomplete although the user required a complete
    check."""
    return outcome.require_complete and bool(format_gaps([outcome]))


def format_gaps(outcomes: Sequence[OutcomeSummary]) -> str:
    """Describes the requested work that was not done; "" if all work was done."""
    pairs = [pair for outcome in outcomes for pair in outcome.pairs]
    gaps = []
    if any(pair.programs < pair.wanted for pair in pairs):
        ran, wanted = (sum_field(pairs, name) for name in ("programs", "wanted"))
        gaps.append(f"ran {ran:,} of {wanted:,} programs")
    if missed := sum_field(pairs, "missed"):
        reachable = sum(pair.cells.reachable for pair in pairs)
        gaps.append(f"{missed:,} of {reachable:,} cells never reached")
    return "; ".join(gaps)


def sum_field(pairs: Iterable[PairSummary], name: str) -> int:
    return sum(getattr(pair, name) for pair in pairs)


def format_amount(outcomes: Sequence[OutcomeSummary]) -> str:
    """Describes the amount of work that was done, and the work that was not done."""
    pairs = [pair for outcome in outcomes for pair in outcome.pairs]
    programs, steps = (sum_field(pairs, name) for name in ("programs", "steps"))
    seconds = sum(outcome.seconds for outcome in outcomes)
    seeds = list(dict.fromkeys(outcome.seed for outcome in outcomes))[:8]
    text = f"{programs:,} programs, {steps:,} steps in {seconds:,.0f} s"
    text += f", seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    if known := sum_field(pairs, "known_divergences"):
        text += f", {known} known divergence{'s' * (known > 1)} still there"
    if again := sum(outcome.saved.ran for outcome in outcomes):
        text += f", {again:,} saved failure{'s' * (again > 1)} run again"
    gaps = format_gaps(outcomes)
    return f"{text}; {gaps}" if gaps else text


# --- the matrix -------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrix:
    """The results of backends × kinds of one contract. Each item of `rows` has a backend,
    and its pair for each kind."""

    contract: str
    kinds: Sequence[str]
    rows: Sequence[tuple[str, Sequence[PairSummary | None]]]


def make_matrices(outcomes: Sequence[OutcomeSummary]) -> list[Matrix]:
    """Makes a matrix for each contract, since a matrix of all kinds would be too wide.

    If several checks ran a backend with the same kind, the backend gets one row for each
    check.
    """
    runs = [(outcome, pair) for outcome in outcomes for pair in outcome.pairs]
    counts = Counter((pair.backend, pair.contract, pair.kind) for _, pair in runs)
    repeated = {backend for (backend, *_), count in counts.items() if count > 1}
    tables: dict[str, dict[str, dict[str, PairSummary]]] = {}
    for outcome, pair in runs:
        row = pair.title
        if pair.backend in repeated:
            row += f" ({outcome.path})"
        tables.setdefault(pair.contract, {}).setdefault(row, {})[pair.kind] = pair
    return [
        make_matrix(contract, tables[contract]) for contract in sort_as(CONTRACTS, tables)
    ]


def make_matrix(contract: str, rows: Mapping[str, Mapping[str, PairSummary]]) -> Matrix:
    order = CONTRACTS[contract].kinds if contract in CONTRACTS else ()
    kinds = sort_as(order, [kind for pairs in rows.values() for kind in pairs])
    cells = [(row, [pairs.get(kind) for kind in kinds]) for row, pairs in rows.items()]
    return Matrix(contract, kinds, cells)


def sort_as(order: Iterable[str], names: Iterable[str]) -> list[str]:
    """Returns each name once, in this order; names outside the order come last."""
    ranks = {name: rank for rank, name in enumerate(order)}
    return sorted(dict.fromkeys(names), key=lambda name: ranks.get(name, len(ranks)))
