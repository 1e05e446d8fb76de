"""The ledger of known divergences: what an entry covers, and files that are none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.ledger import load_ledger, matches
from lockstep.harness.programs.program import walk
from tests.harness.building import draw_some, make, trim, update

PROGRAM = make(update(2), trim(1)).to_json()
ENTRY: dict[str, Any] = {
    "id": "one",
    "backend": "mine",
    "kind": "kv",
    "operation": "trim",
    "verdict": "bug",
    "reason": "It forgets to.",
    "link": None,
    "signature": "layer-kv-trim-result",
    "versions": {},
    "when": {"op": "trim", "count": [1, None]},
    "program": PROGRAM,
    "expected": "1",
    "got": "0",
}


def write(folder: Path, name: str, entry: Any) -> None:
    text = entry if isinstance(entry, str) else json.dumps(entry)
    (folder / f"{name}.json").write_text(text)


def test_the_entries_of_one_backend_are_loaded(tmp_path: Path) -> None:
    write(tmp_path, "b", {**ENTRY, "id": "two", "verdict": "limit"})
    write(tmp_path, "a", ENTRY)
    write(tmp_path, "c", {**ENTRY, "backend": "other"})
    entries = load_ledger(tmp_path, "mine")
    assert [entry.id for entry in entries] == ["one", "two"]
    assert entries[0].program.count_tags() == 2
    assert load_ledger(None, "mine") == []


def leave_out(name: str) -> dict[str, Any]:
    return {field: value for field, value in ENTRY.items() if field != name}


def when(**more: Any) -> dict[str, Any]:
    """The entry for other trims."""
    return {**ENTRY, "when": {"op": "trim", **more}}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{", "is not JSON"),
        ("null", "one.json"),
        ("{}", "one.json"),
        (leave_out("reason"), "reason"),
        (leave_out("when"), "when"),
        (leave_out("link"), "missing required field `link`"),
        ({**ENTRY, "verdict": "maybe"}, "Invalid enum value 'maybe' - at `$.verdict`"),
        ({**ENTRY, "program": {**PROGRAM, "contract": "layers"}}, "did you mean layer"),
        ({**ENTRY, "program": None}, "a program is an object"),
        ({**ENTRY, "when": {}}, "when"),
        ({**ENTRY, "when": []}, "when"),
        ({**ENTRY, "when": {"op": "trimm"}}, "when"),
        (when(cuont=[1, 2]), "cuont"),
        (when(count=3), "count"),
        (when(count=[1, 2, 3]), "count"),
        (when(count=["a", None]), "count"),
        (when(config={"windwo": [1, 2]}), "windwo"),
        (when(states=["warped"]), "warped"),
        (when(config=5), "Expected `object`, got `int`"),
        (when(states=5), "Expected `array`, got `int`"),
        ({**ENTRY, "signature": 3}, "signature"),
    ],
)
def test_a_broken_entry_is_refused(tmp_path: Path, entry: Any, words: str) -> None:
    """When it is loaded, not when the first operation happens to meet it."""
    write(tmp_path, "one", entry)
    with pytest.raises(UsageError) as caught:
        load_ledger(tmp_path, "mine")
    assert "one.json" in str(caught.value)
    assert words in str(caught.value)


TRIM = trim(3, cache="a")


@pytest.mark.parametrize(
    ("when", "covered"),
    [
        ({"op": "trim"}, True),
        ({"op": "update"}, False),
        ({"op": "trim", "count": [3, 3]}, True),
        ({"op": "trim", "count": [4, None]}, False),
        ({"op": "trim", "count": [None, 2]}, False),
        ({"op": "trim", "count": [None, None]}, True),
        ({"op": "trim", "offset": [5, 5]}, True),
        ({"op": "trim", "offset": [0, 4]}, False),
        ({"op": "trim", "config": {"window": [4, 4]}}, True),
        ({"op": "trim", "config": {"window": [5, None]}}, False),
        ({"op": "trim", "config": {"chunk": [None, None]}}, False),  # it has none
        ({"op": "trim", "states": ["wrapped"]}, True),
        ({"op": "trim", "states": ["wrapped", "mid-ring"]}, True),
        ({"op": "trim", "states": ["wrapped", "rewound"]}, False),
        ({"op": "trim", "states": ["wrapped"], "offset": [6, None]}, False),
    ],
)
def test_when_an_operation_is_covered(when: Mapping[str, Any], covered: bool) -> None:
    """trim 3 in a window of 4 at offset 5."""
    program = make(update(5), TRIM, kind="rotating", window=4)
    model = program.rules.open_model(program.config)
    program.rules.operations["update"].expect(program.ops[0], model)
    assert matches(when, TRIM, model, program.rules) is covered


def test_a_number_that_an_operation_does_not_have_is_not_within() -> None:
    program = make()
    model = program.rules.open_model(program.config)
    op = {"op": "restore", "snapshot": None, "target": 0, "cache": "a"}
    assert not matches({"op": "restore", "target": [1, 2]}, op, model, program.rules)
    assert matches({"op": "restore", "target": [None, 2]}, op, model, program.rules)


def test_generation_keeps_clear_of_what_is_known(tmp_path: Path) -> None:
    write(tmp_path, "one", {**ENTRY, "when": {"op": "trim", "offset": [1, None]}})
    known = load_ledger(tmp_path, "mine")
    declared = Kind(frozenset({"update", "trim"}))
    most = []
    for avoid in ([], known):
        programs = draw_some(20, "layer", "kv", declared, 1, avoid=avoid)
        steps = (step for program in programs for step in walk(program, rows=False))
        offsets = [s.model.get("a").offset for s in steps if s.op["op"] == "trim"]
        most.append(max(offsets))
    assert most[0] > most[1] == 0
