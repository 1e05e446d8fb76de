"""The report model: the result of a check, from which every report is made.

`summarize` makes an `OutcomeSummary` from a running check, and
`outcome_file.read_outcome` makes it from an outcome file. Verdicts, notes and matrices
depend only on summaries. The reports for the terminal, HTML, Markdown, GitHub and JSON
only format them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.errors import format_needed
from lockstep.harness.core.payload import Margins
from lockstep.harness.jobs.outcome import Outcome, Pair, Rerun
from lockstep.harness.programs.program import Flaky


@dataclass(frozen=True)
class PairSummary:
    """The result of a pair: a backend and a kind of cache.

    Attributes:
        differences: the type of each failure's difference; see `Divergence.what`.
        known: the number of ledger entries whose divergence still occurs.
        empty: state → operations that were never run in this state.
        missing: unwritten function of the backend → operation that needs it.
        undeclared: operations that a backend chosen by name does not declare.
        unchecked: promises that cannot be checked.
        shortfall: the number of programs that ran, if crashes or errors stopped the rest.
        own_name: the name that a driver declares.
        programs_of: the backend whose programs this backend also ran, in the same worker.
        parted: why the backend ran alone although other backends declare equal kinds.
    """

    backend: str
    contract: str
    kind: str
    programs: int
    steps: int
    differences: Sequence[str] = ()
    wanted: int = 0
    margins: Margins = field(default_factory=dict)
    known: int = 0
    reachable: int = 0
    empty: Mapping[str, Sequence[str]] = field(default_factory=dict)
    errors: Sequence[str] = ()
    outdated: Sequence[str] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    undeclared: Sequence[str] = ()
    unchecked: Sequence[str] = ()
    shortfall: str | None = None
    own_name: str = ""
    programs_of: str = ""
    parted: str = ""

    @property
    def title(self) -> str:
        """The backend's name in a matrix; for a driver, its own name comes first."""
        return f"{self.own_name} ({self.backend})" if self.own_name else self.backend

    @property
    def name(self) -> str:
        return f"{self.backend} × {self.kind}"

    @property
    def margin(self) -> str:
        """The largest used share of a tolerance, with the tolerance's name."""
        name = max(self.margins, key=lambda name: self.margins[name], default="")
        return f"{self.margins[name]:.2f} {name}" if self.margins.get(name) else "–"

    @property
    def missed(self) -> int:
        """The number of cells that were never reached."""
        return sum(map(len, self.empty.values()))

    @property
    def reached(self) -> int:
        return max(0, self.reachable - self.missed)

    @property
    def verdict(self) -> str:
        """One of "diverges", "unfinished", "error", "cut" and "agrees"."""
        if self.outdated or self.differences:
            return "diverges"
        if self.missing:
            return "unfinished"
        if self.errors:
            return "error"
        return "cut" if self.programs < self.wanted else "agrees"

    @property
    def cell(self) -> str:
        """The verdict in a cell of the matrix."""
        count = len(self.differences) + len(self.outdated)
        return {
            "diverges": f"✗ {count} diverge" if count > 1 else "✗ diverges",
            "unfinished": "! unfinished",
            "error": "! ERROR",
            "cut": f"… {self.programs}",
            "agrees": f"✓ {self.programs}",
        }[self.verdict]

    def format_missed(self, separator: str = "; ", most: int | None = None) -> str:
        """The cells that were never reached, by state; at most `most` items of a list."""
        groups = [
            f"{state} × {shorten_list(operations, most=most)}"
            for state, operations in self.empty.items()
        ]
        count = f"{self.missed} of {self.reachable} cells never reached"
        return f"{self.name}: {count}: {shorten_list(groups, separator, most)}"


@dataclass(frozen=True)
class OutcomeSummary:
    """The result of a check.

    Attributes:
        require_complete: whether skipped programs and unreached cells make the exit
            status 2.
        saved: the results of rerunning failures of earlier runs.
        path: the path of its file; empty for a check of this process.
    """

    pairs: Sequence[PairSummary]
    seed: int
    seconds: float
    complete: bool
    unavailable: Mapping[str, str] = field(default_factory=dict)
    dead: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    exit_status: int = 0
    require_complete: bool = False
    saved: Rerun = field(default_factory=Rerun)
    path: str = ""


def summarize(outcome: Outcome) -> OutcomeSummary:
    """Summarizes a check of this process, which may still be running."""
    chosen = outcome.settings.backends
    return OutcomeSummary(
        [summarize_pair(pair, chosen) for pair in outcome.pairs],
        outcome.settings.seed,
        complete=outcome.is_complete,
        exit_status=outcome.get_exit_status(),
        require_complete=outcome.settings.require_complete,
        **get_fields(outcome, "seconds", "unavailable", "dead", "versions", "saved"),
    )


COPIED = (
    "backend", "contract", "kind", "wanted", "margins", "errors", "outdated", "missing",
    "unchecked", "shortfall", "own_name", "programs_of", "parted",
)  # fmt: skip
"""Fields that have the same name in `Pair`, `PairSummary` and outcome.json."""


