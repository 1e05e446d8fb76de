"""Makes the JSON Schema (2020-12) of a line in a set of vectors.

A line is a trace of any contract and kind.
"""

from __future__ import annotations

from typing import Any

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.answer_schemas import list_of, record
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.core.document import Schema
from lockstep.harness.programs.program import FORMAT
from lockstep.harness.programs.vectors import TRACE_FORMAT


def make_schema() -> dict[str, Any]:
    """Makes the schema that covers the lines of all kinds.

    The schema cannot express that there are as many answers as operations. It also cannot
    express which answers are valid for which operation.
    """
    kinds = [(rules, kind) for rules in CONTRACTS.values() for kind in rules.kinds]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"One line of a set of vectors: {TRACE_FORMAT}",
        "anyOf": [make_branch(rules, kind) for rules, kind in kinds],
    }


def make_branch(rules: Contract, kind: str) -> Schema:
    """Makes the schema of the lines of one kind."""
    operations = [rules.operations[name] for name in rules.list_operations(kind)]
    ops = [
        record(op={"const": operation.name}, **operation.fields)
        for operation in operations
    ]
    program = record(
        format={"const": FORMAT},
        contract={"const": rules.name},
        config=record(**{**rules.config, "kind": {"const": kind}}),
        ops=list_of(*ops),
        meta=record(name={"type": "string"}, level={"type": "string"}),
    )
    skipped = record(skipped={"type": "string"})
    answers = list_of(*(operation.get_answer(kind) for operation in operations), skipped)
    return record(format={"const": TRACE_FORMAT}, program=program, expected=answers)
