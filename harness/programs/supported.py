"""Whether a backend can run a program."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.harness.backends.backend import Backend
from lockstep.harness.programs.ledger import Entry, matches
from lockstep.harness.programs.program import Program, walk


def why_unsupported(program: Program, backend: Backend) -> str | None:
    """Why a backend cannot run a program: something is not declared; None if it can."""
    kinds = backend.contracts.get(program.contract, {})
    if program.kind not in kinds:
        has = ", ".join(kinds) or "none"
        return (
            f"{backend.name} declares no {program.contract} cache of kind"
            f" {program.kind} (it has: {has})"
        )
    for field, schema in program.rules.config.items():
        default = [schema["default"]] if field in program.rules.opt_in else None
        allowed = kinds[program.kind].config.get(field, default)
        value = program.config[field]
        if allowed is not None and value not in allowed:
            return f"{backend.name} does not declare {field} {value}"
    missing = {op["op"] for op in program.ops} - kinds[program.kind].operations
    if missing:
        return f"{backend.name} does not declare {', '.join(sorted(missing))}"
    if program.config["dtype"] not in backend.dtypes:
        return f"{backend.name} does not declare dtype {program.config['dtype']}"
    return None


def is_known(program: Program, avoid: Sequence[Entry]) -> bool:
    """Whether a program leads to a divergence that an entry of the ledger describes."""
    return any(
        matches(entry.when, step.op, step.model, program.rules)
        for step in walk(program, rows=False)
        if step.skipped is None
        for entry in avoid
    )
