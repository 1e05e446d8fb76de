"""Defines the messages between a job and its workers: a struct for each task and event.

Messages are sent as JSON. A worker runs code of a backend, which may write any bytes to
the connection, so the job decodes each event strictly and accepts only the events of the
worker's task.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from math import inf
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args

from msgspec import Meta, Struct, ValidationError, convert, structs

from lockstep.harness.backends.backend import Kind, Planted, get_environment
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Cell, Op
from lockstep.harness.core.document import get_named
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.payload import merge_margins
from lockstep.harness.execution.recording.picture import Bounds, Step
from lockstep.harness.programs.program import (
    OPENING,
    UNSHRUNK,
    Divergence,
    Program,
    parse_program,
    read_beside,
)

Document = dict[str, Any]
"""A program as JSON, see `Program.to_json`; the receiver parses it."""

SIGNATURE = re.compile(r"[\w .-]+", re.ASCII)

A = TypeVar("A")


# --- sums over programs, which workers send and jobs add --------------------------------


Natural = Annotated[int, Meta(ge=0, le=1 << 53)]
NonNegative = Annotated[float, Meta(ge=0, le=1e15)]


@dataclass(kw_only=True)
class Counts:
    """Sums over the programs of one or more shards.

    Attributes:
        unfinished: the number of programs that called an unwritten method of the backend.
        covered: (exhaustive runs) programs of all lengths that have run, alone or as a
            prefix of a longer program.
        avoided: the number of programs that were skipped because they lead to a known
            divergence.
        seconds: the run time, in seconds of one core.
        margins: the used fraction of each tolerance; see `core.payload.Margins`.
        signatures: signature → number of programs.
        entered: id of a ledger entry → number of programs that ran an operation that the
            entry describes, and showed its signature.
        missing: unimplemented method of the backend → operation that needs the method.
        undeclared: reason for skipping programs → number of programs.
        operations, compared: operation or name → number of steps; see `Evidence`.
            "special numbers" → number of programs.
        dtypes: dtype → number of programs.
        sizes: the largest sizes of programs; see `execution.comparisons.Sizes`.
    """

    programs: Natural = 0
    steps: Natural = 0
    skipped: Natural = 0
    unfinished: Natural = 0
    covered: Natural = 0
    avoided: Natural = 0
    seconds: NonNegative = 0.0
    margins: dict[str, NonNegative] = field(default_factory=dict)
    signatures: dict[str, Natural] = field(default_factory=dict)
    entered: dict[str, Natural] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    undeclared: dict[str, Natural] = field(default_factory=dict)
    operations: dict[str, Natural] = field(default_factory=dict)
    compared: dict[str, Natural] = field(default_factory=dict)
    dtypes: dict[str, Natural] = field(default_factory=dict)
    sizes: dict[str, Natural] = field(default_factory=dict)

    def include(self, counts: Counts) -> None:
        """Adds the counts of another slice."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(counts, name))
        self.margins = merge_margins(self.margins, counts.margins)
        self.missing.update(counts.missing)
        self.grow(counts.sizes)
        for name in TALLIES:
            for key, count in getattr(counts, name).items():
                tally(getattr(self, name), key, count)

    def grow(self, sizes: Mapping[str, int]) -> None:
        """Keeps the largest of each size."""
        for name, size in sizes.items():
            self.sizes[name] = max(size, self.sizes.get(name, 0))


SUMS = ("programs", "steps", "skipped", "unfinished", "covered", "avoided", "seconds")
TALLIES = ("signatures", "entered", "undeclared", "operations", "compared", "dtypes")


def tally(counts: dict[str, int], key: str, count: int = 1) -> None:
    counts[key] = counts.get(key, 0) + count


@dataclass
class Shown:
    """The programs that have shown a signature.

    Attributes:
        programs: the number of programs.
        states: digest of a shrunk program → the states at the failing step that all of
            its original programs share.
    """

    programs: int = 0
    states: dict[str, list[str]] = field(default_factory=dict)


