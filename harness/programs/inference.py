"""Infers a condition (`when` of a ledger entry or of a duty) from examples.

An example is an operation with its result: it diverges or it agrees. The inferred
condition holds for all examples that diverge, and for as few others as possible. It is as
narrow as these examples: a bound is the lowest or highest number that was seen to
diverge, because a condition that is too wide would hide other failures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.operation import Op
from lockstep.harness.programs.condition import list_numbers

Column = np.ndarray[Any, Any]


class Example(NamedTuple):
    """An operation of a program.

    Attributes:
        numbers: the numbers that a condition may test; null numbers are missing.
        states: the abstract states before the operation.
        diverges: whether the operation leads to the divergence.
    """

    numbers: Mapping[str, int]
    states: frozenset[str]
    diverges: bool = False


def observe(rules: Contract, op: Op, model: Any) -> Example:
    """Returns an example that agrees. model: the reference before the operation."""
    numbers = list_numbers(rules, op, model)
    return Example(numbers, frozenset(rules.get_states(op, model)))


class Test(NamedTuple):
    """A part of a condition: a state, or one bound of a number.

    Attributes:
        key: "states", or the number.
        value: the state, or the range with one bound.
        holds: for each example that agrees, whether the test holds.
    """

    key: str
    value: Any
    holds: Column


def infer(operation: str, examples: Sequence[Example]) -> dict[str, Any]:
    """Infers a condition from the numbers and states of examples; if these do not exclude
    all agreeing examples, also from differences, sums and remainders of the numbers.

    Args:
        operation: the name of the operation.
        examples: at least one of them diverges.
    """
    diverging = [example for example in examples if example.diverges]
    agreeing = [example for example in examples if not example.diverges]
    names = sorted(set.intersection(*(set(e.numbers) for e in diverging)))
    columns = {
        name: np.array([e.numbers.get(name, np.nan) for e in diverging + agreeing])
        for name in names
    }
    tests = list_bounds(columns, len(diverging))
    for state in sorted(frozenset.intersection(*(e.states for e in diverging))):
        holds = np.array([state in example.states for example in agreeing], bool)
        tests.append(Test("states", state, holds))
    chosen, included = choose(tests, len(agreeing))
    if included.any():
        tests += list_bounds(derive(columns), len(diverging))
        chosen, _ = choose(tests, len(agreeing))
    return combine(operation, chosen)


def derive(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Returns the differences, sums and remainders of all pairs of columns."""
    pairs = [(a, b, columns[a], columns[b]) for a, b in permutations(columns, 2)]
    derived = {f"{a} - {b}": first - second for a, b, first, second in pairs if a < b}
    derived |= {f"{a} + {b}": first + second for a, b, first, second in pairs if a < b}
    with np.errstate(all="ignore"):  # a remainder of 0 is nan
        derived |= {f"{a} % {b}": np.mod(first, second) for a, b, first, second in pairs}
    return derived


def choose(tests: Sequence[Test], count: int) -> tuple[list[Test], Column]:
    """Repeatedly chooses the test that excludes most of the remaining agreeing examples.
    Finally, replaces each test by a simpler test that excludes the same examples.

    Args:
        tests: the simplest first.
        count: the number of agreeing examples.

    Returns:
        The chosen tests, and for each agreeing example whether they all hold.
    """
    chosen: list[Test] = []
    included = np.ones(count, bool)
    while included.any():
        best = min(tests, key=lambda test: np.count_nonzero(included & test.holds))
        if (included & best.holds).sum() == included.sum():
            break
        included &= best.holds
        chosen.append(best)
    for test in list(chosen):
        others = [other for other in chosen if other is not test]
        left = np.all([np.ones_like(included), *(o.holds for o in others)], axis=0)
        if (left == included).all():  # the others exclude what it excludes
            chosen = others
        else:
            equal = (t for t in tests if ((left & t.holds) == included).all())
            chosen = [*others, next(equal)]
    return chosen, included


def list_bounds(columns: Mapping[str, Column], diverging: int) -> list[Test]:
    """Returns the two bounds of each column. diverging: the number of diverging examples,
    which come first."""
    tests = []
    for name, column in columns.items():
        seen, others = column[:diverging], column[diverging:]
        if not np.isnan(seen).any():  # a comparison with nan is False, as with null
            low, high = int(seen.min()), int(seen.max())
            tests.append(Test(name, [low, None], others >= low))
            tests.append(Test(name, [None, high], others <= high))
    return tests


def combine(operation: str, tests: Sequence[Test]) -> dict[str, Any]:
    """Returns the condition that holds if all tests hold."""
    when: dict[str, Any] = {"op": operation}
    for key, value, _ in sorted(tests, key=lambda test: (test.key != "states", test.key)):
        if key == "states":
            when.setdefault(key, []).append(value)
        else:
            ranges = zip(when.get(key, [None, None]), value, strict=True)
            when[key] = [new if new is not None else old for old, new in ranges]
    return when
