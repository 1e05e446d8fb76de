"""How requests are drawn: from few tokens, so that conversations collide, and from what
was there before, so that they repeat, grow, are cut and part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.types import Source

MOST_TOLD = 24
"""Conversations that are kept to draw others from."""

ALPHABETS = ((1, 2), (1, 2, 3), (1, 65_537), (1, 2, 3, 0))
"""Few different tokens; two that are the same in 16 bits, and one that might be taken for
padding."""

LONG, LONG_REACH = 32, 72
"""One program in so many has long conversations."""


def draw_reach(source: Source, model: Any) -> None:
    """Which tokens there are, and how long conversations get."""
    model.alphabet = source.pick(ALPHABETS)
    if source.below(LONG) == LONG - 1:
        model.reach = LONG_REACH


def draw_tokens(source: Source, model: Any, most: int) -> list[int]:
    """`most` tokens at most, at least one."""
    return [source.pick(model.alphabet) for _ in range(source.between(1, most))]


def draw_request(source: Source, model: Any) -> list[int]:
    """The tokens of a request: new, or made of an earlier conversation."""
    if source.below(3) == 2 and (partings := model.list_partings()):
        return draw_past_parting(source, model, partings)[: model.reach]
    longer = 4 if model.reach < LONG_REACH else 40
    stored = model.list_stored()
    known = [*stored, *model.told]
    if source.below(2):
        known = stored[-1:] or known
    way = source.below(10)
    if not known or way == 8 or (way == 7 and len(stored) > 1):
        return draw_tokens(source, model, 2 * longer)
    tokens = list(source.pick(known) if way < 9 else model.get_oldest())
    if way in (0, 1, 9):  # goes on
        tokens = [*tokens, *draw_tokens(source, model, longer)]
    elif way == 3:  # stops short
        tokens = tokens[: source.between(1, len(tokens))]
    elif way in (4, 5, 6):  # leaves it somewhere
        cut = source.below(len(tokens))
        tokens = [*tokens[:cut], *draw_tokens(source, model, longer)]
    return tokens[: model.reach]


def draw_past_parting(
    source: Source, model: Any, partings: Mapping[Sequence[int], Sequence[Sequence[int]]]
) -> list[int]:
    """A step towards letting go of what was captured where conversations part: all that
    lies behind it must have been used later, and the layers must stand elsewhere."""
    path = source.pick(list(partings))
    if partings[path]:
        return [*source.pick(partings[path]), *draw_tokens(source, model, 2)]
    return [source.pick([token for token in model.alphabet if token != path[0]])]


def draw_generated(source: Source, model: Any, request: Sequence[int]) -> list[int]:
    """One token or a few that come after the request; half of the time those that came
    after it before."""
    most = model.reach - len(request)
    if most < 1 or source.below(2):
        return []
    length = min(most, source.pick((1, 1, 2, 3)))
    before = [
        path[len(request) :]
        for path in (*model.list_stored(), *model.told)
        if len(path) > len(request) and list(path[: len(request)]) == list(request)
    ]
    if before and source.below(2):
        return list(source.pick(before)[:length])
    return draw_tokens(source, model, length)


def draw_count(source: Source, remaining: int) -> int:
    """How many tokens a pass computes: mostly all."""
    if not remaining or source.below(3):
        return remaining
    return source.between(1, remaining)
