"""The program: a JSON document that is test case, failure and regression test."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.base import Contract
from lockstep.harness.contracts.types import Answer, Op
from lockstep.harness.core.document import (
    complete,
    drop_defaults,
    get_named,
    name_type,
    parse_json,
    read_text,
    show,
)
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.payload import get_tag_limit

FORMAT = "lockstep/1"
MAX_OPERATIONS = 10_000
MAX_TOKENS = 4096
MAX_NUMBERS = 1 << 24
"""Of K and V together: keeps a program's tokens under 64 MiB in float32."""


@dataclass(frozen=True)
class Program:
    """A config and the operations to run on it, with every default filled in.

    Attributes:
        meta: anything, for people; only reports read it.
    """

    contract: str
    config: Mapping[str, Any]
    ops: Sequence[Op]
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rules(self) -> Contract:
        return CONTRACTS[self.contract]

    @property
    def kind(self) -> str:
        return str(self.config["kind"])

    def count_tokens(self) -> int:
        return self.rules.count_tokens(self.ops)

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
        """The same for the same config and operations, whatever is in `meta`."""
        body = replace(self, meta={}).to_json()
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


# --- how a program fails ----------------------------------------------------------------

ERRORS = frozenset({"malformed", "crash", "hang", "missing"})
"""Values of `what` for a backend that is not wrong about a cache, but does not answer."""


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

    @property
    def is_error(self) -> bool:
        return self.what in ERRORS

    def get_signature(self, program: Program) -> str:
        """The same for all divergences that are counted as one bug of a backend."""
        return f"{program.contract}-{program.kind}-{self.operation}-{self.what}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


# --- from a file ------------------------------------------------------------------------


def load_programs(path: Path) -> list[Program]:
    """The programs in a file: one, or one a line if it ends in .jsonl or .jsonl.gz.

    Raises:
        UsageError: something is wrong, at the place that the message names, or the file
            holds no program.
    """
    return parse_programs(read_text(path), str(path))


def parse_programs(text: str, where: str) -> list[Program]:
    """The programs in the text of the file `where`."""
    programs = list(iterate_programs(text, where))
    if not programs:
        raise UsageError(f"{where}: holds no program")
    return programs


def iterate_programs(text: str, where: str) -> Iterator[Program]:
    if not where.endswith((".jsonl", ".jsonl.gz")):
        yield parse_program(parse_json(text, where), where)
        return
    for number, line in enumerate(StringIO(text, newline="\n"), 1):
        if line.strip():
            place = f"{where}:{number}"
            yield parse_program(parse_json(line, place), place)


def parse_program(document: Any, where: str) -> Program:
    """A complete program from parsed JSON; of a trace, the program in it.

    Raises:
        UsageError: the document is not a program, or too large.
    """
    if isinstance(document, dict) and isinstance(document.get("program"), dict):
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
    broken = contract.why_not(config)
    if broken:
        raise UsageError(f"{where}: config: {broken}")
    ops = parse_operations(document.get("ops"), contract, where)
    meta = document.get("meta")
    program = Program(contract.name, config, ops, meta if isinstance(meta, dict) else {})
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
        place = f"{where}: ops[{number}]"
        if not isinstance(op, dict):
            raise UsageError(f"{place}: an operation is an object, not {name_type(op)}")
        operation = get_named(contract.operations, op.get("op"), f"{place}: operation")
        fields = {name: value for name, value in op.items() if name != "op"}
        fields = complete(fields, operation.fields, f"{place} ({operation.name})")
        parsed.append({"op": operation.name, **fields})
    return parsed


def why_too_large(program: Program) -> str | None:
    """Why a program takes too much memory or time, or has more tokens than can be told
    apart; None if it does not."""
    tokens, config = program.count_tokens(), program.config
    most = min(MAX_TOKENS, get_tag_limit(program.rules.get_tag_dimension(config)))
    if tokens > most:
        return f"writes {tokens} tokens; with these dimensions at most {most}"
    numbers = tokens * program.rules.count_layers(config) * config["heads"]
    numbers *= config["key_dim"] + config["value_dim"]
    if numbers > MAX_NUMBERS:
        return f"K and V would hold {numbers} numbers; at most {MAX_NUMBERS}"
    return None
