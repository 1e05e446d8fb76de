"""The JSON Schema (2020-12) of one line: a trace of any contract and kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.base import Contract
from lockstep.harness.core.document import Schema
from lockstep.harness.programs.program import FORMAT, MAX_OPERATIONS
from lockstep.harness.programs.vectors import TRACE_FORMAT
from lockstep.harness.programs.vectors.answers import SKIPPED, get_answers, record

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def make_schema() -> dict[str, Any]:
    """One branch for each kind: its config, its operations, what they answer. What no
    schema can say: there is one answer for each operation, and it is that operation's."""
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
    """Operations by contract and name."""
    return {
        f"{rules.name}-{name}": record(op={"const": name}, **operation.fields)
        for rules in CONTRACTS.values()
        for name, operation in rules.operations.items()
    }


def make_branch(rules: Contract, kind: str) -> dict[str, Any]:
    """If a line is of this kind, what else holds of it."""
    config = record(**rules.config)
    answers = list_distinct([*get_answers(rules.name, kind).values(), SKIPPED])
    fields = {
        "program": having(config=config, ops={"items": choose_operation(rules, kind)}),
        "expected": {"items": {"anyOf": answers}},
    }
    return {"if": select(rules.name, kind), "then": having(**fields)}


def select(contract: str, kind: str) -> dict[str, Any]:
    """The lines of this kind."""
    own = having(contract={"const": contract}, config=having(kind={"const": kind}))
    return having(program=own)


def having(**fields: Schema) -> dict[str, Any]:
    """With these fields, and any others."""
    return {"properties": fields, "required": sorted(fields)}


def choose_operation(rules: Contract, kind: str) -> dict[str, Any]:
    """One of the operations of the kind, told by its name: what is wrong with its fields
    is said, and not that it is none of the other operations."""
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


def list_distinct(schemas: Sequence[Schema]) -> list[Schema]:
    """Those that differ, alternatives taken apart."""
    flat = [one for schema in schemas for one in schema.get("anyOf", [schema])]
    return list({json.dumps(one, sort_keys=True): one for one in flat}.values())
