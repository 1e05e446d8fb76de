"""Parses and tests conditions on the next operation.

A ledger entry and a `Duty` (a precondition of callers) each have such a condition in the
field `when`. README.md lists the names that a condition may use.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec import Struct, ValidationError, convert

from lockstep.harness.backends.backend import Duty, Kind
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.operation import Cell, Config, Op
from lockstep.harness.core.document import Schema, check_field, get_named, show, suggest
from lockstep.harness.core.errors import Problems, UsageError

Range = tuple[int | None, int | None]
"""(lowest, highest): both bounds are included; a bound of None does not limit."""

Numbers = Mapping[str, Any]


class Document(Struct, forbid_unknown_fields=True):
    """The fields of a condition other than its ranges of numbers."""

    op: str
    states: list[str] = []
    config: dict[str, Any] = {}


@dataclass(frozen=True)
class Condition:
    """A condition on an operation and on the reference before that operation.

    Attributes:
        rules: the contract.
        op: the name of the operation.
        states: the abstract states, all of which must hold.
        tests: ranges for numbers of the operation, the reference and the config.
        config: ranges for fields of the config.
    """

    rules: Contract
    op: str
    states: frozenset[str]
    tests: Sequence[Test]
    config: Sequence[Test]

    def holds(self, op: Op, model: Any) -> bool:
        """Returns whether an operation meets the condition.

        Args:
            op: the operation, with all defaults filled in.
            model: the reference before the operation.
        """
        if op["op"] != self.op:
            return False
        if not all(test.holds(model.config) for test in self.config):
            return False
        numbers = {**model.config, **model.get_facts(op), **op}
        states = self.rules.get_states(op, model) if self.states else ()
        return self.fits(numbers, states)

    def fits(self, numbers: Numbers, states: Collection[str]) -> bool:
        """Returns whether the numbers and the states meet the condition."""
        is_met = all(test.holds(numbers) for test in self.tests)
        return is_met and self.states <= set(states)


def list_schemas(rules: Contract, operation: str) -> dict[str, Schema]:
    """Maps the names that a condition on an operation may use to their schemas."""
    fields = rules.operations[operation].fields
    return {**rules.config, **fields, **dict.fromkeys(rules.facts, FACT)}


def list_numbers(rules: Contract, op: Op, model: Any) -> dict[str, int]:
    """Maps the names of all numbers that are not null to their values; see
    `Condition.holds`."""
    numbers = {**model.config, **model.get_facts(op), **op}
    schemas = list_schemas(rules, op["op"])
    return {
        name: int(numbers[name])
        for name, schema in schemas.items()
        if is_number(schema) and isinstance(numbers[name], int)  # else null, or a list
    }


# --- numbers ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Test:
    """A range for the value of an expression: names joined by +, - and %.

    The value of false is 0, and the value of true is 1.
    """

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
    """Returns the value of an expression: None if a number in it is null, or for % 0."""
    if isinstance(expression, ast.Name):
        value: int | None = numbers.get(get_name(expression))
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
            f"{where}: {show(text)} is not a number; write a name, or names joined"
            " by +, - and %, such as offset - count"
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
    """Parses a condition.

    Args:
        when: the field `when` of the file.
        rules: the contract of the operation.
        config: the config of a program that meets the condition. The condition applies to
            caches of the same kind.
        where: the location of the condition, for messages.

    Raises:
        UsageError: fields of the condition are invalid; the message names them all.
    """
    plain = ("op", "states", "config")
    try:
        fields = convert({n: when[n] for n in plain if n in when}, type=Document)
    except ValidationError as error:
        raise UsageError(f"{where}: {error}") from None
    kind = config["kind"]
    names = dict.fromkeys(rules.list_operations(kind), True)
    get_named(names, fields.op, f"{where}: op")
    numbers = list_schemas(rules, fields.op)
    ranges = {name: test for name, test in when.items() if name not in plain}
    problems, tests, of_config = Problems(), list[Test](), list[Test]()
    with problems.collecting():
        check_states(fields.states, rules, config, where)
    for name, test in ranges.items():
        with problems.collecting():
            tests.append(parse_test(name, test, numbers, where))
    for name, test in fields.config.items():
        with problems.collecting():
            of_config.append(parse_test(name, test, rules.config, f"{where}: config"))
    problems.check()
    return Condition(rules, fields.op, frozenset(fields.states), tests, of_config)


FACT: Schema = {"type": "integer"}


def check_states(
    states: Sequence[str], rules: Contract, config: Config, where: str
) -> None:
    """Raises UsageError if a cache of this kind and config can never have a state.

    The kind is assumed to have every operation.
    """
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
    """Parses `text: [low, high]`; `schemas` has the schema of each allowed name."""
    expression = parse_expression(text, where)
    for name in list_names(expression):
        get_named(dict.fromkeys(schemas, True), name, where)
        if not is_number(schemas[name]):
            numbers = ", ".join(n for n, schema in schemas.items() if is_number(schema))
            raise UsageError(
                f"{where}: {name} is not a number, so it cannot have a range; the"
                f" numbers are {numbers}"
            )
    try:
        low, high = convert(test, type=Range)
    except ValidationError:
        raise UsageError(
            f"{where}: {text} must be [low, high] (null: no bound), not {show(test)}"
        ) from None
    if low is not None and high is not None and low > high:
        raise UsageError(
            f"{where}: {text}: the lower bound, {low}, is greater than the upper bound,"
            f" {high}"
        )
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
    """A duty (a precondition of callers) and its parsed condition.

    Attributes:
        left_out: cell → the number of calls that broke the duty there.
    """

    condition: Condition
    duty: Duty
    left_out: Counter[Cell]


def parse_duties(declared: Kind, rules: Contract, kind: str) -> list[ParsedDuty]:
    """Parses the conditions of all duties of a kind.

    Raises:
        UsageError: a condition is invalid.
    """
    config = {
        field: declared.config.get(field, (schema.get("default"),))[-1]
        for field, schema in rules.config.items()
    }
    where = f"duties of {kind}: when"
    return [
        ParsedDuty(
            parse_condition(duty.when, rules, {**config, "kind": kind}, where),
            duty,
            Counter(),
        )
        for duty in declared.duties
    ]


def find_duty(op: Op, model: Any, duties: Sequence[ParsedDuty]) -> Duty | None:
    """Returns the first duty that a call breaks, or None, and counts the call.

    Args:
        op: the call, with all defaults filled in.
        model: the reference before the operation.
        duties: the duties of the model's kind.
    """
    for condition, duty, left_out in duties:
        if condition.holds(op, model):
            states = condition.rules.get_states(op, model)
            left_out.update((state, condition.op) for state in states)
            return duty
    return None
