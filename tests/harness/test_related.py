"""Which failures are said to be likely one bug."""

from __future__ import annotations

from typing import Any

from lockstep.harness.execution.shrink import find_likely, is_likely_one
from lockstep.harness.programs.program import Program, parse_program


def make(*names: str, **config: Any) -> Program:
    known: dict[str, dict[str, Any]] = {
        "update": {"op": "update", "length": 1},
        "clone": {"op": "clone", "into": "b"},
        "trim": {"op": "trim", "count": 1},
        "view": {"op": "view"},
        "state": {"op": "state"},
        "size": {"op": "size"},
    }
    config = {"kind": "kv", **config}
    document = {"format": "lockstep/1", "contract": "layer", "config": config}
    return parse_program({**document, "ops": [known[name] for name in names]}, "here")


def get_names(program: Program) -> list[str]:
    return [op["op"] for op in program.ops]


def contains(names: list[str], wanted: list[str]) -> bool:
    rest = iter(names)
    return all(name in rest for name in wanted)


def shows_clone(program: Program) -> str | None:
    """One bug: after update, clone, whatever is read is wrong."""
    names = get_names(program)
    for last in ("view", "state"):
        if contains(names, ["update", "clone", last]):
            return last
    return None


def shows_two(program: Program) -> str | None:
    """Two: the one shows after an update and a clone, the other after a trim and a
    size."""
    names = get_names(program)
    if contains(names, ["update", "clone", "view"]):
        return "view"
    return "state" if contains(names, ["trim", "size", "state"]) else None


ONE = make("update", "clone", "view")
OTHER = make("update", "clone", "state")
DIFFERENT = make("trim", "size", "state")


def test_the_same_steps_seen_by_two_operations_are_likely_one_bug() -> None:
    assert is_likely_one(ONE, OTHER, "state", shows_clone)
    assert find_likely([(ONE, "view"), (OTHER, "state")], shows_clone) == {1: 0}


def test_other_steps_are_not() -> None:
    assert not is_likely_one(ONE, DIFFERENT, "state", shows_two)
    assert not is_likely_one(DIFFERENT, ONE, "view", shows_two)
    assert find_likely([(ONE, "view"), (DIFFERENT, "state")], shows_two) == {}


def test_steps_that_are_not_all_needed_are_not() -> None:
    """Any state is wrong here: what came before it says nothing."""

    def shows(program: Program) -> str | None:
        names = get_names(program)
        if contains(names, ["update", "clone", "view"]):
            return "view"
        return "state" if contains(names, ["update", "state"]) else None

    state = make("update", "size", "state")
    assert shows(state) == "state"
    assert not is_likely_one(ONE, state, "state", shows)


def test_one_plain_step_leads_anywhere_and_says_nothing() -> None:
    def shows(program: Program) -> str | None:
        names = get_names(program)
        for last in ("view", "state"):
            if contains(names, ["update", last]):
                return last
        return None

    assert not is_likely_one(
        make("update", "view"), make("update", "state"), "state", shows
    )


def test_three_are_one_if_the_second_and_the_third_are() -> None:
    failing = [(make("trim", "size"), "size"), (ONE, "view"), (OTHER, "state")]
    assert find_likely(failing, shows_clone) == {2: 1}
