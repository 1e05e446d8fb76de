"""Defines abstract states. A table lists the states of a contract, with the condition of
each state, and the features that a program needs to reach it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from lockstep.harness.contracts.operation import Cell

Features = Collection[str]
"""The features of a declared kind: its name, its operations, "refuses" and "atomic"
(fields of `Kind`), and features that a contract derives from the configs, such as
"windows"."""


class State(NamedTuple):
    """One abstract state: a situation in which bugs were found.

    Attributes:
        name: the state's name.
        holds: the condition on a situation; None if the model records the state as an
            event.
        needs: the features that a program needs to reach the state, separated by blanks.
    """

    name: str
    holds: Callable[[Any], Any] | None = None
    needs: str = ""


def make_states(names: str, needs: str = "") -> list[State]:
    """Makes states without conditions: the model or the contract determines them."""
    return [State(name, needs=needs) for name in names.split()]


class Unreachable(NamedTuple):
    """A rule that excludes cells that no program can reach.

    Attributes:
        why: the reason.
        states: the states that the rule is about.
        only: the operations that can run in these states; None for all.
        never: the operations that never run in these states.
        needs: the rule applies only with all these features, separated by blanks.
        unless: the rule applies only without these features, separated by blanks.
    """

    why: str
    states: Collection[str]
    only: Collection[str] | None = None
    never: Collection[str] = ()
    needs: str = ""
    unless: str = ""

    def holds(self, cell: Cell) -> bool:
        state, operation = cell
        if state not in self.states:
            return False
        excluded = self.only is not None and operation not in self.only
        return excluded or operation in self.never

    def applies(self, features: Features) -> bool:
        needed, forbidden = self.needs.split(), self.unless.split()
        return all(name in features for name in needed) and not any(
            name in features for name in forbidden
        )


class StateTable:
    """All abstract states of a contract, and the cells that no program can reach."""

    def __init__(self, states: Sequence[State], rules: Sequence[Unreachable]) -> None:
        self.states, self.rules = states, rules
        self.names = [state.name for state in states]
        self.conditions = [(name, holds) for name, holds, _ in states if holds]

    def find(self, situation: Any) -> list[str]:
        """Lists the states whose condition holds in a situation."""
        return [name for name, holds in self.conditions if holds(situation)]

    def list_reachable(self, features: Features) -> list[str]:
        """Lists the states that generation must reach with these features."""
        needs = ((name, needed.split()) for name, _, needed in self.states)
        return [
            name for name, needed in needs if all(need in features for need in needed)
        ]

    def list_rules(self, features: Features) -> list[Unreachable]:
        return [rule for rule in self.rules if rule.applies(features)]


def never(reason: str, states: str, operations: str, **when: str) -> Unreachable:
    """Makes the rule that `operations` never run in `states`."""
    return Unreachable(reason, states.split(), never=operations.split(), **when)


def only(reason: str, states: str, operations: str, **when: str) -> Unreachable:
    """Makes the rule that only `operations` run in `states`."""
    return Unreachable(reason, states.split(), operations.split(), **when)


def list_true(conditions: Mapping[str, Any]) -> list[str]:
    """Lists the names whose conditions hold."""
    return [name for name, holds in conditions.items() if holds]
