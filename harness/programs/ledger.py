"""Known divergences of released caches: each with its reason and its program as proof.

An entry works both ways. Generation keeps clear of what it describes, so that what lies
behind it is still explored; and its program is run each time and must still fail, with
the same signature, or the entry is reported as outdated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.harness.contracts.base import Contract
from lockstep.harness.contracts.types import Op
from lockstep.harness.core.document import parse_json, read_text
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.fields import get_named
from lockstep.harness.programs.program import Program, parse_program

VERDICTS = ("bug", "limit")


@dataclass(frozen=True)
class Entry:
    """One known divergence of one backend.

    verdict: "bug", or "limit" if its makers document it. when: the operations that lead
    there; see `matches`. signature: of the divergence that `program` must show.
    """

    id: str
    backend: str
    verdict: str
    reason: str
    link: str | None
    signature: str
    when: Mapping[str, Any]
    program: Program


def load_ledger(folder: Path | None, backend: str) -> list[Entry]:
    """The entries about `backend`, by id. Raises UsageError for a file that is none."""
    if folder is None:
        return []
    entries = [load_entry(path) for path in sorted(folder.glob("*.json"))]
    return [entry for entry in entries if entry.backend == backend]


FIELDS = ("id", "backend", "verdict", "reason", "link", "signature", "when", "program")
SPECIAL = ("op", "states", "config")


def load_entry(path: Path) -> Entry:
    """The entry in a file, complete and checked. Raises UsageError."""
    document = parse_json(read_text(path), str(path))
    if not isinstance(document, dict):
        raise UsageError(f"{path}: a ledger entry is an object")
    missing = [name for name in FIELDS if name not in document]
    if missing:
        raise UsageError(f"{path}: a ledger entry needs {', '.join(missing)}")
    fields = {name: document[name] for name in FIELDS}
    for name in ("id", "backend", "reason", "signature"):
        if not isinstance(fields[name], str):
            raise UsageError(f"{path}: {name} must be text")
    if fields["verdict"] not in VERDICTS:
        raise UsageError(f"{path}: verdict must be one of {', '.join(VERDICTS)}")
    program = parse_program(fields["program"], str(path))
    check_when(fields["when"], program.rules, f"{path}: when")
    return Entry(**{**fields, "program": program})


def check_when(when: Any, rules: Contract, where: str) -> None:
    """Every name in a condition exists, and every range is one. Raises UsageError."""
    if not isinstance(when, dict):
        raise UsageError(f"{where}: is an object")
    operation = get_named(rules.operations, when.get("op"), f"{where}: op")
    numbers = {**operation.fields, **dict.fromkeys(rules.facts)}
    own = {name: test for name, test in when.items() if name not in SPECIAL}
    for tests, known in ((own, numbers), (when.get("config", {}), rules.config)):
        for name, test in tests.items():
            get_named(dict.fromkeys(known, True), name, where)
            if not is_range(test):
                raise UsageError(f"{where}: {name} must be [low, high], not {test!r}")
    for state in when.get("states", ()):
        get_named(dict.fromkeys(rules.states, True), state, f"{where}: states")


def is_range(test: Any) -> bool:
    """[low, high], either of them null."""
    return (
        isinstance(test, list)
        and len(test) == 2
        and all(bound is None or isinstance(bound, int) for bound in test)
    )


def matches(when: Mapping[str, Any], op: Op, model: Any, rules: Contract) -> bool:
    """Whether an operation, about to run on the model, is what `when` describes.

    when: {"op": name, "states": [all must hold], "config": {field: [low, high]},
    name: [low, high]}, where a name is a field of the operation or a fact of the
    contract such as "offset". A bound may be null.
    """
    if op["op"] != when["op"]:
        return False
    numbers = {**rules.get_facts(op, model), **op}
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
