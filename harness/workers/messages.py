"""Messages between a job and its workers: a struct for each task and each event.

A message travels as JSON. A worker runs code of a backend, which may write anything to
its connection, so the job decodes each event strictly: only events of its task are valid.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args

from msgspec import Meta, Struct, ValidationError, convert, structs

from lockstep.harness.backends.backend import Kind, Planted, get_environment
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Cell, Op
from lockstep.harness.core.document import get_named
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.recording.picture import Bounds, Step
from lockstep.harness.programs.program import OPENING, Divergence, Program, parse_program
from lockstep.harness.workers.counts import Counts as Counts
from lockstep.harness.workers.counts import Natural as Natural
from lockstep.harness.workers.counts import NonNegative, Shown

Document = dict[str, Any]
"""A program as JSON, see `Program.to_json`; the receiver parses it."""

SIGNATURE = re.compile(r"[\w .-]+", re.ASCII)

A = TypeVar("A")


# --- events -----------------------------------------------------------------------------


class Event(Struct, frozen=True, tag=True, tag_field="event", forbid_unknown_fields=True):
    """A message of a worker about its task."""

    def check(self) -> None:
        """Refuses what the types alone let through.

        Raises:
            ValueError: a value is out of range.
            UsageError: a program is malformed.
        """


class Answer(Event, frozen=True):
    """The result of a task, and its end."""


class Progress(Event, frozen=True):
    """The state of a task that goes on; `reached` are cells not reported before."""

    counts: Counts
    reached: list[Cell] = []


class Found(Event, frozen=True, dict=True):
    """A diverging program, as found or shrunk.

    Attributes:
        programs: number of programs of the shard that had run.
        seconds: run time of the shard so far.
        original: the digest of the original program, if this one is shrunk.
        states: states at the failing step of all programs that were shrunk to this one.
        flaky: how often it fails, if not each time; see `Flaky`.
    """

    program: Document
    divergence: Divergence
    programs: Natural = 0
    seconds: NonNegative = 0.0
    original: str | None = None
    states: list[str] = []
    flaky: str | None = None

    @cached_property
    def parsed(self) -> Program:
        return parse_program(self.program, "a failing program")

    def is_other(self, event: Event) -> bool:
        """Says whether an event is not about the program that was made shorter."""
        return not isinstance(event, Found) or event.parsed.digest() != self.original

    def check(self) -> None:
        program = self.parsed
        if self.divergence.step >= max(1, len(program.ops)):
            raise ValueError(f"the program has no step {self.divergence.step}")
        check_divergence(self.divergence)


def check_divergence(divergence: Divergence) -> None:
    """Raises ValueError for one that no program can have."""
    if divergence.step < 0:
        raise ValueError(f"the program has no step {divergence.step}")
    if not SIGNATURE.fullmatch(f"{divergence.operation}-{divergence.what}"):
        raise ValueError("the signature of a divergence cannot be the name of a folder")


class Agreed(Event, frozen=True, dict=True):
    """A program that leads to a known divergence, by the ledger, and agrees.

    Attributes:
        entry: its id.
    """

    entry: str
    program: Document

    @cached_property
    def parsed(self) -> Program:
        return parse_program(self.program, "a program of the ledger")

    def check(self) -> None:
        _ = self.parsed  # raises


class Stopped(Event, frozen=True):
    """The end of a task without an answer."""

    why: str

    def describe(self) -> str:
        return self.why

    def blame(self) -> tuple[Program, Divergence] | None:
        """The program that was running, up to the step that did not end."""
        return None


class Refused(Stopped, frozen=True):
    """The backend is not here, or cannot be used for this task."""


class LoadFailed(Stopped, frozen=True):
    """The backend is broken: see `Unloadable`."""


class HarnessFailed(Stopped, frozen=True):
    """An exception in the harness itself.

    Attributes:
        program: the running program; None if there was none.
    """

    program: Document | None = None

    def describe(self) -> str:
        return f"the harness failed: {self.why}"

    def check(self) -> None:
        if self.program is not None:
            parse_program(self.program, "a program")


class Died(Stopped, frozen=True):
    """The worker ended or hung. Only the pool makes this event.

    Attributes:
        running: the running program; None if there was none.
        step: its step; OPENING before the first one.
        last_words: the end of what the worker printed.
    """

    what: Literal["crash", "hang"]
    running: Program | None
    step: int
    last_words: str

    @classmethod
    def before(cls, why: str) -> Died:
        """The death of a worker that was not at any program."""
        return cls(why, what="crash", running=None, step=0, last_words="")

    def describe(self) -> str:
        where = f"step {self.step}: " if self.running and self.step >= 0 else ""
        return f"{where}{self.describe_end()}"

    def describe_end(self) -> str:
        words = f"; its last words: {self.last_words}" if self.last_words else ""
        return f"{self.why}{words}"

    def blame(self) -> tuple[Program, Divergence] | None:
        if self.running is None:
            return None
        step = max(0, self.step)
        program = replace(self.running, ops=self.running.ops[: step + 1], meta={})
        operation = program.ops[step]["op"] if self.step != OPENING else "open"
        return program, Divergence(self.what, step, operation, self.describe_end())


# --- tasks and their answers ------------------------------------------------------------


class Task(
    Struct, Generic[A], frozen=True, tag=True, tag_field="do", forbid_unknown_fields=True
):
    """Work for a worker; A is the type of its answer."""

    backend: str


class OfBackend(Answer, frozen=True):
    """An answer that says what it was computed with."""

    versions: dict[str, str]
    device: str

    def get_environment(self) -> dict[str, Any]:
        return get_environment({"versions": self.versions, "device": self.device})


class Declared(OfBackend, frozen=True):
    """The declaration of a backend: contract → kind → `Kind`.

    Attributes:
        unchecked: kind → promises that cannot be checked.
        name: that a driver calls itself by; empty for other backends.
        has_ledger: whether it has a folder of known divergences.
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
    """Load the backend and check its declaration."""


