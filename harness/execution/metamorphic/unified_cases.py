"""Relations of unified caches alone: part, and the cases room, gap, resume and image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from lockstep.harness.contracts.operation import Config
from lockstep.harness.contracts.unified.model import SLIDING, list_part_configs
from lockstep.harness.execution.metamorphic.relations import (
    DETOUR,
    Builder,
    Case,
    Cases,
    Derived,
    Family,
    History,
    Relation,
    Step,
)
from lockstep.harness.execution.metamorphic.unified import (
    PURE,
    UnifiedShadow,
    add_new,
    add_removal,
    get_first_seen,
    list_kinds,
)

MOST = 400
"""Largest number of tokens in a plain program."""


class Part(Relation):
    """A cache in a wrapper gives the same answers as alone, until one of the wrapper's
    caches refuses something. A choice is the number of the cache."""

    name = "part"

    def list_choices(self, history: History) -> Sequence[int]:
        return [*range(len(history.program.config["caches"]))]

    def derive(self, history: History, choice: int) -> Derived | None:
        config = dict(list_part_configs(history.program.config)[choice])
        if config["kind"] != "recurrent":
            config |= {"slots": None, "interval": None, "checkpoints": 1}
        builder = Builder(history, **config)
        for step in history.steps:
            if step.answer.get("error", "usage") != "usage":
                break  # some may have changed before one refused
            if step.op.get("type", choice) != choice:
                continue
            alone = {"type": 0} if "type" in step.op else {}
            other = builder.add({**step.op, **alone}, step.tags)
            if "caches" in step.answer:
                answer = {"caches": [step.answer["caches"][choice]]}
                builder.claim(step, other, answer, lambda answer: {"caches": [answer]})
            elif step.answer.get("result") is not False:
                builder.claim(step, other)
        return builder.build("that cache alone")


def see(config: Config, position: int) -> dict[str, Any]:
    """Returns the answer to a pass with one row that sees all new tokens up to itself."""
    parts = []
    for part in list_part_configs(config):
        first = max(0, get_first_seen(part, position))
        seen = [(at, DETOUR) for at in range(first, position + 1)]
        parts.append({} if part["kind"] == "encoder" else {"visible": [seen]})
    return {"caches": parts} if config["kind"] == "wrapper" else parts[0]


def get_room(config: Config) -> int:
    """Counts the tokens that a cache must take; 0 if it drops some or takes too many."""
    parts = [one for one in list_part_configs(config) if one["kind"] != "encoder"]
    if not parts or not list_kinds(config).isdisjoint(SLIDING):
        return 0
    room = min(part["capacity"] for part in parts) * config["sequences"]
    return room if room <= MOST else 0


def fill_up(builder: Builder, step: Step) -> None:
    """A copy takes no room. A pass beyond the capacity and its padding is refused, and
    must leave nothing: the last token is removed, and a new one in its place must see the
    same. If keys can be turned, a token left after the gap would move up and be seen."""
    config, room = builder.config, get_room(builder.config)
    if not room:
        return
    add_new(builder, 0, range(room - 1))
    if config["sequences"] > 1 and list_kinds(config) <= {*PURE}:
        fork = {"source": 0, "target": 1, "length": room - 1}
        builder.add({"op": "copy_prefix", **fork})
    builder.promise(step, add_new(builder, 0, [room - 1])[-1], {})
    over = add_new(builder, 0, range(room, room + config["cache_padding"]))
    builder.promise(step, over[-1], {"error": "cache-full"})
    if "recurrent" not in list_kinds(config):
        end = room if config["shift"] else None
        builder.promise(step, add_removal(builder, 0, room - 1, end), {})
        go_on(builder, step, room - 1)


def get_memory(config: Config) -> int:
    """Counts the tokens that a window remembers; 0 if, rounded up, that may be the whole
    capacity."""
    memory = int(config["window" if config["kind"] == "swa" else "memory"] or 0)
    return memory if config["window"] and memory < config["capacity"] - 1 else 0


def forget_in_time(builder: Builder, step: Step) -> None:
    """Every sequence continues for longer than the window remembers."""
    count, memory = builder.config["sequences"], get_memory(builder.config)
    length = memory + 3
    if not memory or length * count > MOST:
        return
    for owner in [*range(count), 0]:
        begin = length if owner == 0 and builder.ops else 0
        for other in add_new(builder, owner, range(begin, begin + length)):
            builder.promise(step, other, {})


def close_gap(builder: Builder, step: Step) -> None:
    """One, two or three of six tokens are removed; the next one sees all others."""
    if builder.config["shift"] and builder.config["capacity"] >= 6:
        count = 1 + step.number % 3
        add_new(builder, 0, range(6))
        builder.promise(step, add_removal(builder, 0, 1, 1 + count), {})
        go_on(builder, step, 6 - count)


def go_on(builder: Builder, step: Step, at: int, **more: Any) -> None:
    """Adds one more token to sequence 0, which must see all it should."""
    (other,) = add_new(builder, 0, [at])
    builder.promise(step, other, {**see(builder.config, at), **more})


def resume(builder: Builder, step: Step, at: int, may: bool, **more: Any) -> None:
    """Removes the tokens of sequence 0 from a position on, and continues there.

    Args:
        builder: of the derived program.
        step: of the first program.
        at: the position.
        may: `can_resume` may answer false, which ends the claims; else it must be true.
        more: fields of the answer to the next token.
    """
    asked = builder.add({"op": "can_resume", "sequence": 0, "position": at})
    builder.promise(step, asked, {"result": True}, is_condition=may)
    builder.promise(step, add_removal(builder, 0, at), {})
    go_on(builder, step, at, **more)


def go_back_too_far(builder: Builder, step: Step) -> None:
    """With a window of 2 and a memory of 3, the kept tokens of 0 to 6 begin at 3, so that
    a token at 4 would miss the one at 2. The cache may remember one token more than the
    config says, to have room; so every other program gets one more token."""
    window, memory = builder.config["window"], get_memory(builder.config)
    if memory:
        last = memory + window + 1 + step.number % 2
        add_new(builder, 0, range(last))
        add_new(builder, 0, [last])
        resume(builder, step, 2 * window, may=True)


def go_back_in_window(builder: Builder, step: Step) -> None:
    """A sequence that fits into its window can continue anywhere."""
    if get_memory(builder.config):
        window = builder.config["window"]
        add_new(builder, 0, range(window))
        for at in (window, window // 2):
            resume(builder, step, at, may=False)


def go_back_one(builder: Builder, step: Step) -> None:
    """A checkpoint is kept after the first pass, so after a second one the state can
    continue from there."""
    config = builder.config
    if config["interval"] and (config["interval"] > 1 or config["checkpoints"] > 1):
        add_new(builder, 0, [0])
        add_new(builder, 0, [1])
        resume(builder, step, 1, may=False, states=[[DETOUR, DETOUR]])


def lose_image(builder: Builder, step: Step, begin: int) -> None:
    """If a sequence has images at the positions 3 and 4, the last one counts."""
    if builder.config["batch"] > 1:
        rows = {"positions": [3, 4], "sequences": [0, 0], "multimodal": [0, 1]}
        builder.add({"op": "forward", **rows})
        builder.add({"op": "put"})
        add_removal(builder, 0, begin, begin + 1)
        builder.promise(step, add_new(builder, 0, [5])[-1], {"cached": begin == 3})


FULL: Mapping[str, Case] = {"a cache that is filled up": fill_up}
GAP: Mapping[str, Case] = {"a sequence that closes a gap": close_gap}
LONG: Mapping[str, Case] = {"sequences that only go on": forget_in_time}
WINDOW: Mapping[str, Case] = {
    "a sequence that goes back to where its window was dropped": go_back_too_far,
    "a sequence that goes back within its window": go_back_in_window,
}
STATE: Mapping[str, Case] = {"a state put aside after the first pass": go_back_one}
IMAGE: Mapping[str, Case] = {
    f"a cache that loses the {which} image of two": partial(lose_image, begin=begin)
    for which, begin in (("first", 3), ("last", 4))
}
PURE_CASES = Cases("room", "forward", FULL), Cases("gap", "forward", GAP)
SLIDING_CASES = Cases("room", "forward", LONG), Cases("resume", "forward", WINDOW)
SPECIAL: Mapping[str, Sequence[Relation]] = {
    "causal": PURE_CASES,
    "chunked": PURE_CASES,
    "swa": SLIDING_CASES,
    "swa-memory": SLIDING_CASES,
    "encoder": [Cases("image", "forward", IMAGE)],
    "wrapper": [Part(), Cases("room", "forward", FULL)],
    "recurrent": [Cases("room", "forward", FULL), Cases("resume", "forward", STATE)],
}
FAMILIES = {kind: Family(UnifiedShadow, own) for kind, own in SPECIAL.items()}
