"""The report model: what a check has come to, as every report shows it.

An `OutcomeSummary` is made of a check that runs here (`summarize`), or of the file that
one has left (`outcome_file.read_outcome`). Verdicts, notes and matrices are made of
summaries only; terminal, HTML, Markdown, GitHub and JSON choose their form.
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
    """One backend and one kind.

    Attributes:
        known: divergences of the ledger that are still there.
        entered: programs that ran on into one of them, and failed as it says.
        whats: of each failure, what differs (see `Divergence.what`).
        empty: state → the operations that never found it.
        missing: part of the backend that is not written yet → operation that needs it.
        undeclared: operations that the backend does not declare, if it was asked for by
            name.
        unchecked: promises that cannot be checked, in words.
        shortfall: how many programs ran, if crashes or errors kept others from running.
        own_name: of a driver, by which it calls itself.
        programs_of: the backend whose programs it ran beside it.
        parted: why it ran alone although others declare the same.
    """

    backend: str
    contract: str
    kind: str
    programs: int
    steps: int
    whats: Sequence[str] = ()
    wanted: int = 0
    margins: Margins = field(default_factory=dict)
    known: int = 0
    entered: int = 0
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
        """The backend in a row: of a driver first by which name it calls itself."""
        return f"{self.own_name} ({self.backend})" if self.own_name else self.backend

    @property
    def name(self) -> str:
        return f"{self.backend} × {self.kind}"

    @property
    def margin(self) -> str:
        """The largest share that was used of a tolerance, and the name of that."""
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
        if self.outdated or self.whats:
            return "diverges"
        if self.missing:
            return "unfinished"
        if self.errors:
            return "error"
        return "cut" if self.programs < self.wanted else "agrees"

    @property
    def cell(self) -> str:
        """The verdict in a cell of the matrix."""
        count = len(self.whats) + len(self.outdated)
        return {
            "diverges": f"✗ {count} diverge" if count > 1 else "✗ diverges",
            "unfinished": "! unfinished",
            "error": "! ERROR",
            "cut": f"… {self.programs}",
            "agrees": f"✓ {self.programs}",
        }[self.verdict]

    @property
    def groups(self) -> list[str]:
        """The cells that were never reached, grouped by state."""
        return [f"{state} × {', '.join(ops)}" for state, ops in self.empty.items()]


@dataclass(frozen=True)
class OutcomeSummary:
    """A check.

    Attributes:
        require_complete: what was not run or reached makes the exit status 2.
        saved: failures of earlier runs.
        place: its file, empty for one that runs here.
        corpus: programs that its corpus has; None without one.
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
    place: str = ""
    corpus: int | None = None


def summarize(outcome: Outcome) -> OutcomeSummary:
    """Summarizes a check of this process, which may still be running."""
    chosen = outcome.settings.backends
    return OutcomeSummary(
        [summarize_pair(pair, chosen) for pair in outcome.pairs],
        outcome.settings.seed,
        complete=outcome.is_complete,
        exit_status=outcome.get_exit_status(),
        require_complete=outcome.settings.require_complete,
        **get_fields(outcome, "seconds", "unavailable", "dead", "versions"),
        **get_fields(outcome, "saved", "corpus"),
    )


def summarize_pair(pair: Pair, chosen: Sequence[str] = ()) -> PairSummary:
    programs, steps = pair.get_progress()
    same = "backend", "contract", "kind", "wanted", "margins", "known", "errors"
    noted = "outdated", "missing", "unchecked", "parted", "programs_of", "shortfall"
    return PairSummary(
        programs=programs,
        steps=steps,
        entered=pair.count_entered(),
        whats=[failure.divergence.what for failure in pair.failures],
        reachable=len(pair.cells),
        empty=pair.group_empty_cells(),
        undeclared=pair.list_undeclared() if pair.backend in chosen else (),
        **get_fields(pair, *same, *noted, "own_name"),
    )


def get_fields(value: Any, *names: str) -> dict[str, Any]:
    """Returns the fields of these names, for what has fields of the same names."""
    return {name: getattr(value, name) for name in names}


# --- notes ------------------------------------------------------------------------------


class Note(NamedTuple):
    """One line about what the matrix leaves open.

    sort: "missing", "undeclared", "unchecked", "error", "stopped", "outdated", "dead",
        "unavailable", "saved" or "beside".
    """

    sort: str
    subject: str
    words: str

    def format(self, verb: str = "checked") -> str:
        prefixes = {
            "error": "ERROR: ",
            "dead": "ERROR: could not be loaded: ",
            "unavailable": f"not {verb}: ",
        }
        return f"{self.subject}: {prefixes.get(self.sort, '')}{self.words}"


