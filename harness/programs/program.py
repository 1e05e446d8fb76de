"""The program: one JSON document that is case, failure, regression test and message."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.base import Contract, Op, Schema
from lockstep.harness.core.document import parse_json, read_text, shorten
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.payload import get_tag_limit

FORMAT = "lockstep/1"
MAX_OPERATIONS = 10_000
MAX_TOKENS = 4096
MAX_NUMBERS = 1 << 24
"""Of K and V together: keeps a program's tokens under 64 MiB in float32."""


@dataclass(frozen=True)
class Program:
    """A config and the operations to run on it, complete: every default is filled in.

    meta: free text for people. Nothing reads it but reports.
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
        """As it stands in a file: no defaults, fields in the order of the format."""
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


REQUIRED = object()
"""Stands for the default of a field that has none."""


def drop_defaults(
    fields: Mapping[str, Any], schemas: Mapping[str, Schema]
) -> dict[str, Any]:
    return {
        name: fields[name]
        for name, schema in schemas.items()
        if fields[name] != schema.get("default", REQUIRED)
    }


# --- from a file ------------------------------------------------------------------------


def load_programs(path: Path) -> list[Program]:
    """The programs in a file: one, or one a line if it ends in .jsonl or .jsonl.gz.

    Raises UsageError with the place of what is wrong, and if there is none.
    """
    return parse_programs(read_text(path), str(path))


def parse_programs(text: str, where: str) -> list[Program]:
    """The programs in the text of a file with this name."""
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
    """A complete program from parsed JSON; a trace is read as the program in it."""
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


def complete(
    given: Mapping[str, Any], schemas: Mapping[str, Schema], where: str
) -> dict[str, Any]:
    """`given` with its defaults filled in, each field checked against its schema."""
    for name in given:
        if name not in schemas:
            raise UsageError(
                f"{where}: unknown field {show(name)}{suggest(name, schemas)}"
            )
    fields = {}
    for name, schema in schemas.items():
        if name in given:
            fields[name] = check_field(given[name], schema, f"{where}: {name}")
        elif "default" in schema:
            fields[name] = schema["default"]
        else:
            raise UsageError(f'{where}: the field "{name}" is missing')
    return fields


def check_field(value: Any, schema: Schema, where: str) -> Any:
    """The value, if the schema allows it; a whole float becomes an int."""
    validator = jsonschema.Draft202012Validator(dict(schema))
    error = next(iter(validator.iter_errors(value)), None)
    if error is not None:
        place = "".join(f"[{part}]" for part in error.absolute_path)
        message = shorten(error.message)
        if error.validator == "maxItems":
            message = f"has {len(error.instance)} items; at most {error.validator_value}"
        raise UsageError(f"{where}{place}: {message}")
    return make_whole(value)


def make_whole(value: Any) -> Any:
    """The same with whole floats as ints, however deep."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [make_whole(item) for item in value]
    if isinstance(value, dict):
        return {name: make_whole(item) for name, item in value.items()}
    return value


def why_too_large(program: Program) -> str | None:
    """What a program has too much of: to be told apart, to be held, or None. No file
    makes the process eat memory or time without limit."""
    tokens, config = program.count_tokens(), program.config
    most = min(MAX_TOKENS, get_tag_limit(program.rules.get_tag_dimension(config)))
    if tokens > most:
        return f"writes {tokens} tokens; with these dimensions at most {most}"
    numbers = tokens * program.rules.count_layers(config) * config["heads"]
    numbers *= config["key_dim"] + config["value_dim"]
    if numbers > MAX_NUMBERS:
        return f"K and V would hold {numbers} numbers; at most {MAX_NUMBERS}"
    return None


def get_named(options: Mapping[str, Any], name: Any, where: str) -> Any:
    if isinstance(name, str) and name in options:
        return options[name]
    if name is None:
        raise UsageError(f"{where}: missing; one of {', '.join(options)}")
    raise UsageError(f"{where}: unknown {show(name)}{suggest(name, options)}")


def suggest(name: Any, options: Mapping[str, Any]) -> str:
    """The nearest names, or all of them."""
    near = get_close_matches(str(name), options) or list(options)
    return f"; did you mean {', '.join(near)}?"


def show(value: Any) -> str:
    return shorten(json.dumps(value, ensure_ascii=False, default=repr))


def name_type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    if value is None:
        return "missing"
    return names.get(type(value), "a number")
