"""Draws a program from a source of choices, guided by the reference alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.backend import Kind
from harness.contracts import CONTRACTS
from harness.contracts.base import Contract, Op, Source
from harness.ledger import Entry, matches
from harness.payload import get_tag_limit
from harness.program import MAX_TOKENS, Program

SHORTEST, LONGEST = 12, 44
"""Operations in a program: 28 on average. Deep bugs need about ten steps to set up."""

TRIES = 4
"""Draws for each operation: some come to nothing, or to what the ledger knows."""


class Drawer:
    """Draws programs for one kind of one backend.

    avoid: known divergences, whose operations are left out. misuse: break rules of usage
    too.
    """

    def __init__(
        self,
        contract: str,
        kind: str,
        declared: Kind,
        dtypes: Sequence[str],
        avoid: Sequence[Entry] = (),
        misuse: bool = False,
    ) -> None:
        self.rules: Contract = CONTRACTS[contract]
        self.kind = kind
        config = {"dtype": tuple(dtypes), **declared.config}
        self.declared = Kind(declared.operations, config)
        self.names = [
            name for name in self.rules.operations if name in declared.operations
        ]
        self.avoid = avoid
        self.misuse = misuse

    def draw(self, source: Source) -> Program:
        """A program of legal operations that the kind, as declared, supports."""
        rules = self.rules
        config = rules.draw_config(source, self.kind, self.declared)
        model = rules.open_model(config, rows=False)
        rules.draw_reach(source, model)
        most = min(MAX_TOKENS, get_tag_limit(rules.get_tag_dimension(config)))
        ops: list[Op] = []
        length = source.between(SHORTEST, LONGEST)
        for _ in range(TRIES * length):
            if len(ops) == length:
                break
            op = self.draw_operation(source, model)
            if op is None or self.is_known(op, model):
                continue
            operation = rules.operations[op["op"]]
            if model.tag + operation.tokens(op) > most:
                continue
            ops.append(op)
            operation.expect(op, model)
            model.tag += operation.tokens(op)
        return Program(rules.name, config, ops)

    def draw_operation(self, source: Source, model: Any) -> Op | None:
        """One that is legal now, every field set; where usage is to be broken, one in
        three that is not allowed."""
        rules, op = self.rules, None
        if self.misuse and source.below(3) == 0:
            op = rules.draw_misuse(source, model, self.names)
        op = op or rules.draw_operation(source, model, self.names)
        return op and {**rules.operations[op["op"]].get_defaults(), **op}

    def is_known(self, op: Op, model: Any) -> bool:
        return any(matches(entry.when, op, model, self.rules) for entry in self.avoid)
