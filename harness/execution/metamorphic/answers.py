"""Answers of one program in the tags of another.

The same token may have other tags in two programs. If an update with 4 tokens comes first
and is left out, what had the tags 4 and 5 has 0 and 1. Before two answers are compared,
the tags of the derived program are replaced by those of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.types import Answer
from lockstep.harness.execution.compare import COLUMNS, PARTS, ROWS, STATES, STORED, TAGS

DETOUR = "a token of the detour"
"""Stands where the derived program answers a token that the first one does not have."""

View = Callable[[Answer], Answer]
"""Which part of an answer of the derived program is compared. It is given that answer in
the tags of the first program."""


def see_all(answer: Answer) -> Answer:
    return answer


def see_rows(first: int, count: int) -> View:
    """Of what is visible only so many rows, from one on."""

    def view(answer: Answer) -> Answer:
        return {**answer, ROWS: answer[ROWS][first : first + count]}

    return view


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
    """Tags, or (position, tag) pairs."""
    return [
        (token[0], tags.get(token[1], DETOUR))
        if isinstance(token, tuple)
        else tags.get(token, DETOUR)
        for token in row
    ]


def restrict(answer: Answer, wanted: Answer) -> Answer:
    """Those fields of an answer that stand in another one, tokens first; an error stays
    in any case."""
    told = sorted(wanted, key=lambda name: name not in (ROWS, TAGS, STATES, PARTS))
    kept = {name: answer[name] for name in told if name in answer}
    if "error" in answer:
        kept["error"] = answer["error"]
    if PARTS in kept and PARTS in wanted:
        pairs = zip(answer[PARTS], wanted[PARTS], strict=False)
        kept[PARTS] = [restrict(part, other) for part, other in pairs]
    return kept
