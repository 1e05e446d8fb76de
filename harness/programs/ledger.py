"""Which programs a backend is given: what it declares, and known divergences.

An entry of the ledger is a known divergence of a released cache, with its reason and a
program as proof. It has two effects. Generation avoids the operations that it describes,
so that what follows them is still explored. And its program runs in each check and must
still fail, with the same signature; otherwise the entry is reported as outdated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from msgspec import ValidationError, convert

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.operation import Op
from lockstep.harness.core.document import get_named, parse_json, read_text
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.program import Program, parse_program, walk

# --- known divergences ------------------------------------------------------------------


Range = tuple[int | None, int | None]
SPECIAL = ("op", "states", "config")


@dataclass(frozen=True)
class Fields:
    """The fields of an entry that are as its file has them.

    Attributes:
        verdict: "limit" if the makers of the cache document it.
        when: the operations that lead there; see `matches`.
        signature: of the divergence that the program must show.
    """

    id: str
    backend: str
    verdict: Literal["bug", "limit"]
    reason: str
    link: str | None
    signature: str
    when: dict[str, Any]


@dataclass(frozen=True)
class Entry(Fields):
    """One known divergence of one backend."""

    program: Program


def load_ledger(folder: Path | None, backend: str) -> list[Entry]:
    """The entries about a backend, in the order of their files.

    Raises:
        UsageError: some file is not a ledger entry.
    """
    if folder is None:
        return []
    entries = [load_entry(path) for path in sorted(folder.glob("*.json"))]
    return [entry for entry in entries if entry.backend == backend]


def load_entry(path: Path) -> Entry:
    document = parse_json(read_text(path), str(path))
    try:
        fields = convert(document, type=Fields)
        program = parse_program(document.get("program"), str(path))
        check_when(fields.when, program.rules, f"{path}: when")
    except ValidationError as error:
        raise UsageError(f"{path}: is not a ledger entry: {error}") from None
    return Entry(**vars(fields), program=program)


def check_when(when: Mapping[str, Any], rules: Contract, where: str) -> None:
    """Requires that all names in a condition exist, and that its ranges are ranges."""
    operation = get_named(rules.operations, when.get("op"), f"{where}: op")
    numbers = {**operation.fields, **dict.fromkeys(rules.facts)}
    own = {name: test for name, test in when.items() if name not in SPECIAL}
    config = convert(when.get("config", {}), type=dict[str, Any])
    for tests, known in ((own, numbers), (config, rules.config)):
        for name, test in tests.items():
            get_named(dict.fromkeys(known, True), name, where)
            try:
                convert(test, type=Range)
            except ValidationError:
                raise UsageError(
                    f"{where}: {name} must be [low, high], not {test!r}"
                ) from None
    for state in convert(when.get("states", []), type=list[str]):
        get_named(dict.fromkeys(rules.states, True), state, f"{where}: states")


def matches(when: Mapping[str, Any], op: Op, model: Any, rules: Contract) -> bool:
    """Whether `when` describes an operation that is about to run on the model.

    Args:
        when: {"op": name, "states": [all must hold], "config": {field: [low, high]},
            name: [low, high]}, where a name is a field of the operation or a fact of the
            contract such as "offset". A bound may be null.
        op: complete.
        model: the reference before the operation.
        rules: the contract of both.
    """
    if op["op"] != when["op"]:
        return False
    numbers = {**model.get_facts(op), **op}
    tests = [(numbers[name], test) for name, test in when.items() if name not in SPECIAL]
    tests += [(model.config[name], test) for name, test in when.get("config", {}).items()]
    return all(is_within(value, test) for value, test in tests) and set(
        when.get("states", ())
    ) <= set(rules.get_states(op, model))


def is_within(value: Any, test: Sequence[Any]) -> bool:
    low, high = test
    if value is None:
        return False
    return (low is None or value >= low) and (high is None or value <= high)


# --- what a backend can run -------------------------------------------------------------


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
    if not kinds[program.kind].atomic and (step := find_unclear(program)) is not None:
        return (
            f"{backend.name} does not declare that a refused remove is atomic, and step"
            f" {step} does not clear the sequence"
        )
    return None


def find_unclear(program: Program) -> int | None:
    """Finds a step where the clearing of a sequence has to follow a refused removal, and
    something else does; see `Kind.atomic`."""
    clearing: Op | None = None
    for step in walk(program, rows=False):
        if step.skipped is None:
            if clearing is not None and clearing != step.op:
                return step.number
            step.finish()
            clearing = program.rules.get_clearing(step.model)
    return None


def is_known(program: Program, avoid: Sequence[Entry]) -> bool:
    """Whether a program leads to a divergence that an entry of the ledger describes."""
    return any(
        matches(entry.when, step.op, step.model, program.rules)
        for step in walk(program, rows=False)
        if step.skipped is None
        for entry in avoid
    )
