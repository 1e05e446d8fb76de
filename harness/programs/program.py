"""Programs: JSON documents that serve as test cases, failures and regression tests."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.operation import (
    Answer,
    Config,
    Op,
    Step,
    iter_steps,
    list_names,
)
from lockstep.harness.core.document import (
    complete,
    drop_defaults,
    get_named,
    name_type,
    parse_json,
    read_text,
    show,
)
from lockstep.harness.core.errors import UsageError, make_printable

FORMAT = "lockstep/1"
MAX_OPERATIONS = 10_000
MAX_TOKENS = 8192
MAX_NUMBERS = 1 << 24
"""The maximal count of numbers in K and V together, which take 64 MiB in float32."""

MAX_NAMES = 80
"""The maximal count of caches, snapshots and saved contents; each may hold all tokens."""

STORED = ("cache", "snapshot", "saved")
"""The sorts of the names that `MAX_NAMES` limits; see `core.document.NAMES`."""


@dataclass(frozen=True)
class Program:
    """A config and the operations to run on it, with every default filled in.

    Attributes:
        meta: free-form notes for people; reports show them, and no answer depends on
            them.
    """

    contract: str
    config: Config
    ops: Sequence[Op]
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rules(self) -> Contract:
        return CONTRACTS[self.contract]

    @property
    def kind(self) -> str:
        return str(self.config["kind"])

    def count_tags(self) -> int:
        return self.rules.count_tags(self.ops)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON document, without defaults, with fields in canonical order."""
        rules = self.rules
        return {
            "format": FORMAT,
            "contract": self.contract,
            "config": drop_defaults(self.config, rules.config),
            "ops": [
                {"op": op["op"], **drop_defaults(op, rules.operations[op["op"]].fields)}
                for op in self.ops
            ],
            **({"meta": dict(self.meta)} if self.meta else {}),
        }

    def digest(self) -> str:
        """Returns a digest of the config and the operations, without `meta`."""
        body = replace(self, meta={}).to_json()
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


OPENING = -1
"""The step number while the backend opens the first cache."""


# --- how a program fails ----------------------------------------------------------------

FATAL = frozenset({"crash", "hang"})
"""Values of `Divergence.what` for programs that may end the worker process."""


@dataclass(frozen=True)
class Divergence:
    """The first step where a backend and the reference differ.

    Attributes:
        what: contents, mask, offset, size, result, error, attention, alias, malformed,
            crash, hang, or missing (a method of the backend is not written yet).
        message: a sentence that describes the difference.
        tokens: the tags of the tokens that the message mentions.
        beside: the backends beside which the program diverges, in one process; alone, it
            agrees. Empty if it diverges alone.
    """

    what: str
    step: int
    operation: str
    message: str
    expected: Answer | None = None
    got: Answer | None = None
    tokens: tuple[int, ...] = ()
    beside: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Makes the message printable, since backends and workers may send any text."""
        object.__setattr__(self, "message", make_printable(self.message))

    def mark(self, *backends: str) -> Divergence:
        """Returns this divergence with the note that it occurs only beside `backends`."""
        if not backends:
            return self
        message = f"diverges beside {', '.join(backends)}; agrees alone: {self.message}"
        return replace(self, message=message, beside=backends)

    @property
    def is_fatal(self) -> bool:
        return self.what in FATAL

    @property
    def is_unwritten(self) -> bool:
        """Whether a method of the backend is not written yet. Such a divergence counts
        neither as success nor as failure."""
        return self.what == "missing"

    def get_signature(self, program: Program) -> str:
        """Returns the signature, a text that is equal for all divergences that count as
        one bug."""
        return f"{program.contract}-{program.kind}-{self.operation}-{self.what}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Flaky:
    """The reruns of a failed program of which at least one passed.

    A program also counts as flaky if no rerun passed, but an earlier run passed, or runs
    of shorter programs passed.

    Attributes:
        failed: the number of reruns that failed.
        runs: the number of reruns.
    """

    failed: int
    runs: int

    def __str__(self) -> str:
        """Returns the text that a failure has in its `meta`."""
        return f"{self.failed} of {self.runs}"

    def describe(self) -> str:
        """Returns the line that a report shows."""
        if self.failed == 0:
            times = "once" if self.runs == 1 else f"{self.runs} times"
            return f"flaky: failed once, then agreed {times}"
        again = f"failed {self} times when it ran again"
        if self.failed == self.runs:
            again += ", but not in each earlier run of it or of shorter programs"
        return f"flaky: {again}; the program is not shortened"


MAX_RUNS = 100
"""The maximal number of runs of a program whose file says that it is flaky."""

MAX_BESIDE = 16
"""The maximal number of backends beside which a saved program runs."""

FLAKY = re.compile(r"([0-9]{1,3}) of ([0-9]{1,3})")


def read_flaky(meta: Mapping[str, Any]) -> Flaky | None:
    """Reads the flakiness of a program from its `meta`; None if it is not flaky."""
    said = meta.get("flaky")
    match = FLAKY.fullmatch(said) if isinstance(said, str) else None
    if match is None:
        return None
    failed, runs = map(int, match.groups())
    return Flaky(failed, runs) if failed <= runs and 0 < runs <= MAX_RUNS else None


UNSHRUNK = "unshrunk"
"""The field of a program's `meta` that says why a shorter program may fail as it does."""