# --- events -----------------------------------------------------------------------------


class Event(Struct, frozen=True, tag=True, tag_field="event", forbid_unknown_fields=True):
    """A message of a worker about its task."""

    def check(self) -> None:
        """Checks the constraints that the field types do not express.

        Raises:
            ValueError: a value is out of range.
            UsageError: a program is malformed.
        """


class Answer(Event, frozen=True):
    """The result of a task; the last event of the task."""


class Progress(Event, frozen=True):
    """The state of a running task. The field `reached` has the cells that were not
    reported before."""

    counts: Counts
    reached: list[Cell] = []


class Found(Event, frozen=True, dict=True):
    """A diverging program, original or shrunk.

    Attributes:
        programs: the number of programs of the shard that had run.
        seconds: the run time of the shard so far.
        original: the digest of the original program; None if `program` is the original.
        states: the states at the failing step that all originals of `program` share.
        flaky: how often the program fails, if not in every run; see `Flaky`.
        unshrunk: why the program may not be the shortest; "" if it is.
    """

    program: Document
    divergence: Divergence
    programs: Natural = 0
    seconds: NonNegative = 0.0
    original: str | None = None
    states: list[str] = []
    flaky: str | None = None
    unshrunk: str = ""

    def get_meta(self) -> dict[str, Any]:
        """Returns the facts about the search for the program's `meta`."""
        meta = {} if self.flaky is None else {"flaky": self.flaky}
        return meta | ({UNSHRUNK: self.unshrunk} if self.unshrunk else {})

    @cached_property
    def parsed(self) -> Program:
        return parse_program(self.program, "a failing program")

    def is_other(self, event: Event) -> bool:
        """Returns whether `event` is not about the original of this shrunk program."""
        return not isinstance(event, Found) or event.parsed.digest() != self.original

    def check(self) -> None:
        program = self.parsed
        if self.divergence.step >= max(1, len(program.ops)):
            raise ValueError(f"the program has no step {self.divergence.step}")
        check_divergence(self.divergence)


def check_divergence(divergence: Divergence) -> None:
    """Raises ValueError for a divergence that no program can have."""
    if divergence.step < 0:
        raise ValueError(f"the program has no step {divergence.step}")
    if not SIGNATURE.fullmatch(f"{divergence.operation}-{divergence.what}"):
        raise ValueError("the signature of a divergence cannot be the name of a folder")


class Agreed(Event, frozen=True, dict=True):
    """A program that agrees although a ledger entry expects a divergence.

    Attributes:
        entry: the id of the ledger entry.
        program: the program.
    """

    entry: str
    program: Document

    @cached_property
    def parsed(self) -> Program:
        return parse_program(self.program, "a program of the ledger")

    def check(self) -> None:
        _ = self.parsed  # raises


class Stopped(Event, frozen=True):
    """The end of a task without a result. The field `why` is the reason."""

    why: str

    def describe(self) -> str:
        return self.why

    def blame(self) -> tuple[Program, Divergence] | None:
        """Returns the running program, up to the unfinished step, and its divergence."""
        return None


class Refused(Stopped, frozen=True):
    """The backend is unavailable, or cannot be used for this task."""


class Excluded(Refused, frozen=True):
    """The program breaks a duty of callers."""


class LoadFailed(Stopped, frozen=True):
    """The backend is broken: see `Unloadable`."""


class HarnessFailed(Stopped, frozen=True, dict=True):
    """An exception in the harness itself.

    Attributes:
        program: the running program; None if there was none.
    """

    program: Document | None = None

    def describe(self) -> str:
        return f"the harness failed: {self.why}"

    @cached_property
    def parsed(self) -> Program | None:
        document = self.program
        return None if document is None else parse_program(document, "a program")

    def check(self) -> None:
        _ = self.parsed  # raises