def list_notes(outcome: OutcomeSummary) -> Iterator[Note]:
    for pair in outcome.pairs:
        for part, operation in pair.missing.items():
            yield Note("missing", pair.name, format_needed(part, operation))
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


def list_common_notes(pairs: Sequence[PairSummary]) -> Iterator[Note]:
    """Lists what cannot be checked, and which ran the programs of another backend: one
    line for all kinds of a backend with the same."""
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for pair in pairs:
        if pair.unchecked:
            words = f"not checked: {', '.join(pair.unchecked)}"
            kinds.setdefault(("unchecked", pair.backend, words), []).append(pair.kind)
        if pair.programs_of:
            words = f"ran the programs of {pair.programs_of} beside it"
            kinds.setdefault(("beside", pair.backend, words), []).append(pair.kind)
        if pair.parted:
            key = "beside", pair.backend, f"ran alone: {pair.parted}"
            kinds.setdefault(key, []).append(pair.kind)
    for (sort, backend, words), names in kinds.items():
        yield Note(sort, f"{backend} × {shorten_list(names)}", words)


def list_unavailable_notes(unavailable: Mapping[str, str]) -> Iterator[Note]:
    """Lists the backends that are not here; one line for all if there are many."""
    if len(unavailable) <= MOST_LISTED:
        for backend, why in unavailable.items():
            yield Note("unavailable", backend, why)
        return
    without: dict[str, list[str]] = {}
    for backend, why in unavailable.items():
        without.setdefault(why.partition(": pip install")[0], []).append(backend)
    causes = [f"{why} ({shorten_list(names)})" for why, names in without.items()]
    words = f"{'; '.join(causes)}; `lockstep doctor` says what to install"
    yield Note("unavailable", f"{len(unavailable)} backends", words)


def list_saved_notes(saved: Rerun) -> Iterator[Note]:
    """Lists what the failures of earlier runs came to that are none of this run."""
    mended = "`lockstep replay` shows them, and you can delete files of what is mended"
    for files, one, many, *advice in (
        (saved.agreeing, "failure agrees now", "failures agree now", mended),
        (saved.absent, "flaky failure did not come back", "flaky failures did not come"
         " back", "they may come back in a later run"),
        (saved.broken, "file cannot be read", "files cannot be read"),
    ):  # fmt: skip
        if files:
            what = f"{len(files):,} saved {one if len(files) == 1 else many}"
            yield Note("saved", what, "; ".join([shorten_list(files), *advice]))
    if saved.left_out:
        what = f"{saved.left_out:,} saved failures left out"
        yield Note("saved", what, "`lockstep replay` runs all of them")


MOST_LISTED = 3
"""Items that a line lists: states, operations, files."""


def shorten_list(items: Sequence[str], separator: str = ", ") -> str:
    more = len(items) - MOST_LISTED
    listed = [*items[:MOST_LISTED], *([f"{more} more"] if more > 0 else [])]
    return separator.join(listed)


# --- a failure --------------------------------------------------------------------------


def list_remarks(
    programs: int | None, flaky: Flaky | None, answers: Mapping[str, str] = {}
) -> list[str]:
    """Lists the lines below a failure.

    Args:
        programs: how many have shown its signature.
        flaky: it did not come back each time.
        answers: of other backends; see `Failure`.
    """
    lines = [] if flaky is None else [flaky.describe()]
    if programs and programs > 1:
        lines.append(f"{programs:,} programs fail with this signature")
    return lines + compare_answers(answers)


def compare_answers(answers: Mapping[str, str]) -> list[str]:
    """Says which other backends agree with the reference about a program that fails."""
    of: dict[str, list[str]] = {}
    for backend, answer in answers.items():
        of.setdefault(answer, []).append(backend)
    agreeing, same = of.pop("agrees", []), of.pop("same", [])
    lines = [f"agrees with the reference: {shorten_list(agreeing)}"] if agreeing else []
    if same:
        lines.append(f"gives the same wrong answer: {shorten_list(same)}")
    if same and not agreeing:
        lines.append("no other backend agrees with the reference here: suspect it, too")
    others = [f"{', '.join(names)} ({signature})" for signature, names in of.items()]
    return lines + ([f"gives another answer: {shorten_list(others)}"] if others else [])


# --- all of it --------------------------------------------------------------------------


