"""Draws requests and invalid calls.

Requests have few distinct tokens, so that conversations collide. Requests are made from
earlier requests, so that conversations repeat, grow, are cut and branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.operation import Op, Source
from lockstep.harness.contracts.prefix.model import Path, PrefixModel

ALPHABETS = ((1, 2), (1, 2, 3), (1, 65_537), (1, 2, 3, 0))
"""Sets of few tokens. 1 and 65,537 are equal in 16 bits; 0 can be mistaken for
padding."""

LONG, LONG_REACH = 32, 72
"""With probability 1/LONG, a program has conversations of up to LONG_REACH tokens."""


def draw_reach(source: Source, model: PrefixModel) -> None:
    """Draws the alphabet of a program and the maximum length of its conversations."""
    model.alphabet = source.pick(ALPHABETS)
    if source.below(LONG) == LONG - 1:
        model.reach = LONG_REACH


def draw_tokens(source: Source, model: PrefixModel, most: int) -> list[int]:
    """Draws from one to `most` tokens."""
    return [source.pick(model.alphabet) for _ in range(source.between(1, most))]


def draw_request(source: Source, model: PrefixModel) -> list[int]:
    """Draws the tokens of a request: new tokens, or tokens of an earlier conversation."""
    if source.below(3) == 2 and (partings := model.list_partings()):
        return draw_past_parting(source, model, partings)[: model.reach]
    longer = 4 if model.reach < LONG_REACH else 40
    stored = model.list_stored()
    paths_known = [*stored, *model.told]
    if source.below(2):
        paths_known = stored[-1:] or paths_known
    way = source.below(10)
    if not paths_known or way == 8 or (way == 7 and len(stored) > 1):
        return draw_tokens(source, model, 2 * longer)
    tokens = list(source.pick(paths_known) if way < 9 else model.get_oldest())
    if way in (0, 1, 9):  # extends a known path
        tokens = [*tokens, *draw_tokens(source, model, longer)]
    elif way == 3:  # is a prefix of a known path
        tokens = tokens[: source.between(1, len(tokens))]
    elif way in (4, 5, 6):  # branches off a known path
        cut = source.below(len(tokens))
        tokens = [*tokens[:cut], *draw_tokens(source, model, longer)]
    return tokens[: model.reach]


def draw_past_parting(
    source: Source, model: PrefixModel, partings: Mapping[Path, Sequence[Path]]
) -> list[int]:
    """Draws a request that helps to evict the capture at a branch of conversations.

    A trie evicts this capture if all longer paths were used more recently, and if the
    layers hold another path.

    Args:
        source: the source of choices.
        model: the reference.
        partings: the result of `list_partings`.
    """
    path = source.pick(list(partings))
    if partings[path]:
        return [*source.pick(partings[path]), *draw_tokens(source, model, 2)]
    return [source.pick([token for token in model.alphabet if token != path[0]])]


def draw_generated(source: Source, model: PrefixModel, request: Path) -> list[int]:
    """Draws the tokens that are generated after the request.

    Half of the draws have no tokens. A quarter of the draws repeat the tokens that
    followed the same request earlier, if there are any.
    """
    most = model.reach - len(request)
    if most < 1 or source.below(2):
        return []
    length = min(most, source.pick((1, 1, 2, 3)))
    continuations = [
        path[len(request) :]
        for path in (*model.list_stored(), *model.told)
        if len(path) > len(request) and list(path[: len(request)]) == list(request)
    ]
    if continuations and source.below(2):
        return list(source.pick(continuations)[:length])
    return draw_tokens(source, model, length)


def draw_count(source: Source, remaining: int) -> int:
    """Draws the number of tokens that a pass computes; mostly all remaining tokens."""
    if not remaining or source.below(3):
        return remaining
    return source.between(1, remaining)


# --- mistakes of usage ------------------------------------------------------------------


def draw_misuse(
    source: Source, model: PrefixModel, operations: Sequence[str]
) -> Op | None:
    """Draws a call of one of `operations` that the backend must refuse now, or None.
    Draws all candidate calls before it chooses one, so that equal random choices lead to
    equal programs.
    """
    wrong: list[Op] = [
        {"op": "begin", "tokens": []},
        {"op": "begin", "tokens": [*draw_request(source, model), "0"]},
        {"op": "begin", "tokens": [1.5]},
        {"op": "begin", "tokens": [None, 1]},
        {"op": "begin", "tokens": [True]},
        {"op": "limit", "bytes": -1},
    ]
    if model.has_users:
        wrong += draw_for_slots(source, model)
    else:
        wrong += draw_for_conversations(source, model)
    paths_known = sorted({op["op"] for op in wrong} & set(operations))
    if not paths_known:
        return None
    name = source.pick(paths_known)
    return source.pick([op for op in wrong if op["op"] == name])


def draw_feed(source: Source, user: Mapping[str, Any]) -> Op:
    tokens = source.pick(([1, None], ["a"], [2, 3, 1.5]))
    return {"op": "feed", "count": 0, "generate": tokens, **user}


def draw_for_conversations(source: Source, model: PrefixModel) -> list[Op]:
    """Lists invalid calls: operations that need an open request if none is open, and
    operations that need no open request if one is open."""
    if model.is_open("a"):
        wrong = [] if model.is_broken("a") else [draw_feed(source, {})]
        wrong += [{"op": "begin", "tokens": draw_request(source, model)}, {"op": "free"}]
    else:
        wrong = [{"op": "close"}, {"op": "cancel"}]
        wrong += [{"op": "checkpoint", "offsets": [source.pick((0, -1))]}]
        if model.config["kind"] == "session":
            tokens = draw_request(source, model)
            wrong += [{"op": "begin", "tokens": tokens, "checkpoints": [1]}]
    return [*wrong, {"op": "open", "interval": -source.below(3)}]


def draw_for_slots(source: Source, model: PrefixModel) -> list[Op]:
    """Lists invalid calls of slots: invalid sizes, and calls of a pass at a
    wrong time."""
    users = sorted(set(model.users) - model.broken)
    wrong = [draw_feed(source, {"user": source.pick(users)})] if users else []
    count, used, fed = len(model.slots.slots), [*model.users.values()], len(model.fed)
    number = source.pick((*range(-1, count + 1), *used, *used))
    most = 1 + (model.count_next(number) if number in range(count) else 0)
    counts = (most, 0, -1, 1, most + 1, fed, fed)
    call = {"slot": number, "count": source.pick(counts)}
    context = source.below(4)
    keep = source.pick((context, context + 1, -1))
    return [
        *wrong,
        {"op": "open", "context": context, "keep": keep},
        {"op": "reserve", **call},
        {"op": "commit", **call},
    ]