class Died(Stopped, frozen=True):
    """The worker ended or hung. Only the pool makes this event.

    Attributes:
        what: "crash" or "hang".
        running: the running program; None if no program was running.
        step: the running step; OPENING before the first step.
        last_words: the end of the worker's output.
    """

    what: Literal["crash", "hang"]
    running: Program | None
    step: int
    last_words: str

    @classmethod
    def before(cls, why: str) -> Died:
        """Creates the event of a worker that died while no program was running."""
        return cls(why, what="crash", running=None, step=0, last_words="")

    def describe(self) -> str:
        where = f"step {self.step}: " if self.running and self.step >= 0 else ""
        return f"{where}{self.describe_end()}"

    def describe_end(self) -> str:
        text = f"; its last words: {self.last_words}" if self.last_words else ""
        return f"{self.why}{text}"

    def blame(self) -> tuple[Program, Divergence] | None:
        if self.running is None:
            return None
        step = max(0, self.step)
        program = replace(self.running, ops=self.running.ops[: step + 1], meta={})
        operation = program.ops[step]["op"] if self.step != OPENING else "open"
        divergence = Divergence(self.what, step, operation, self.describe_end())
        return program, divergence.mark(*read_beside(self.running.meta))


# --- tasks and their answers ------------------------------------------------------------


class Task(
    Struct, Generic[A], frozen=True, tag=True, tag_field="do", forbid_unknown_fields=True
):
    """A task for a worker. The type parameter A is the type of the task's result."""

    backend: str


class OfBackend(Answer, frozen=True):
    """A result with the versions and the device of the backend."""

    versions: dict[str, str]
    device: str

    def get_environment(self) -> dict[str, Any]:
        return get_environment({"versions": self.versions, "device": self.device})


class Declared(OfBackend, frozen=True):
    """The declaration of a backend.

    Attributes:
        contracts: contract → kind → the declaration of the kind.
        unchecked: kind → promises that cannot be checked.
        name: the name that a driver gives itself; empty for other backends.
        has_ledger: whether the backend has a folder of known divergences.
    """

    contracts: dict[str, dict[str, Kind]]
    dtypes: list[str]
    share: Annotated[int, Meta(ge=1)]
    unchecked: dict[str, list[str]] = {}
    has_ledger: bool = False
    name: str = ""

    def check(self) -> None:
        for contract, kinds in self.contracts.items():
            rules = get_named(CONTRACTS, contract, "contract")
            for kind, declared in kinds.items():
                get_named(dict.fromkeys(rules.kinds, True), kind, "kind")
                for name in declared.operations:
                    get_named(rules.operations, name, "operation")


class Declare(Task[Declared], frozen=True):
    """Loads the backend and checks its declaration."""


class SliceDone(Answer, frozen=True):
    """The result of a completed slice.

    Attributes:
        coverage: (state, operation, number of steps that ran the operation in the state).
        digest: the digest of all programs that ran.
        left_out: (state, operation, number of drawn calls that broke a duty).
    """

    counts: Counts
    coverage: list[tuple[str, str, Natural]]
    digest: str
    left_out: list[tuple[str, str, Natural]] = []


OfSlice = Progress | Found | Agreed | SliceDone
"""Events about one backend of a slice."""


class OfGroup(Event, frozen=True):
    """An event about a backend of the group that is not the first.

    Attributes:
        index: the index of the backend in the group; the first backend has 0.
        inner: the event.
    """

    index: Annotated[int, Meta(ge=1)]
    inner: OfSlice

    def check(self) -> None:
        self.inner.check()


class SliceTask(Task[SliceDone], frozen=True):
    """Runs a slice of the programs of one kind.

    Attributes:
        number: the number of the slice, among the slices of the kind.
        known: signature → the programs that have shown it before.
        fatal: the digests of programs that end their process, which are skipped.
    """

    contract: str
    kind: str
    number: int
    known: dict[str, Shown] = {}
    fatal: list[str] = []

    @property
    def knowing(self) -> dict[str, dict[str, Shown]]:
        """Maps each backend that runs the programs to its `known`."""
        return {self.backend: self.known}


