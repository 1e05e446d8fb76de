"""Draws a program from a source of choices, guided by the reference alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.backend import Kind
from harness.contracts import CONTRACTS
from harness.contracts.base import Op, Source
from harness.program import Program

Avoid = Callable[[Op, Any], bool]
"""Whether an operation, in the model's state, stands in the ledger as known to diverge."""

SHORTEST, LONGEST = 12, 44
"""Operations in a program: 28 on average. Deep bugs need about ten steps to set up."""


def draw_program(
    source: Source,
    contract: str,
    kind: str,
    declared: Kind,
    dtypes: Sequence[str],
    avoid: Avoid | None = None,
) -> Program:
    """A program of legal operations that `declared` supports."""
    rules = CONTRACTS[contract]
    dtype = {"dtype": tuple(dtypes), **declared.config}
    config = rules.draw_config(source, kind, Kind(declared.operations, dtype))
    names = [name for name in rules.operations if name in declared.operations]
    model = rules.open_model(config, rows=False)
    ops: list[Op] = []
    for _ in range(source.between(SHORTEST, LONGEST)):
        op = rules.draw_operation(source, model, names)
        if op is None or (avoid and avoid(op, model)):
            continue
        operation = rules.operations[op["op"]]
        full = {name: schema.get("default") for name, schema in operation.fields.items()}
        ops.append({**full, **op})
        operation.expect(ops[-1], model)
        model.tag += operation.tokens(op)
    return Program(contract, config, ops)
