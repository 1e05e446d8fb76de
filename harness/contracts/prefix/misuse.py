"""Operations that break a rule of usage: each must be refused, and change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.harness.contracts.prefix.drawing import draw_request
from lockstep.harness.contracts.prefix.slots import SlotsModel
from lockstep.harness.contracts.types import Op, Source


def draw_misuse(source: Source, model: Any, names: Sequence[str]) -> Op | None:
    """One of the operations `names` that must be refused now."""
    is_open = not isinstance(model, SlotsModel) and model.cache.request is not None
    wrong: list[Op] = [
        {"op": "begin", "tokens": []},
        {"op": "begin", "tokens": [*draw_request(source, model), "0"]},
        {"op": "begin", "tokens": [1.5]},
        {"op": "begin", "tokens": [None, 1]},
        {"op": "begin", "tokens": [True]},
    ]
    if isinstance(model, SlotsModel):
        users = sorted(set(model.users) - model.broken)
        user = {"user": source.pick(users)} if users else {}
    else:
        users, user = [""] if is_open and not model.broken else [], {}
    if users:
        tokens = source.pick(([1, None], ["a"], [2, 3, 1.5]))
        wrong += [{"op": "feed", "count": 0, "generate": tokens, **user}]
    if is_open:
        wrong += [{"op": "begin", "tokens": draw_request(source, model)}]
        wrong += [{"op": "free"}]
    elif not isinstance(model, SlotsModel):
        wrong += [{"op": "close"}, {"op": "cancel"}]
        wrong += [{"op": "checkpoint", "offsets": [source.pick((0, -1))]}]
    wrong += [{"op": "limit", "bytes": -1}]
    if isinstance(model, SlotsModel):
        wrong += draw_wrong_slots(source, model)
    else:
        wrong += [{"op": "open", "interval": -source.below(3)}]
    known = sorted({op["op"] for op in wrong} & set(names))
    if not known:
        return None
    name = source.pick(known)
    return source.pick([op for op in wrong if op["op"] == name])


def draw_wrong_slots(source: Source, model: SlotsModel) -> list[Op]:
    """Sizes that no slots have, and what is asked of a slot at the wrong time."""
    slots = model.slots
    used = list(model.users.values())
    number = source.pick((*range(-1, len(slots.slots) + 1), *used, *used))
    most = 1
    if number in range(len(slots.slots)):
        most += min(len(slots.slots[number].remaining), slots.context - slots.keep)
    counts = (most, 0, -1, 1, most + 1, model.fed, model.fed)
    place = {"slot": number, "count": source.pick(counts)}
    context = source.below(4)
    keep = source.pick((context, context + 1, -1))
    return [
        {"op": "open", "context": context, "keep": keep},
        {"op": "reserve", **place},
        {"op": "commit", **place},
    ]
