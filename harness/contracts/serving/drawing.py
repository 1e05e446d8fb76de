"""Draws requests: new prompts, and prompts that share tokens with earlier requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.operation import Fields, Source
from lockstep.harness.contracts.serving.model import ServingModel
from lockstep.reference.serving import Token

NAMES = "abcdefgh"

LENGTHS = (3, 6, 0, 1, 2, 4, 5, 8, 12, 15, 16, 17, 31, 32, 33)
"""Numbers of new tokens: small, and around the sizes of blocks."""

MOST_GENERATED = 256

BLOCKS = (16, 32)
"""Some requests end where a block ends. K and V of their last token are never computed,
so that this block must not be reused."""

RARE = 32
"""One of so many requests fills the context: generating takes most of the time."""

MOST_TRIED = 4
"""The number of drawn asks until the answer of one is defined by the reference."""


def draw_request(source: Source, model: ServingModel, **more: Any) -> Fields:
    """Draws the fields of an operation with a prompt and the fields `more`, or None."""
    free = [name for name in NAMES if name not in model.list_states("queued", "open")]
    if not free:
        return None
    unused = [name for name in free if name not in model.requests]
    name = source.pick(unused[:1] or free)
    fields = complete({"request": name, **draw_prompt(source, model), **more})
    slots = model.config["slots"]
    if slots is not None:
        fields["slot"] = source.pick((None, *range(slots)))
    prompt = model.make_prompt(fields)
    room = MOST_GENERATED
    if model.get_shift(fields) is None:
        room = min(room, model.config["context"] - len(prompt) - 1)
    is_long = source.below(RARE if model.shift is None else 8) == 0
    block = source.pick(BLOCKS)
    fills = block - (len(prompt) + 1) % block  # the ask is a token, too
    fields["count"] = (
        max(1, room) if is_long else source.pick((1, 1, 1, 1, 2, 3, 8, 20, fills))
    )
    for _ in range(MOST_TRIED):
        requested = {**fields, **draw_ask(source, model, prompt)}
        request = model.make_request(requested)
        if not isinstance(request, str):
            return requested if request.generated else None
    return None


def complete(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a request; missing fields get their defaults."""
    none = dict.fromkeys(("of", "head", "back", "about", "at", "slot"))
    numbers = dict.fromkeys(("before", "gap", "new"), 0)
    return {"pieces": [], "count": 1, **none, **numbers, **fields}


def draw_prompt(source: Source, model: ServingModel) -> dict[str, Any]:
    """Draws the tokens of a prompt."""
    known = [name for name, request in model.requests.items() if request.tokens]
    half = model.config["context"] // 2
    new = min(source.pick(LENGTHS), half)
    if model.shift is not None and source.below(2):
        new += half  # the usual ask may then reach the tokens that a full context keeps
    way = source.below(8)
    if not known or way == 0:
        return {"new": new}
    name = source.pick(known[-1:] if source.below(3) == 0 else known)
    length = len(model.requests[name].tokens)
    few, cut = source.pick((1, 2, 4, 8)), source.between(0, length)
    prompt: dict[str, Any] = {"of": name, "pieces": [[0, length]]}
    if way == 1:  # a longer conversation
        return {**prompt, "new": few}
    if way == 2:  # another answer to the same prompt
        return {**prompt, "pieces": [[0, len(model.requests[name].prompt)]]}
    if way == 3:  # a shorter prompt
        return {**prompt, "pieces": [[0, max(1, cut)]]}
    if way == 4:  # a branch
        return {**prompt, "pieces": [[0, cut]], "new": few}
    if way == 5:  # tokens moved to other positions
        return {**prompt, "before": few}
    later = min(length, cut + source.pick((1, 2, 5)))
    if way == 6:  # tokens in the middle removed
        return {**prompt, "pieces": [[0, cut], [later, length]], "new": source.below(2)}
    # tokens in the middle replaced: nearly the same prompt
    return {**prompt, "pieces": [[0, cut], [later, length]], "gap": later - cut}


def draw_ask(
    source: Source, model: ServingModel, prompt: Sequence[Token]
) -> Mapping[str, Any]:
    """Draws the fields of the ask after a prompt; {} for the usual ask."""
    heads = model.probe.heads
    number = source.below(len(heads) + 1)
    if number == len(heads):
        return {}
    head = heads[number]
    if head.finds == "distance":
        last = len(prompt)
        seen = [size for size in (head.window, head.chunk) if size is not None]
        nearby = [
            size + delta for size in seen for delta in (-1, 0) if size + delta <= last
        ]
        backs = [last, *nearby, *nearby, 1, 2, source.between(1, max(1, last))]
        return {"head": number, "back": min(source.pick(backs), model.probe.context - 1)}
    about = source.pick((None, None, *model.requests))
    tokens = prompt if about is None else model.requests[about].tokens
    return {"head": number, "about": about, "at": source.below(max(1, len(tokens)))}
