"""Which failures are said to be likely one bug."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from lockstep.harness.execution.cluster import find_likely, is_likely_one
from lockstep.harness.programs.program import Program
from tests.harness.building import make as make_program
from tests.harness.building import trim, update

Shows = Callable[[Program], str | None]
KNOWN = {"update": update(1), "clone": {"op": "clone", "into": "b"}, "trim": trim(1)}


def make(names: str) -> Program:
    return make_program(*(KNOWN.get(name, {"op": name}) for name in names.split()))


def show(bugs: Mapping[str, str]) -> Shows:
    """steps → the operation that is wrong where a program has them, in this order."""

    def shows(program: Program) -> str | None:
        for steps, last in bugs.items():
            rest = iter([op["op"] for op in program.ops])
            if all(name in rest for name in steps.split()):
                return last
        return None

    return shows


ONE, OTHER = "update clone view", "update clone state"
DIFFERENT = "trim size state"
SHOWS_CLONE = show({ONE: "view", OTHER: "state"})
SHOWS_TWO = show({ONE: "view", DIFFERENT: "state"})
SHOWS_STATE = show({ONE: "view", "update state": "state"})
SHOWS_ALL = show({"update view": "view", "update state": "state"})


@pytest.mark.parametrize(
    ("left", "right", "last", "shows", "is_one"),
    [
        (ONE, OTHER, "state", SHOWS_CLONE, True),  # seen by two operations
        (ONE, DIFFERENT, "state", SHOWS_TWO, False),
        (DIFFERENT, ONE, "view", SHOWS_TWO, False),
        (ONE, "update size state", "state", SHOWS_STATE, False),  # not all are needed
        ("update view", "update state", "state", SHOWS_ALL, False),  # leads anywhere
    ],
)
def test_the_same_steps_are_likely_one_bug(
    left: str, right: str, last: str, shows: Shows, is_one: bool
) -> None:
    assert shows(make(right)) == last
    assert is_likely_one(make(left), make(right), last, shows) == is_one


def test_failures_are_clustered() -> None:
    one, other, different = (make(ONE), "view"), (make(OTHER), "state"), make(DIFFERENT)
    assert find_likely([one, other], SHOWS_CLONE) == {1: 0}
    assert find_likely([one, (different, "state")], SHOWS_TWO) == {}
    assert find_likely([(make("trim size"), "size"), one, other], SHOWS_CLONE) == {2: 1}