class SliceDone(Answer, frozen=True):
    """A slice has run to its end.

    Attributes:
        coverage: state, operation, how often the one met the other.
        digest: of all programs that ran.
    """

    counts: Counts
    coverage: list[tuple[str, str, Natural]]
    digest: str


OfSlice = Progress | Found | Agreed | SliceDone
"""Events about one backend of a slice."""


class OfGroup(Event, frozen=True):
    """An event about another backend of the group than the first.

    Attributes:
        index: its number in the group; that of the first is 0.
    """

    index: Annotated[int, Meta(ge=1)]
    inner: OfSlice

    def check(self) -> None:
        self.inner.check()


class SliceTask(Task[SliceDone], frozen=True):
    """Run some of the programs of one kind.

    Attributes:
        number: of the slice, among those of this kind.
        known: signature → the programs that have shown it before.
        fatal: digests of programs that end their process; they are left out.
    """

    contract: str
    kind: str
    number: int
    known: dict[str, Shown] = {}
    fatal: list[str] = []

    @property
    def knowing(self) -> dict[str, dict[str, Shown]]:
        """Each backend that runs the programs → its `known`."""
        return {self.backend: self.known}


class RandomTask(SliceTask, frozen=True, kw_only=True):
    """Draw programs.

    Attributes:
        enough: stop once a shrunk program has at most so many operations.
        rare: rarely reached cells; some programs aim only at them.
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
        """The same for each backend alone."""
        return [
            structs.replace(self, backend=name, known=known, group={})
            for name, known in self.knowing.items()
        ]


class ExhaustiveTask(SliceTask, frozen=True, kw_only=True):
    """Run every program with one beginning; `path` and `covered` are of its Branch."""

    size: str
    depth: int
    path: list[int]
    covered: int


class Surveyed(Answer, frozen=True):
    """The domain of an exploration, and where its slices begin.

    Attributes:
        config: the fields that are not at their default.
        parts: (path, covered) of each slice.
        digest: of the domain; code: of backend, harness and reference.
    """

    moves: list[Op]
    symmetries: int
    config: dict[str, Any]
    parts: list[tuple[list[int], int]]
    avoided: Natural
    digest: str
    code: str
    versions: dict[str, str]


class SurveyDomain(Task[Surveyed], frozen=True):
    """Count the programs over a domain, and cut them into slices."""

    contract: str
    kind: str
    size: str
    depth: int


class Ran(OfBackend, frozen=True):
    """The result of one program.

    Attributes:
        divergence: of the first run that diverged; None if all agree.
        failed: how many runs diverged.
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
    """Run a program.

    Attributes:
        runs: how often, for a failure that does not come back each time.
        spares_known: refuse a program that diverges as an entry of the ledger says.
        adapts: take sizes that the backend declares where they change no answer, and skip
            all steps of a program that it does not declare, or that leads to a known
            divergence.
    """

    program: Document
    runs: int = 1
    spares_known: bool = False
    adapts: bool = False