class RandomTask(SliceTask, frozen=True, kw_only=True):
    """Draws programs and runs them.

    Attributes:
        enough: stop once a shrunk program has at most this number of operations.
        rare: the rarely reached cells; some programs aim at these cells and no others.
        group: each further backend that runs the programs → its `known`.
    """

    seed: int
    programs: int
    enough: int = 0
    rare: list[Cell] = []
    group: dict[str, dict[str, Shown]] = {}

    @property
    def knowing(self) -> dict[str, dict[str, Shown]]:
        return {self.backend: self.known, **self.group}

    def list_alone(self) -> list[RandomTask]:
        """Returns a task with the same programs for each backend of the group."""
        return [
            structs.replace(self, backend=name, known=known, group={})
            for name, known in self.knowing.items()
        ]


class ExhaustiveTask(SliceTask, frozen=True, kw_only=True):
    """Runs every program that starts with the operations of one `Branch`.

    `path` and `covered` are the fields of the `Branch`.
    """

    size: str
    depth: int
    path: list[int]
    covered: int


class Surveyed(Answer, frozen=True):
    """The domain of an exploration, and the beginnings of its slices.

    Attributes:
        config: the config fields that differ from their defaults.
        parts: (path, covered) of each slice.
    """

    moves: list[Op]
    symmetries: int
    config: dict[str, Any]
    parts: list[tuple[list[int], int]]
    avoided: Natural


class SurveyDomain(Task[Surveyed], frozen=True):
    """Counts the programs of a domain, and splits them into slices."""

    contract: str
    kind: str
    size: str
    depth: int


class Ran(OfBackend, frozen=True):
    """The result of one program.

    Attributes:
        divergence: the divergence of the first diverging run; None if all runs agree.
        failed: the number of diverging runs.
    """

    divergence: Divergence | None
    steps: Natural
    skipped: Natural
    why_skipped: str | None
    failed: Natural = 0

    def check(self) -> None:
        if self.divergence is not None:
            check_divergence(self.divergence)


class RunProgram(Task[Ran], frozen=True):
    """Runs a program.

    Attributes:
        runs: the number of runs, for a failure that does not occur in every run.
        beside: if the program agrees alone, run it beside these backends.
        spares_known: refuse a program that shows a divergence of the ledger.
    """

    program: Document
    runs: int = 1
    beside: list[str] = []
    spares_known: bool = False


class Recorded(OfBackend, frozen=True):
    """The steps of a program, as the reference and the backend ran them. The field
    `stories` has the origins of its tokens."""

    steps: list[Step]
    divergence: Divergence | None
    stories: list[str]


class RecordProgram(Task[Recorded], frozen=True):
    """Runs a program and draws its steps; see `recorder.record`."""

    program: Document
    bounds: Bounds
    until: int | None = None
    wanted: str | None = None
    beside: list[str] = []


class Shrunk(Answer, frozen=True):
    """The shrunk program; None if the given program agrees."""

    found: Found | None

    def check(self) -> None:
        if self.found:
            self.found.check()


class Shrink(Task[Shrunk], frozen=True):
    program: Document
    seconds: float
    beside: list[str] = []


class Snippet(Answer, frozen=True):
    text: str


class WriteSnippet(Task[Snippet], frozen=True):
    """Writes a program as a script."""

    program: Document


class Described(Answer, frozen=True):
    """A condition on the operations that lead to a divergence, and its test with programs
    that were not used to infer the condition.

    Attributes:
        divergence: the divergence of the failing program.
        step: the number of the described operation in the failing program.
        when: the condition.
        diverging, agreeing: the number of operations that were tested.
        missed: diverging operations that the condition does not describe.
        included: agreeing operations that the condition describes.
        name, versions: of the backend.
    """

    divergence: Divergence
    step: Natural
    when: dict[str, Any]
    diverging: Natural = 0
    agreeing: Natural = 0
    missed: Natural = 0
    included: Natural = 0
    name: str = ""
    versions: dict[str, str] = {}

    def check(self) -> None:
        check_divergence(self.divergence)

    @property
    def is_exact(self) -> bool:
        return self.get_mistakes() == 0

    def get_mistakes(self) -> float:
        """Returns the number of wrongly classified operations per diverging operation."""
        return (self.missed + self.included) / self.diverging if self.diverging else inf


