"""Parts of answers, and answers of one program in the tags of another.

The same token may have different tags in two programs: if an update with 4 tokens is left
out, tags 4 and 5 become 0 and 1. So the tags of the derived program are replaced by those
of the first one before two answers are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.operation import Answer, Op
from lockstep.harness.execution.compare import COLUMNS, PARTS, ROWS, STATES, STORED, TAGS

DETOUR = "a token of the detour"
"""Stands for a token of the derived program that the first program does not have."""


def pick(answer: Answer, op: Op, rows: Sequence[int], rest: bool = True) -> Answer:
    """The answer to an operation with only some of its rows.

    Args:
        answer: to the operation with all its rows.
        op: that operation.
        rows: the rows to keep, in their order.
        rest: also what the answer says of no single row, such as an offset.
    """
    picked = dict(answer) if rest else {}
    for name in (ROWS, "positions"):
        if name in answer:
            picked[name] = [answer[name][row] for row in rows]
    if STATES in picked:
        owners = list(dict.fromkeys(op["sequences"]))
        wanted = dict.fromkeys(op["sequences"][row] for row in rows)
        picked[STATES] = [answer[STATES][owners.index(owner)] for owner in wanted]
    if PARTS in answer:
        picked[PARTS] = [pick(part, op, rows, rest) for part in answer[PARTS]]
    return picked


def map_answer(answer: Answer, tags: Mapping[int, int]) -> Answer:
    """The same answer with other tags."""
    mapped: Answer = {}
    for name, value in answer.items():
        if name == PARTS:
            mapped[name] = [map_answer(part, tags) for part in value]
        elif name in (ROWS, STATES):
            mapped[name] = [map_tags(row, tags) for row in value]
        elif name in (TAGS, STORED) and isinstance(value, list):
            mapped[name] = map_tags(value, tags)
        elif name != COLUMNS:
            mapped[name] = value
    return mapped


def map_tags(row: Sequence[Any], tags: Mapping[int, int]) -> list[Any]:
    """Replaces the tags in a list of tags or of (position, tag) pairs."""
    return [
        (token[0], tags.get(token[1], DETOUR))
        if isinstance(token, tuple)
        else tags.get(token, DETOUR)
        for token in row
    ]


def restrict(answer: Answer, wanted: Answer) -> Answer:
    """The fields of an answer that another one has, tokens first, and any error."""
    told = sorted(wanted, key=lambda name: name not in (ROWS, TAGS, STATES, PARTS))
    kept = {name: answer[name] for name in told if name in answer}
    if "error" in answer:
        kept["error"] = answer["error"]
    if PARTS in kept and PARTS in wanted:
        pairs = zip(answer[PARTS], wanted[PARTS], strict=False)
        kept[PARTS] = [restrict(part, other) for part, other in pairs]
    return kept


def rename_tokens(tokens: Sequence[Any]) -> list[Any]:
    """The tokens 0 to 9 become 9 to 0."""
    return [9 - t if type(t) is int and 0 <= t <= 9 else t for t in tokens]


def rename_lists(fields: Mapping[str, Any]) -> dict[str, Any]:
    """An operation or an answer, with other tokens wherever it lists tokens."""
    names = ("tokens", "generate", "remaining")
    lists = {name: fields[name] for name in names if type(fields.get(name)) is list}
    return {**fields, **{name: rename_tokens(lists[name]) for name in lists}}
