"""The reference as a row of its own among the backends.

Nothing is run beside it. What it answers to a program is held against what it answers to
programs that are derived from that one; see `harness.execution.metamorphic.check`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Any, cast

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.interface import Arrays
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.printable import say_error
from lockstep.harness.execution.executor import Coverage, Divergence, Result, run
from lockstep.harness.execution.metamorphic.check import find_contradiction
from lockstep.harness.programs.program import Program

NAME = "reference"

SHARE = 8
"""Of the programs that a backend runs, the reference gets one in so many: each comes with
half a dozen others."""

CONFIG: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "kv": {"chunk": (None, None, 2, 3)},
    "rotating": {"keep": (0, 0, 1, 2)},
    "trie": {"interval": (None, None, 1, 2, 3)},
}
"""The fields that are not drawn unless they are named."""


def open_nothing(config: Mapping[str, Any]) -> Any:
    raise NotImplementedError("the reference is not run beside itself")


REFERENCE = Backend(
    name=NAME,
    device="none",
    contracts={
        name: {
            kind: Kind(frozenset(rules.list_operations(kind)), CONFIG.get(kind, {}))
            for kind in rules.kinds
        }
        for name, rules in CONTRACTS.items()
    },
    arrays=cast(Arrays, None),
    open=open_nothing,
    versions={"python": platform.python_version()},
    notes="held against itself",
)


def get_reference() -> Backend:
    return REFERENCE


def run_any(
    program: Program,
    backend: Backend,
    every: bool = False,
    coverage: Coverage | None = None,
    on_step: Callable[[int], None] | None = None,
    wanted: str | None = None,
) -> Result:
    """A program on a backend beside the reference, or on the reference alone: until its
    end, or its first divergence. every: make the costly checks too. wanted: of what the
    reference contradicts, only what has this signature.
    """
    if backend is not REFERENCE:
        return run(program, backend, every, coverage, on_step)
    result = walk(program, coverage, on_step)
    result.divergence = result.divergence or find_contradiction(
        program, every, wanted=wanted
    )
    return result


def walk(
    program: Program,
    coverage: Coverage | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Result:
    """The program on the reference alone: how far it comes, and which states it meets."""
    rules, result = program.rules, Result()
    model = rules.open_model(program.config, rows=False)
    for step, op in enumerate(program.ops):
        if on_step:
            on_step(step)
        operation = rules.operations[op["op"]]
        why = operation.illegal(op, model)
        if why is None:
            if coverage is not None:
                for state in rules.get_states(op, model):
                    coverage[state, operation.name] += 1
            try:
                operation.expect(op, model)
            except Exception as error:
                message = f"raised {say_error(error)}"
                result.divergence = Divergence("error", step, operation.name, message)
                return result
            result.steps += 1
        else:
            result.why_skipped = result.why_skipped or why
            result.skipped += 1
        model.tag += operation.tokens(op)
    return result
