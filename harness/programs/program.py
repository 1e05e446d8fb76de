"""The program: a JSON document that is test case, failure and regression test."""

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
from lockstep.harness.contracts.operation import Answer, Config, Op, Step, iter_steps
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
from lockstep.harness.core.payload import get_tag_limit

FORMAT = "lockstep/1"
MAX_OPERATIONS = 10_000
MAX_TOKENS = 8192
MAX_NUMBERS = 1 << 24
"""Of K and V together: keeps a program's tokens under 64 MiB in float32."""


@dataclass(frozen=True)
class Program:
    """A config and the operations to run on it, with every default filled in.

    Attributes:
        meta: anything, for people; only reports read it.
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
        """The document of a file: without defaults, fields in the order of the format."""
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
        """A digest of config and operations, without `meta`."""
        body = replace(self, meta={}).to_json()
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


OPENING = -1
"""The step that is running, as long as the backend opens the first cache."""


# --- how a program fails ----------------------------------------------------------------

FATAL = frozenset({"crash", "hang"})
"""Values of `what` for a program that may end the process that runs it."""


@dataclass(frozen=True)
class Divergence:
    """The first step where a backend and the reference differ.

    Attributes:
        what: contents, mask, offset, size, result, error, attention, alias, malformed,
            crash, hang, or missing (a part of the backend that is not written yet).
        message: how they differ, in a sentence.
        tokens: the tags that the sentence is about.
    """

    what: str
    step: int
    operation: str
    message: str
    expected: Answer | None = None
    got: Answer | None = None
    tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """A backend, or a worker, may have put anything into the message."""
        object.__setattr__(self, "message", make_printable(self.message))

    @property
    def is_fatal(self) -> bool:
        return self.what in FATAL

    @property
    def is_unwritten(self) -> bool:
        """Whether a part of the backend is not written yet: neither green nor red."""
        return self.what == "missing"

    def get_signature(self, program: Program) -> str:
        """The same for all divergences that are counted as one bug of a backend."""
        return f"{program.contract}-{program.kind}-{self.operation}-{self.what}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Flaky:
    """A failure that did not come back each time its program ran again.

    Attributes:
        failed: how often it came back.
        runs: how often the program ran.
    """

    failed: int
    runs: int

    def __str__(self) -> str:
        """The text in `meta` of a failure."""
        return f"{self.failed} of {self.runs}"

    def describe(self) -> str:
        """The line of a report."""
        if self.failed == 0:
            times = "once" if self.runs == 1 else f"{self.runs} times"
            return f"flaky: failed once, then agreed {times}"
        again = f"failed {self} times when it ran again"
        return f"flaky: {again}; the program is not shortened"


MAX_RUNS = 100
"""Of one program that a file calls flaky."""

FLAKY = re.compile(r"([0-9]{1,3}) of ([0-9]{1,3})")


def read_flaky(meta: Mapping[str, Any]) -> Flaky | None:
    """Reads from `meta` how often a program fails; None if it is not flaky."""
    said = meta.get("flaky")
    match = FLAKY.fullmatch(said) if isinstance(said, str) else None
    if match is None:
        return None
    failed, runs = map(int, match.groups())
    return Flaky(failed, runs) if failed <= runs and 0 < runs <= MAX_RUNS else None


# --- from a file ------------------------------------------------------------------------


def load_programs(path: Path) -> list[Program]:
    """Reads the programs of a file: one, or one for each line of a .jsonl or .jsonl.gz
    file.

    Raises:
        UsageError: the file is invalid at the place in the message, or holds no program.
    """
    return [*parse_programs(read_text(path), str(path)).values()]


def parse_programs(text: str, where: str) -> dict[str, Program]:
    """The programs in the text of the file `where`, each by its place: the file, or its
    line of a .jsonl file, as in "found.jsonl:3"."""
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
"""Endings of files with one program in each line."""


def parse_program(document: Any, where: str) -> Program:
    """A complete program from parsed JSON; of a trace or an entry of the ledger, the
    program in it, with the signature and the backend of the entry in its `meta`.

    Raises:
        UsageError: the document is not a program, or too large.
    """
    entry_meta = {}
    if isinstance(document, dict) and isinstance(document.get("program"), dict):
        copied = ("signature", "backend")
        entry_meta = {name: document[name] for name in copied if name in document}
        document = document["program"]
    if not isinstance(document, dict):
        raise UsageError(
            f"{where}: a program is an object, this is {name_type(document)}"
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
            f"{where}: {len(ops)} operations; a program may have {MAX_OPERATIONS}"
        )
    parsed: list[Op] = []
    for number, op in enumerate(ops):
        location = f"{where}: ops[{number}]"
        if not isinstance(op, dict):
            kind = name_type(op)
            raise UsageError(f"{location}: an operation is an object, not {kind}")
        operation = get_named(contract.operations, op.get("op"), f"{location}: operation")
        fields = {name: value for name, value in op.items() if name != "op"}
        fields = complete(fields, operation.fields, f"{location} ({operation.name})")
        parsed.append({"op": operation.name, **fields})
    return parsed


def why_too_large(program: Program) -> str | None:
    """Why a program takes too much memory or time, or has more tokens than can be told
    apart; None if it does not."""
    tokens, config = program.count_tags(), program.config
    most = min(MAX_TOKENS, get_tag_limit(program.rules.get_tag_dimension(config)))
    if tokens > most:
        return f"writes {tokens} tokens; with these dimensions at most {most}"
    numbers = tokens * program.rules.count_numbers(config)
    if numbers > MAX_NUMBERS:
        return f"K and V would hold {numbers} numbers; at most {MAX_NUMBERS}"
    return None


# --- the walk along a program with the reference beside it ------------------------------


MAX_ANSWERED = 1 << 22
"""Numbers in a trace. A chunk of 512 tokens behind 4,096 comes to half of it."""


def walk(program: Program, rows: bool = True) -> Iterator[Step]:
    """Each step of a program, with the reference before it; it may be run by the caller.

    Whoever needs to know where a program leads walks along it: the executor, which runs a
    backend at each step, traces, the ledger, explanations and pictures.

    Args:
        program: a complete program.
        rows: answers say what each row sees; without, a walk costs less.
    """
    model = program.rules.open_model(program.config, rows=rows)
    return iter_steps(program.rules.operations, model, program.ops)


def trace(program: Program) -> list[Answer]:
    """Returns the expected answer to each operation; for a skipped one, the reason.

    If several answers are allowed, later answers assume the first; see
    `Operation.resolve`.

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
    """Whether some operation of a program breaks a rule of usage."""
    return any(
        step.skipped is None and step.run_reference().get("error") == "usage"
        for step in walk(program, rows=False)
    )


def find_states(program: Program, divergence: Divergence) -> set[str]:
    """The abstract states of the step that diverges."""
    for step in islice(walk(program, rows=False), divergence.step, None):
        return set(program.rules.get_states(step.op, step.model))
    return set()


def count_numbers(value: Any) -> int:
    """The numbers in an answer, however deep."""
    if isinstance(value, Mapping):
        return sum(map(count_numbers, value.values()))
    if isinstance(value, list):
        nested = value and isinstance(value[0], list)
        return sum(map(count_numbers, value)) if nested else len(value)
    return 1
