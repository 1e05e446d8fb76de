"""Conditions on an operation that is about to run: the `when` of a ledger's entry, and of
a duty that callers have.

README.md has the vocabulary.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec import Struct, ValidationError, convert

from lockstep.harness.backends.backend import Duty, Kind
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.operation import Config, Op
from lockstep.harness.core.document import Schema, check_field, get_named, show, suggest
from lockstep.harness.core.errors import UsageError

Range = tuple[int | None, int | None]
"""(lowest, highest), both included; None for no bound."""

Numbers = Mapping[str, Any]


class Document(Struct, forbid_unknown_fields=True):
    """The fields of a condition that are not ranges."""

    op: str
    states: list[str] = []
    config: dict[str, Any] = {}


@dataclass(frozen=True)
class Condition:
    """A condition on an operation and the reference before it.

    Attributes:
        rules: the contract.
        op: the name of the operation.
        states: the abstract states that must hold, all of them.
        tests: on numbers of the operation, of the reference and of the config.
        config: tests on fields of the config.
    """

    rules: Contract
    op: str
    states: frozenset[str]
    tests: Sequence[Test]
    config: Sequence[Test]

    def holds(self, op: Op, model: Any) -> bool:
        """Says whether this is such an operation.

        Args:
            op: complete.
            model: the reference before the operation.
        """
        if op["op"] != self.op:
            return False
        if not all(test.holds(model.config) for test in self.config):
            return False
        numbers = {**model.config, **model.get_facts(op), **op}
        return all(test.holds(numbers) for test in self.tests) and self.states <= set(
            self.rules.get_states(op, model)
        )


# --- numbers ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Test:
    """A range for a number: a name, or several joined by +, - and %. False is 0, and true
    is 1."""

    expression: ast.expr
    low: int | None
    high: int | None

    def holds(self, numbers: Numbers) -> bool:
        value = evaluate(self.expression, numbers)
        if value is None:
            return False
        low, high = self.low, self.high
        return (low is None or value >= low) and (high is None or value <= high)


def evaluate(expression: ast.expr, numbers: Numbers) -> int | None:
    """The value of an expression; None if one of its numbers is null, or for % 0."""
    if isinstance(expression, ast.Name):
        value: int | None = numbers[get_name(expression)]
        return value
    assert isinstance(expression, ast.BinOp)
    first = evaluate(expression.left, numbers)
    second = evaluate(expression.right, numbers)
    if first is None or second is None:
        return None
    if isinstance(expression.op, ast.Add):
        return first + second
    if isinstance(expression.op, ast.Sub):
        return first - second
    return first % second if second else None


NAME = re.compile(r"[a-z_]+")
MOST_LETTERS = 200


def parse_expression(text: str, where: str) -> ast.expr:
    """Parses a name, or names joined by +, - and %, with parentheses."""
    try:
        # A field may have the name of a keyword of Python, such as "from".
        named = NAME.sub(lambda name: f"{name[0]}_", text[: MOST_LETTERS + 1])
        expression = ast.parse(named, mode="eval").body
    except (SyntaxError, ValueError):
        expression = None
    if len(text) > MOST_LETTERS or expression is None or not is_sum(expression):
        raise UsageError(
            f"{where}: {show(text)} is no number; write a name, or names joined by +, -"
            " and %, as in offset - count"
        )
    return expression


def is_sum(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mod):
        return is_sum(node.left) and is_sum(node.right)
    return isinstance(node, ast.Name)


def list_names(expression: ast.expr) -> list[str]:
    return [get_name(n) for n in ast.walk(expression) if isinstance(n, ast.Name)]


def get_name(node: ast.Name) -> str:
    return node.id.removesuffix("_")


# --- from a file ------------------------------------------------------------------------


def parse_condition(
    when: Mapping[str, Any], rules: Contract, config: Config, where: str
) -> Condition:
    """Reads a condition.

    Args:
        when: as it stands in a file.
        rules: the contract of the operation.
        config: of a program that meets the condition; its kind is that of the condition.
        where: the place of the condition, for messages.

    Raises:
        UsageError: something in it has no meaning.
    """
    plain = ("op", "states", "config")
    try:
        fields = convert({n: when[n] for n in plain if n in when}, type=Document)
    except ValidationError as error:
        raise UsageError(f"{where}: {error}") from None
    kind = config["kind"]
    names = dict.fromkeys(rules.list_operations(kind), True)
    get_named(names, fields.op, f"{where}: op")
    check_states(fields.states, rules, config, where)
    schemas = {**rules.config, **rules.operations[fields.op].fields}
    numbers = {**schemas, **dict.fromkeys(rules.facts, FACT)}
    ranges = {name: test for name, test in when.items() if name not in plain}
    return Condition(
        rules,
        fields.op,
        frozenset(fields.states),
        [parse_test(name, test, numbers, where) for name, test in ranges.items()],
        [
            parse_test(name, test, rules.config, f"{where}: config")
            for name, test in fields.config.items()
        ],
    )


FACT: Schema = {"type": "integer"}


def check_states(
    states: Sequence[str], rules: Contract, config: Config, where: str
) -> None:
    """Requires that the kind, with every operation, can have each of these states."""
    kind = config["kind"]
    values = {name: (*rules.choices.get(name, ()), config[name]) for name in rules.config}
    declared = Kind(frozenset(rules.list_operations(kind)), values)
    possible = dict.fromkeys(rules.list_states(kind, declared))
    for state in states:
        if state not in possible:
            raise UsageError(
                f"{where}: states: a {kind} cache of this config has no state"
                f" {show(state)}{suggest(state, possible)}"
            )


def parse_test(text: str, test: Any, schemas: Mapping[str, Schema], where: str) -> Test:
    """Reads `text: [low, high]`; `schemas` has all names that there are."""
    expression = parse_expression(text, where)
    for name in list_names(expression):
        get_named(dict.fromkeys(schemas, True), name, where)
        if not is_number(schemas[name]):
            numbers = ", ".join(n for n, schema in schemas.items() if is_number(schema))
            raise UsageError(
                f"{where}: {name} is not one number, so it has no range; numbers are"
                f" {numbers}"
            )
    try:
        low, high = convert(test, type=Range)
    except ValidationError:
        raise UsageError(
            f"{where}: {text} must be [low, high], null for no bound, not {show(test)}"
        ) from None
    if low is not None and high is not None and low > high:
        raise UsageError(f"{where}: {text}: {low} is more than {high}")
    if isinstance(expression, ast.Name) and not is_boolean(schemas[text]):
        for bound in (low, high):
            if bound is not None:
                check_field(bound, schemas[text], f"{where}: {text}")
    return Test(expression, low, high)


def is_number(schema: Schema) -> bool:
    is_integer = "integer" in schema.get("type", ()) and "enum" not in schema
    return is_integer or is_boolean(schema)


def is_boolean(schema: Schema) -> bool:
    return bool(schema.get("type") == "boolean")


# --- the duties of callers --------------------------------------------------------------


class ParsedDuty(NamedTuple):
    """A duty with its condition."""

    condition: Condition
    duty: Duty


def parse_duties(declared: Kind, rules: Contract, kind: str) -> list[ParsedDuty]:
    """Reads the duties of a kind.

    Raises:
        UsageError: a condition has no meaning.
    """
    config = {
        field: declared.config.get(field, (schema.get("default"),))[-1]
        for field, schema in rules.config.items()
    }
    where = f"duties of {kind}: when"
    return [
        ParsedDuty(
            parse_condition(duty.when, rules, {**config, "kind": kind}, where), duty
        )
        for duty in declared.duties
    ]


def find_duty(op: Op, model: Any, duties: Sequence[ParsedDuty]) -> Duty | None:
    """The duty that a call breaks, or None.

    Args:
        op: complete.
        model: the reference before the operation.
        duties: of the kind of the model.
    """
    return next((duty for when, duty in duties if when.holds(op, model)), None)
