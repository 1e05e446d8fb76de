"""The result of a check, as reports read it and as outcome.json has it.

`summarize` makes an `OutcomeSummary` from a check of this process, which may still be
running; `read_outcome` makes it from a file. The fields are those of outcome.json.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert, field, structs, to_builtins

from lockstep.harness.core.document import write_whole
from lockstep.harness.core.errors import UsageError, shorten
from lockstep.harness.jobs.failures import Failure
from lockstep.harness.jobs.outcome import Outcome, Pair, Rerun
from lockstep.harness.jobs.settings import GENERATOR
from lockstep.harness.programs.files import OUTCOME
from lockstep.harness.programs.program import Divergence
from lockstep.harness.workers.messages import Natural, NonNegative

FORMAT = "lockstep-outcome/1"
MAX_PAIRS = 500


class FailureSummary(Struct, frozen=True, kw_only=True):
    """A failure.

    Attributes:
        operations: the number of operations of the program.
        flaky: see `Flaky`.
        cause, options, unsaved, answers: see `Failure`.
        program: the JSON document of the program.
    """

    signature: str
    path: str
    operations: Natural = 0
    flaky: str | None = None
    cause: Natural = 0
    options: dict[str, Any] = {}
    unsaved: str | None = None
    answers: dict[str, str] = {}
    divergence: Divergence
    program: dict[str, Any]

    def __post_init__(self) -> None:
        if self.divergence.step < 0:
            raise ValueError(f"there is no step {self.divergence.step}")


class Cells(Struct, frozen=True):
    """The cells of a pair.

    Attributes:
        reachable: the number of cells that a complete run reaches.
        empty: state → operations that were never run in this state.
        excluded: the number of cells that are not counted in `reachable`, because duties
            exclude all calls drawn for them.
    """

    reachable: Natural = 0
    empty: dict[str, list[str]] = {}
    excluded: Natural = 0


class PairSummary(Struct, frozen=True, kw_only=True):
    """The result of a pair: a backend and a kind of cache.

    Attributes:
        digest: the digest of all programs that were run, in the order of shards. It
            depends on the seed, and not on the number of workers.
        coverage: cell → number of steps.
        known_divergences: the number of ledger entries whose divergence still occurs.
        known_programs: ledger entry → number of programs that showed its divergence.
        signatures: signature → number of programs.
        missing: unwritten function of the backend → operation that needs it.
        shortfall: a text with the number of programs that ran, if crashes or errors
            stopped the rest; else None.
        undeclared: operations that the backend does not declare.
        unchecked: promises that cannot be checked.
        unproven: the reasons why the programs show too little, although they are complete
            and agree.
        operations, compared, dtypes, sizes: see `Counts`. Attention, for example, was
            compared in compared["attention"] steps.
        own_name: the name that a driver declares.
        programs_of: the backend whose programs this backend also ran, in the same worker.
        parted: the reason why the backend ran alone, although other backends declare an
            equal kind.
    """

    backend: str
    contract: str
    kind: str
    wanted: Natural = 0
    programs: Natural
    steps: Natural
    skipped: Natural = 0
    mean_length: float | None = None
    margins: dict[str, NonNegative] = {}
    digest: str = ""
    coverage: dict[str, Natural] = {}
    cells: Cells = Cells()
    known_divergences: Natural = 0
    known_programs: dict[str, Natural] = {}
    signatures: dict[str, Natural] = {}
    outdated: list[str] = []
    errors: list[str] = []
    missing: dict[str, str] = {}
    crashes: Natural = 0
    shortfall: str | None = None
    undeclared: list[str] = []
    unchecked: list[str] = []
    unproven: list[str] = []
    operations: dict[str, Natural] = {}
    compared: dict[str, Natural] = {}
    dtypes: dict[str, Natural] = {}
    sizes: dict[str, Natural] = {}
    own_name: str = ""
    programs_of: str = ""
    parted: str = ""
    failures: list[FailureSummary]

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
        return sum(map(len, self.cells.empty.values()))

    @property
    def reached(self) -> int:
        return max(0, self.cells.reachable - self.missed)

    @property
    def verdict(self) -> str:
        """One of "diverges", "unfinished", "error", "unproven", "cut" and "agrees"."""
        if self.outdated or self.failures:
            return "diverges"
        if self.missing:
            return "unfinished"
        if self.errors:
            return "error"
        if self.unproven:
            return "unproven"
        return "cut" if self.programs < self.wanted else "agrees"

    @property
    def cell(self) -> str:
        """The verdict in a cell of the matrix."""
        count = len(self.failures) + len(self.outdated)
        return {
            "diverges": f"✗ {count} diverge" if count > 1 else "✗ diverges",
            "unfinished": "! unfinished",
            "error": "! ERROR",
            "unproven": "! unproven",
            "cut": f"… {self.programs}",
            "agrees": f"✓ {self.programs}",
        }[self.verdict]


class OutcomeSummary(Struct, frozen=True, kw_only=True):
    """The result of a check.

    Attributes:
        front: the generator of the programs.
        require_complete: whether skipped programs and unreached cells make the exit
            status 2.
        backends: the backends that the user named.
        saved: the results of rerunning failures of earlier runs.
        path: the path of its file, which the file does not contain; empty for a check of
            this process.
    """

    format: Literal["lockstep-outcome/1"] = "lockstep-outcome/1"
    seed: int
    front: str = GENERATOR
    seconds: NonNegative
    complete: bool
    exit_status: Natural = 0
    require_complete: bool = False
    backends: list[str] = []
    versions: dict[str, str] = {}
    unavailable: dict[str, str] = {}
    dead: dict[str, str] = {}
    saved: Rerun = field(default_factory=Rerun)
    pairs: Annotated[list[PairSummary], Meta(max_length=MAX_PAIRS)]
    path: str = ""


# --- of a check of this process ---------------------------------------------------------


def summarize(outcome: Outcome) -> OutcomeSummary:
    return OutcomeSummary(
        seed=outcome.settings.seed,
        seconds=round(outcome.seconds, 2),
        complete=outcome.is_complete,
        exit_status=outcome.get_exit_status(),
        require_complete=outcome.settings.require_complete,
        backends=list(outcome.settings.backends),
        pairs=[summarize_pair(pair) for pair in outcome.pairs],
        **get_fields(outcome, "versions", "unavailable", "dead", "saved"),
    )


COPIED = (
    "backend", "contract", "kind", "wanted", "outdated", "errors", "missing", "crashes",
    "shortfall", "own_name", "programs_of", "parted",
)  # fmt: skip
"""Fields that have the same name in `Pair` and `PairSummary`."""


SUMMED = (
    "programs", "steps", "skipped", "margins", "signatures", "operations", "compared",
    "dtypes", "sizes",
)  # fmt: skip
"""Fields that have the same name in `Counts` and `PairSummary`."""


def summarize_pair(pair: Pair) -> PairSummary:
    total, digest = pair.total, hashlib.sha256()
    for _, shard in sorted(pair.digests.items()):
        digest.update(shard.encode())
    return PairSummary(
        mean_length=round(total.steps / total.programs, 2) if total.programs else None,
        digest=digest.hexdigest(),
        coverage={
            f"{state} × {operation}": times
            for (state, operation), times in sorted(pair.coverage.items())
        },
        cells=Cells(
            len(pair.cells),
            pair.group_empty_cells(),
            len(pair.declared_cells) - len(pair.cells),
        ),
        known_divergences=pair.known,
        known_programs=total.entered,
        undeclared=pair.list_undeclared(),
        unchecked=list(pair.unchecked),
        unproven=pair.list_unproven(),
        failures=[summarize_failure(failure) for failure in pair.failures],
        **get_fields(total, *SUMMED),
        **get_fields(pair, *COPIED),
    )


def summarize_failure(failure: Failure) -> FailureSummary:
    return FailureSummary(
        path=str(failure.path),
        operations=len(failure.program.ops),
        flaky=None if failure.flaky is None else str(failure.flaky),
        options=dict(failure.options),
        answers=dict(failure.answers),
        program=failure.program.to_json(),
        **get_fields(failure, "signature", "cause", "unsaved", "divergence"),
    )


def get_fields(value: Any, *names: str) -> dict[str, Any]:
    """Returns the attributes of these names as a dict."""
    return {name: getattr(value, name) for name in names}


# --- the file ---------------------------------------------------------------------------


def to_json(outcome: Outcome) -> dict[str, Any]:
    """Returns the document of a check's outcome."""
    document: dict[str, Any] = to_builtins(summarize(outcome))
    del document["path"]
    return document


def is_outcome(document: Any) -> bool:
    return isinstance(document, Mapping) and document.get("format") == FORMAT


def read_outcome(document: Any, path: str) -> OutcomeSummary:
    """Reads a parsed outcome.json. Raises UsageError that names an invalid value."""
    try:
        outcome = convert(document, OutcomeSummary)
    except ValidationError as error:
        message = shorten(str(error))
        raise UsageError(f"{path}: is not the outcome of a check: {message}") from None
    return structs.replace(outcome, path=path)


def write_outcome(outcome: Outcome) -> None:
    """Writes outcome.json to the folder for failures, for `lockstep report`.

    Raises:
        OSError: it cannot be written.
    """
    text = json.dumps(to_json(outcome), indent=1) + "\n"
    write_whole(outcome.settings.failures / OUTCOME, text)