class Recorded(OfBackend, frozen=True):
    """Both sides of a program, step by step; `stories`: where its tokens come from."""

    steps: list[Step]
    divergence: Divergence | None
    stories: list[str]


class RecordProgram(Task[Recorded], frozen=True):
    """Run a program and draw its steps; see `recorder.record`."""

    program: Document
    bounds: Bounds
    until: int | None = None
    wanted: str | None = None


class Shrunk(Answer, frozen=True):
    """The shorter program; None if the given one agrees."""

    found: Found | None

    def check(self) -> None:
        if self.found:
            self.found.check()


class Shrink(Task[Shrunk], frozen=True):
    program: Document
    seconds: float


class Snippet(Answer, frozen=True):
    text: str


class WriteSnippet(Task[Snippet], frozen=True):
    """Write a program as a script."""

    program: Document


class Sources(Answer, frozen=True):
    files: list[str]


class ListSources(Task[Sources], frozen=True):
    """List the files that a backend is made of, as far as it was imported."""


@dataclass(frozen=True)
class LedgerResult:
    """The signature that the program of a known divergence shows now; None: it agrees."""

    id: str
    kind: str
    signature: str
    got: str | None


class LedgerRun(Answer, frozen=True):
    entries: list[LedgerResult]


class RunLedger(Task[LedgerRun], frozen=True):
    """Run the program of each known divergence of the backend."""


class Clustered(Answer, frozen=True):
    """Failures that are likely one bug: index → index of an earlier failure."""

    likely: list[tuple[Natural, Natural]]


class Cluster(Task[Clustered], frozen=True):
    """known: for each, the index of a failure that is known to have the same cause."""

    programs: list[Document]
    signatures: list[str]
    known: list[Natural]


class FaultsListed(Answer, frozen=True):
    faults: list[Planted]


class ListFaults(Task[FaultsListed], frozen=True):
    """List the mistakes that are planted in the backend."""


class Drawn(Answer, frozen=True):
    """The lines of a file of vectors; `holds` is its entry in the manifest."""

    lines: list[str]
    holds: dict[str, Any]


class DrawVectors(Task[Drawn], frozen=True):
    contract: str
    kind: str
    size: str


# --- as bytes ---------------------------------------------------------------------------


def encode(message: Task[Any] | Event) -> bytes:
    """A message as JSON; `json` takes subclasses of str and lone surrogates, too."""
    return json.dumps(message, default=unfold).encode()


def unfold(value: Any) -> Any:
    """A value that JSON does not know, as one that it knows."""
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Struct):
        config = value.__struct_config__
        return {str(config.tag_field): config.tag, **structs.asdict(value)}
    return asdict(value)


def decode_event(data: bytes, task: Task[Any], *others: type[Event]) -> Event:
    """An event of this task, or one of the others that may come.

    Raises:
        ValueError: it is something else; the message says what.
    """
    try:
        event: Event = convert(json.loads(data), type=list_events(type(task), *others))
        event.check()
        count = len(task.knowing) if isinstance(task, SliceTask) else 1
        if isinstance(event, OfGroup) and event.index >= count:
            raise ValueError(f"the task has no backend of the number {event.index}")
    except RecursionError:  # each version of Python has other words for it
        raise ValueError("is nested too deeply") from None
    except (ValidationError, UsageError) as error:
        raise ValueError(str(error)) from None
    return event


@cache
def list_events(task: type[Task[Any]], *others: type[Event]) -> Any:
    """The union of all events of a task, and of others."""
    (base,) = task.__orig_bases__  # type: ignore[attr-defined]
    (answer,) = get_args(base)
    own = Progress, Found, Agreed, Refused, LoadFailed, HarnessFailed, answer
    return Union[(*own, *others, *([OfGroup] if task is RandomTask else []))]
