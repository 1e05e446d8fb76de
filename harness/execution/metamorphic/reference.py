"""The reference as a backend like any other: compared with itself.

Nothing is run beside it. Its answers to a program are compared with its answers to
programs that are derived from that one; see `check`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Any, cast

from lockstep.harness.backends.backend import REFERENCE_NAME, Backend, Kind
from lockstep.harness.backends.interface import Arrays
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.errors import say_error
from lockstep.harness.execution.executor import Coverage, Result
from lockstep.harness.execution.metamorphic.check import find_contradiction
from lockstep.harness.programs.program import Divergence, Program, walk

SHARE = 8
"""The reference gets every 8th of the programs that a backend runs: with each it runs
half a dozen others."""

CONFIG: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "kv": {"chunk": (None, None, 2, 3)},
    "rotating": {"keep": (0, 0, 1, 2)},
    "trie": {"interval": (None, None, 1, 2, 3)},
}
"""Fields that are drawn only if a backend names them."""


def execute(
    program: Program,
    every: bool = False,
    coverage: Coverage | None = None,
    on_step: Callable[[int], None] | None = None,
    wanted: str | None = None,
) -> Result:
    """Runs a program on the reference, and compares its answers with derived programs.

    Args:
        program: a complete program.
        every: try all derived programs, not one for each relation.
        coverage: is counted up.
        on_step: is called with the number of each step before it runs.
        wanted: the signature that a contradiction must have; others are passed over.
    """
    result = Result()
    number, operation = 0, "open"
    try:
        for step in walk(program, rows=False):
            number, operation = step.number, step.op["op"]
            if on_step:
                on_step(number)
            if step.skipped is not None:
                result.why_skipped = result.why_skipped or step.skipped
                result.skipped += 1
                continue
            if coverage is not None:
                for state in program.rules.get_states(step.op, step.model):
                    coverage[state, operation] += 1
            step.expect()
            result.steps += 1
    except Exception as error:
        message = f"raised {say_error(error)}"
        result.divergence = Divergence("error", number, operation, message)
        return result
    result.divergence = find_contradiction(program, every, wanted=wanted)
    return result


def open_nothing(config: Mapping[str, Any]) -> Any:
    raise NotImplementedError("the reference is not run beside itself")


REFERENCE = Backend(
    name=REFERENCE_NAME,
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
    execute=execute,
    share=SHARE,
)


def get_reference() -> Backend:
    return REFERENCE