class Describe(Task[Described], frozen=True):
    """Infers a condition on the operations that lead to the divergence of a program.

    Attributes:
        count: the number of programs that are drawn for each operation.
        seed: the seed of these programs.
    """

    program: Document
    count: int
    seed: int


@dataclass(frozen=True)
class LedgerResult:
    """The result of the program of a known divergence.

    Attributes:
        signature: the signature in the ledger entry.
        got: the signature that the program shows now; None if the program agrees.
    """

    id: str
    kind: str
    signature: str
    got: str | None


class LedgerRun(Answer, frozen=True):
    """The results of the entries of a backend's ledger.

    The field `strays` has the entries that no backend runs, each with the reason.
    """

    entries: list[LedgerResult]
    strays: list[str] = []


class RunLedger(Task[LedgerRun], frozen=True):
    """Runs the program of each known divergence of the backend."""


class Clustered(Answer, frozen=True):
    """Failures that may show the same bug.

    The field `likely` has pairs: the index of a failure, and the index of an earlier
        failure.
    """

    likely: list[tuple[Natural, Natural]]


class Cluster(Task[Clustered], frozen=True):
    """Finds failures that may show the same bug.

    The field `known` has, for each failure, the index of a failure that is known to have
        the same cause.
    """

    programs: list[Document]
    signatures: list[str]
    known: list[Natural]


class FaultsListed(Answer, frozen=True):
    faults: list[Planted]


class ListFaults(Task[FaultsListed], frozen=True):
    """Lists the faults that are planted in the backend."""


class Drawn(Answer, frozen=True):
    """The lines of a file of vectors. The field `holds` is the entry of the file in the
    manifest."""

    lines: list[str]
    holds: dict[str, Any]


class DrawVectors(Task[Drawn], frozen=True):
    contract: str
    kind: str
    size: str


# --- as bytes ---------------------------------------------------------------------------


def encode(message: Task[Any] | Event) -> bytes:
    """Encodes a message as JSON. Uses `json`, which accepts subclasses of str and lone
    surrogates."""
    return json.dumps(message, default=unfold).encode()


def unfold(value: Any) -> Any:
    """Converts a value that `json` does not support to lists and dicts."""
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Struct):
        config = value.__struct_config__
        return {str(config.tag_field): config.tag, **structs.asdict(value)}
    return asdict(value)


def decode_event(data: bytes, task: Task[Any], *others: type[Event]) -> Event:
    """Decodes an event of this task, or of one of the types `others`.

    Raises:
        ValueError: the data is not such an event; the message says why.
    """
    try:
        event: Event = convert(json.loads(data), type=list_events(type(task), *others))
        event.check()
        count = len(task.knowing) if isinstance(task, SliceTask) else 1
        if isinstance(event, OfGroup) and event.index >= count:
            raise ValueError(f"the task has no backend of the number {event.index}")
    except RecursionError:  # its message differs between Python versions
        raise ValueError("is nested too deeply") from None
    except (ValidationError, UsageError) as error:
        raise ValueError(str(error)) from None
    return event


@cache
def list_events(task: type[Task[Any]], *others: type[Event]) -> Any:
    """Returns the union of all event types of a task and the types `others`."""
    (base,) = task.__orig_bases__  # type: ignore[attr-defined]
    (answer,) = get_args(base)
    stops = Excluded, Refused, LoadFailed, HarnessFailed
    events = Progress, Found, Agreed, *stops, answer
    return Union[(*events, *others, *([OfGroup] if task is RandomTask else []))]