def summarize_pair(pair: Pair, chosen: Sequence[str] = ()) -> PairSummary:
    programs, steps = pair.get_progress()
    return PairSummary(
        programs=programs,
        steps=steps,
        differences=[failure.divergence.what for failure in pair.failures],
        known=pair.known,
        reachable=len(pair.cells),
        empty=pair.group_empty_cells(),
        undeclared=pair.list_undeclared() if pair.backend in chosen else (),
        **get_fields(pair, *COPIED),
    )


def get_fields(value: Any, *names: str) -> dict[str, Any]:
    """Returns the attributes of these names as a dict."""
    return {name: getattr(value, name) for name in names}


# --- notes ------------------------------------------------------------------------------


class Note(NamedTuple):
    """A line about a gap or a problem that the matrix does not show.

    Attributes:
        sort: "missing", "undeclared", "unchecked", "error", "stopped", "outdated",
            "dead", "unavailable", "saved", "beside" or "folded".
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
            "dead": "ERROR: could not be loaded: ",
            "unavailable": f"not {verb}: ",
        }
        return f"{self.subject}: {prefixes.get(self.sort, '')}{self.message}"


def list_notes(outcome: OutcomeSummary) -> Iterator[Note]:
    for pair in outcome.pairs:
        for function, operation in pair.missing.items():
            yield Note("missing", pair.name, format_needed(function, operation))
        if pair.undeclared:
            names = ", ".join(pair.undeclared)
            yield Note("undeclared", pair.name, f"not declared, not checked: {names}")
        for error in pair.errors:
            yield Note("error", pair.name, error)
        if pair.shortfall:
            yield Note("stopped", pair.name, pair.shortfall)
        for entry in pair.outdated:
            yield Note("outdated", pair.name, f"the ledger is outdated: {entry}")
    yield from list_common_notes(outcome.pairs)
    for backend, why in outcome.dead.items():
        yield Note("dead", backend, why)
    yield from list_unavailable_notes(outcome.unavailable)
    yield from list_saved_notes(outcome.saved)


FOLDED = {
    "undeclared": "backends do not declare all operations",
    "unchecked": "backends have promises that cannot be checked",
    "unavailable": "backends were not checked: `lockstep doctor` shows what they need",
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
        for backend, why in unavailable.items():
            yield Note("unavailable", backend, why)
        return
    backends: dict[str, list[str]] = {}
    for backend, why in unavailable.items():
        backends.setdefault(why.partition(": pip install")[0], []).append(backend)
    causes = [f"{why} ({shorten_list(names)})" for why, names in backends.items()]
    message = f"{'; '.join(causes)}; to see what to install: lockstep doctor"
    yield Note("unavailable", f"{len(unavailable)} backends", message)


def list_saved_notes(saved: Rerun) -> Iterator[Note]:
    """Lists notes on saved failures that did not fail, or did not run, in this check."""
    mended = "`lockstep replay` shows them; delete the files of mended failures"
    for files, singular, plural, *advice in (
        (saved.agreeing, "failure agrees now", "failures agree now", mended),
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


MOST_LISTED = 3
"""The maximal number of states, operations or files that a line lists."""


def shorten_list(
    items: Sequence[str], separator: str = ", ", most: int | None = MOST_LISTED
) -> str:
    """Joins the first `most` items, and counts the rest; None joins all items."""
    more = 0 if most is None else max(0, len(items) - most)
    return separator.join([*items[: len(items) - more], *[f"{more} more"] * (more > 0)])


# --- a failure --------------------------------------------------------------------------


def list_remarks(
    programs: int | None, flaky: Flaky | None, answers: Mapping[str, str] = {}
) -> list[str]:
    """Lists the lines below a failure.

    Args:
        programs: the number of programs with its signature.
        flaky: the reruns, if the failure did not occur in each of them; else None.
        answers: the answers of other backends; see `Failure`.
    """
    lines = [] if flaky is None else [flaky.describe()]
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
    """Returns whether a check is incomplete although it had to be complete."""
    return outcome.require_complete and bool(format_gaps([outcome]))


def format_gaps(outcomes: Sequence[OutcomeSummary]) -> str:
    """Describes the requested work that was not done; "" if all work was done."""
    pairs = [pair for outcome in outcomes for pair in outcome.pairs]
    gaps = []
    if any(pair.programs < pair.wanted for pair in pairs):
        ran, wanted = (sum_field(pairs, name) for name in ("programs", "wanted"))
        gaps.append(f"ran {ran:,} of {wanted:,} programs")
    if missed := sum_field(pairs, "missed"):
        gaps.append(
            f"{missed:,} of {sum_field(pairs, 'reachable'):,} cells never reached"
        )
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
    if known := sum_field(pairs, "known"):
        text += f", {known} known divergence{'s' * (known > 1)} still there"
    if again := sum(outcome.saved.ran for outcome in outcomes):
        text += f", {again:,} saved failure{'s' * (again > 1)} run again"
    gaps = format_gaps(outcomes)
    return f"{text}; {gaps}" if gaps else text


# --- the matrix -------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrix:
    """Backends × kinds of one contract. rows: a backend, and for each kind its pair."""

    contract: str
    kinds: Sequence[str]
    rows: Sequence[tuple[str, Sequence[PairSummary | None]]]


def make_matrices(outcomes: Sequence[OutcomeSummary]) -> list[Matrix]:
    """Makes a matrix for each contract, since a matrix of all kinds would be too wide.

    If several checks ran a backend with the same kind, it gets a row for each check.
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