def format_verdict(outcomes: Sequence[OutcomeSummary], found: int) -> str:
    """The verdict on several checks in a few words. found: failures."""
    pairs = [pair for outcome in outcomes for pair in outcome.pairs]
    verdicts = {pair.verdict for pair in pairs}
    failed = any(
        one.dead or (one.exit_status not in (0, 129, 130, 143) and not is_short(one))
        for one in outcomes
    )
    is_cut = not all(outcome.complete for outcome in outcomes)
    if found:
        words = f"{found} failure" + ("" if found == 1 else "s")
    elif "unfinished" in verdicts:
        words = "unfinished"
    elif not any(pair.programs for pair in pairs):
        words = "nothing was checked"
    elif failed or verdicts - {"agrees", "cut" if is_cut else "agrees"}:
        words = "no failure, but not all agree"
    elif any(map(is_short, outcomes)):
        words = "no failure, but incomplete"
    else:
        words = "all agree"
    return words + (" (stopped before the end)" if is_cut else "")


def is_short(outcome: OutcomeSummary) -> bool:
    """Says whether a check left something out that was required."""
    return outcome.require_complete and bool(format_gaps([outcome]))


def format_gaps(outcomes: Sequence[OutcomeSummary]) -> str:
    """Words for what was asked and did not run; empty if there is nothing."""
    pairs = [pair for outcome in outcomes for pair in outcome.pairs]
    ran, wanted, missed, reachable = (
        sum(getattr(pair, name) for pair in pairs)
        for name in ("programs", "wanted", "missed", "reachable")
    )
    gaps = []
    if any(pair.programs < pair.wanted for pair in pairs):
        gaps.append(f"ran {ran:,} of {wanted:,} programs")
    if missed:
        gaps.append(f"{missed:,} of {reachable:,} cells never reached")
    return "; ".join(gaps)


def format_amount(outcomes: Sequence[OutcomeSummary]) -> str:
    """Words for the amount that was run, and for what was not."""
    pairs = [pair for outcome in outcomes for pair in outcome.pairs]
    programs, steps, known, entered = (
        sum(getattr(pair, name) for pair in pairs)
        for name in ("programs", "steps", "known", "entered")
    )
    seconds = sum(outcome.seconds for outcome in outcomes)
    seeds = list(dict.fromkeys(outcome.seed for outcome in outcomes))[:8]
    word = "seed" if len(seeds) == 1 else "seeds"
    text = f"{programs:,} programs, {steps:,} steps in {seconds:,.0f} s"
    text += f", {word} {', '.join(map(str, seeds))}"
    if known:
        text += f", {known} known divergence{'s' * (known > 1)} still there"
    if entered:
        text += f" ({entered:,} programs lead to them, and fail as known)"
    again = sum(outcome.saved.ran for outcome in outcomes)
    if again:
        text += f", {again:,} saved failure{'s' * (again > 1)} run again"
    corpora = [one.corpus for one in outcomes if one.corpus is not None]
    if corpora:
        text += f", {sum(corpora):,} programs in the corpus"
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
    """One for each contract: all kinds side by side would be too wide. A backend of which
    several checks have the same kind gets a row for each of them."""
    placed = [(outcome, pair) for outcome in outcomes for pair in outcome.pairs]
    times = Counter((pair.backend, pair.contract, pair.kind) for _, pair in placed)
    several = {backend for (backend, *_), count in times.items() if count > 1}
    found: dict[str, dict[str, dict[str, PairSummary]]] = {}
    for outcome, pair in placed:
        row = pair.title
        if pair.backend in several:
            row += f" ({outcome.place})"
        found.setdefault(pair.contract, {}).setdefault(row, {})[pair.kind] = pair
    return [
        make_matrix(contract, found[contract]) for contract in sort_as(CONTRACTS, found)
    ]


def make_matrix(contract: str, rows: Mapping[str, Mapping[str, PairSummary]]) -> Matrix:
    known = CONTRACTS[contract].kinds if contract in CONTRACTS else ()
    kinds = sort_as(known, [kind for pairs in rows.values() for kind in pairs])
    cells = [(row, [pairs.get(kind) for kind in kinds]) for row, pairs in rows.items()]
    return Matrix(contract, kinds, cells)


def sort_as(known: Iterable[str], names: Iterable[str]) -> list[str]:
    """Each name once: the known ones in their order, then the others."""
    order = [*known]
    return sorted(
        dict.fromkeys(names),
        key=lambda name: order.index(name) if name in order else len(order),
    )