def read_beside(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """Reads the backends beside which a program diverges from its `meta`."""
    said = meta.get("beside")
    names = said[:MAX_BESIDE] if isinstance(said, list) else []
    return tuple(name for name in names if isinstance(name, str))


# --- from a file ------------------------------------------------------------------------


def load_programs(path: Path) -> list[Program]:
    """Reads the programs of a file.

    A .jsonl or .jsonl.gz file has a program in each line; any other file has one program.

    Raises:
        UsageError: the file is invalid or has no program. The message has the location.
    """
    return [*parse_programs(read_text(path), str(path)).values()]


def parse_programs(text: str, where: str) -> dict[str, Program]:
    """Parses the text of the file `where`. Returns location → program.

    The location is the path of the file; in a .jsonl file, it is the path and the line
    number, such as "found.jsonl:3".
    """
    if not where.endswith(LINES):
        return {where: parse_program(parse_json(text, where), where)}
    programs = {}
    for number, line in enumerate(StringIO(text, newline="\n"), 1):
        if line.strip():
            location = f"{where}:{number}"
            programs[location] = parse_program(parse_json(line, location), location)
    if not programs:
        raise UsageError(f"{where}: holds no program")
    return programs


LINES = (".jsonl", ".jsonl.gz")
"""Name endings of files that have a program in each line."""


def parse_program(document: Any, where: str) -> Program:
    """Returns the program in a parsed JSON document, with all defaults filled in.

    The document is a program, or a trace or ledger entry that contains a program. The
    signature and the backend of a ledger entry are copied to the program's `meta`.

    Raises:
        UsageError: the document has no valid program, or the program is too large.
    """
    entry_meta = {}
    if isinstance(document, dict) and isinstance(document.get("program"), dict):
        copied = ("signature", "backend")
        entry_meta = {name: document[name] for name in copied if name in document}
        document = document["program"]
    if not isinstance(document, dict):
        raise UsageError(
            f"{where}: a program must be an object, not {name_type(document)}"
        )
    form = document.get("format")
    if form != FORMAT:
        raise UsageError(
            f'{where}: "format" is {show(form)}; this version reads "{FORMAT}"'
        )
    contract = get_named(CONTRACTS, document.get("contract"), f"{where}: contract")
    config = document.get("config")
    if not isinstance(config, dict):
        raise UsageError(f'{where}: "config" must be an object, not {name_type(config)}')
    config = complete(config, contract.config, f"{where}: config")
    broken = contract.why_illegal(config)
    if broken:
        raise UsageError(f"{where}: config: {broken}")
    ops = parse_operations(document.get("ops"), contract, where)
    meta = document.get("meta")
    meta = {**entry_meta, **(meta if isinstance(meta, dict) else {})}
    program = Program(contract.name, config, ops, meta)
    too_large = why_too_large(program)
    if too_large:
        raise UsageError(f"{where}: {too_large}")
    return program


def parse_operations(ops: Any, contract: Contract, where: str) -> list[Op]:
    if not isinstance(ops, list):
        raise UsageError(f'{where}: "ops" must be a list, not {name_type(ops)}')
    if len(ops) > MAX_OPERATIONS:
        raise UsageError(
            f"{where}: has {len(ops)} operations; at most {MAX_OPERATIONS} are allowed"
        )
    parsed: list[Op] = []
    for number, op in enumerate(ops):
        location = f"{where}: ops[{number}]"
        if not isinstance(op, dict):
            kind = name_type(op)
            raise UsageError(f"{location}: an operation must be an object, not {kind}")
        operation = get_named(contract.operations, op.get("op"), f"{location}: operation")
        fields = {name: value for name, value in op.items() if name != "op"}
        fields = complete(fields, operation.fields, f"{location} ({operation.name})")
        parsed.append({"op": operation.name, **fields})
    return parsed


def why_too_large(program: Program) -> str | None:
    """Returns why a program is too large, or None if it is not.

    A program is too large if it needs too much memory or time, or if it has more tokens
    than its dimensions can distinguish.
    """
    tokens, config = program.count_tags(), program.config
    most = min(MAX_TOKENS, program.rules.get_tag_limit(config))
    if tokens > most:
        return f"writes {tokens} tokens; at most {most} are allowed with these dimensions"
    numbers = tokens * program.rules.count_numbers(config)
    if numbers > MAX_NUMBERS:
        return f"K and V would hold {numbers} numbers; at most {MAX_NUMBERS} are allowed"
    names = {
        (sort, name)
        for op in program.ops
        for sort in STORED
        for name in list_names(op, program.rules.operations, sort)
    }
    if len(names) > MAX_NAMES:
        return (
            f"names {len(names)} caches and saved contents; at most {MAX_NAMES} are"
            " allowed"
        )
    return None


# --- running a program on the reference -------------------------------------------------


MAX_ANSWERED = 1 << 22
"""The maximal count of numbers in a trace.

A chunk of 512 tokens after 4,096 tokens needs half of this count."""


def walk(program: Program, rows: bool = True) -> Iterator[Step]:
    """Iterates over the steps of a program, each with the reference before the step.

    The caller may run the step. The executor calls this function, and runs a backend at
    each step. Traces, the ledger, explanations and pictures use it without a backend.

    Args:
        program: a complete program.
        rows: whether answers list the tokens that each row sees; False is faster.
    """
    model = program.rules.open_model(program.config, rows=rows)
    return iter_steps(program.rules.operations, model, program.ops)


def trace(program: Program) -> list[Answer]:
    """Returns the expected answer to each operation, or the reason for skipping it.

    If an operation has several allowed answers, the answers to later operations assume
    the first allowed answer; see `Operation.resolve`.

    Raises:
        UsageError: the answers hold more than MAX_ANSWERED numbers.
    """
    answers: list[Answer] = []
    numbers = 0
    for step in walk(program):
        answers.append(
            {"skipped": step.skipped} if step.skipped else step.run_reference()
        )
        numbers += count_numbers(answers[-1])
        if numbers > MAX_ANSWERED:
            raise UsageError(
                f"the expected answers hold more than {MAX_ANSWERED:,} numbers; trace a"
                " shorter program"
            )
    return answers


def breaks_usage(program: Program) -> bool:
    """Returns whether a program has an invalid call (error "usage")."""
    return any(
        step.skipped is None and step.run_reference().get("error") == "usage"
        for step in walk(program, rows=False)
    )


def find_states(program: Program, divergence: Divergence) -> set[str]:
    """Returns the abstract states of the reference at the step that diverges."""
    for step in islice(walk(program, rows=False), divergence.step, None):
        return set(program.rules.get_states(step.op, step.model))
    return set()


def count_numbers(value: Any) -> int:
    """Counts the numbers in an answer, at every level of nesting."""
    if isinstance(value, Mapping):
        return sum(map(count_numbers, value.values()))
    if isinstance(value, list):
        nested = value and isinstance(value[0], list)
        return sum(map(count_numbers, value)) if nested else len(value)
    return 1
