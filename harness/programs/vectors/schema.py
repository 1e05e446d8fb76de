"""The JSON Schema (2020-12) of one line: a trace of any contract and kind."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.answer_schemas import list_alternatives, record
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.core.document import Schema
from lockstep.harness.programs.program import FORMAT, MAX_OPERATIONS
from lockstep.harness.programs.vectors import TRACE_FORMAT

# --- a line -----------------------------------------------------------------------------


SKIPPED = record(skipped={"type": "string", "minLength": 1})
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def make_schema() -> dict[str, Any]:
    """Makes the schema: for each kind a branch with its config, operations and answers.

    It cannot say that each operation has one answer, nor which answers belong to it.
    """
    branches = [
        make_branch(rules, kind) for rules in CONTRACTS.values() for kind in rules.kinds
    ]
    return {
        "$schema": DIALECT,
        "title": f"One line of a set of vectors: {TRACE_FORMAT}",
        **record(
            format={"const": TRACE_FORMAT},
            program=record(
                format={"const": FORMAT},
                contract={"enum": list(CONTRACTS)},
                config={"type": "object", "required": ["kind"]},
                ops={"type": "array", "maxItems": MAX_OPERATIONS},
                meta=record(name={"type": "string"}, level={"type": "string"}),
            ),
            expected={"type": "array", "maxItems": MAX_OPERATIONS},
        ),
        "anyOf": [branch["if"] for branch in branches],
        "allOf": branches,
        "$defs": make_definitions(),
    }


def make_definitions() -> dict[str, Any]:
    """Maps "CONTRACT-OPERATION" to the schema of the operation."""
    return {
        f"{rules.name}-{name}": record(op={"const": name}, **operation.fields)
        for rules in CONTRACTS.values()
        for name, operation in rules.operations.items()
    }


def make_branch(rules: Contract, kind: str) -> dict[str, Any]:
    """Makes the branch of a kind: if a line is of this kind, it has these fields."""
    config = record(**rules.config)
    names = rules.list_operations(kind)
    answers = [rules.operations[name].get_answer(kind) for name in names]
    fields = {
        "program": having(config=config, ops={"items": choose_operation(rules, kind)}),
        "expected": {"items": {"anyOf": list_distinct([*answers, SKIPPED])}},
    }
    return {"if": select(rules.name, kind), "then": having(**fields)}


def select(contract: str, kind: str) -> dict[str, Any]:
    """Makes the schema that matches the lines of this kind."""
    own = having(contract={"const": contract}, config=having(kind={"const": kind}))
    return having(program=own)


def having(**fields: Schema) -> dict[str, Any]:
    """Makes the schema of an object with these fields, and any others."""
    return {"properties": fields, "required": sorted(fields)}


def choose_operation(rules: Contract, kind: str) -> dict[str, Any]:
    """Makes the schema of an operation of the kind, selected by its name.

    So an error names the wrong field, and not all operations that do not match.
    """
    names = rules.list_operations(kind)
    return {
        "type": "object",
        **having(op={"enum": list(names)}),
        "allOf": [
            {
                "if": having(op={"const": name}),
                "then": {"$ref": f"#/$defs/{rules.name}-{name}"},
            }
            for name in names
        ],
    }


def list_distinct(schemas: Iterable[Schema]) -> list[Schema]:
    """Lists each alternative of these schemas once."""
    options = list_alternatives(*schemas)
    return list({json.dumps(each, sort_keys=True): each for each in options}.values())
