"""The abstract states of a unified cache: where bugs were, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any

from harness.backend import Kind
from harness.contracts.base import Op
from harness.contracts.unified.model import UnifiedModel
from reference.causal import CausalCache
from reference.encoder import EncoderCache
from reference.recurrent import RecurrentCache

HELD = (
    "empty",
    "idle",
    "shared",
    "shared-in-part",
    "fragmented",
    "wrapped",
    "full",
    "one-free",
    "less-than-a-batch-free",
    "gap",
    "same-position-twice",
)
HAPPENED = (
    "forward-failed",
    "remove-failed",
    "after-exception",
    "after-reserve",
    "loaded",
    "shifted",
    "shifted-twice",
)
PASS = (
    "exception",
    "reserve",
    "several-sequences",
    "interleaved",
    "one-row",
    "whole-batch",
    "step-back",
    "too-many-rows",
)
SLIDING = ("evicted", "idle-evicts", "at-window", "past-window", "before-memory")
CHUNKED = ("chunk-boundary", "inside-chunk", "past-chunk")
ENCODER = ("image-cached", "image-not-cached", "image-in-batch", "several-images")
RECURRENT = ("state-shared", "checkpointed", "slots-full", "uneven-batch")

STATES = (
    *HELD,
    *HAPPENED,
    *PASS,
    *SLIDING,
    *CHUNKED,
    *ENCODER,
    *RECURRENT,
)


def get_unified_states(op: Op, model: UnifiedModel) -> list[str]:
    """The states that `op` is about to run in."""
    found = {*model.past, *model.ever}
    owners = set(op["sequences"]) if op["op"] == "forward" else {get_owner(op)}
    for part in model.parts:
        if isinstance(part, EncoderCache):
            found.add("image-cached" if part.cached else "image-not-cached")
            continue
        found |= get_held_states(part, owners, model)
        found |= get_size_states(part, owners)
        if isinstance(part, RecurrentCache):
            found |= get_slot_states(part)
    if op["op"] == "forward":
        found |= get_pass_states(op, model)
    return sorted(found & set(STATES))


def get_owner(op: Op) -> int | None:
    """The sequence that an operation between passes is about."""
    owner: int | None = op.get("sequence", op.get("source"))
    return owner


def get_held_states(
    part: CausalCache, owners: set[int | None], model: UnifiedModel
) -> set[str]:
    """What the tokens that are held look like."""
    found = set()
    tokens = part.tokens
    free = part.room - len(tokens)
    tags = [token.tag for token in tokens]
    if not tokens:
        found.add("empty")
    if any(not token.sequences & owners for token in tokens):
        found.add("idle")
    shared = [token for token in tokens if len(token.sequences) > 1]
    if shared:
        found.add("shared")
        if any(
            not token.sequences >= other.sequences
            for other in shared
            for token in tokens
            if token.sequences & other.sequences
        ):
            found.add("shared-in-part")
    if tags and any(later - tag > 1 for tag, later in pairwise(tags)):
        found.add("fragmented")
    if model.written > part.room:
        found.add("wrapped")
    if free == 0:
        found.add("full")
    if free == 1:
        found.add("one-free")
    if free < part.batch:
        found.add("less-than-a-batch-free")
    for owner in owners - {None}:
        at = [token.position for token in tokens if owner in token.sequences]
        if len(set(at)) < len(at):
            found.add("same-position-twice")
        if at and max(at) - min(at) >= len(set(at)):
            found.add("gap")
    return found


def get_size_states(part: CausalCache, owners: set[int | None]) -> set[str]:
    """Where the sequences stand between the boundaries of window, memory and chunk."""
    found = set()
    for owner in range(part.sequences):
        end = part.get_end(owner)
        if part.memory != inf and end:
            low = min(token.position for token in part.get_tokens(owner))
            if low < end - part.memory and owner not in owners:
                found.add("idle-evicts")
            if end - low > part.window:
                found.add("before-memory")
            if low > 0:
                found.add("evicted")
        if owner not in owners:
            continue
        if part.window != inf and end:
            if end == part.window + 1:
                found.add("at-window")
            if end > part.window + 1:
                found.add("past-window")
        if part.chunk != inf and end:
            found.add("inside-chunk" if end % part.chunk else "chunk-boundary")
            if end > part.chunk:
                found.add("past-chunk")
    return found


def get_slot_states(part: RecurrentCache) -> set[str]:
    found = set()
    if any(part.is_shared(sequence) for sequence in part.slots):
        found.add("state-shared")
    if any(slot.checkpoints for slot in part.slots.values()):
        found.add("checkpointed")
    if len(set(part.slots.values())) == part.slot_count:
        found.add("slots-full")
    return found


def get_pass_states(op: Op, model: UnifiedModel) -> set[str]:
    """What a pass brings."""
    found = set()
    sequences = op["sequences"]
    rows = list(zip(op["positions"], sequences, strict=False))
    if op["except"]:
        found.add("exception")
    if op["reserve"]:
        found.add("reserve")
    if len(set(sequences)) > 1:
        found.add("several-sequences")
        changes = sum(a != b for a, b in pairwise(sequences))
        if changes >= len(set(sequences)):
            found.add("interleaved")
    if len(rows) == 1:
        found.add("one-row")
    if len(rows) == model.config["batch"]:
        found.add("whole-batch")
    if len(rows) > model.get_room():
        found.add("too-many-rows")
    if any(position < model.get_end(owner) for position, owner in rows):
        found.add("step-back")
    if op["multimodal"]:
        found.add("image-in-batch")
        if len(op["multimodal"]) > 1:
            found.add("several-images")
    lengths = {sequences.count(owner) for owner in set(sequences)}
    if len(lengths) > 1:
        found.add("uneven-batch")
    return found


def list_unified_states(kind: str, declared: Kind) -> Sequence[str]:
    """The states that generation must reach for a kind as it is declared."""
    states = [*PASS]
    has = declared.operations
    if kind == "encoder":
        return ["exception", "reserve", "one-row", "whole-batch", "interleaved", *ENCODER]
    states += HELD
    states += ["forward-failed", "after-exception", "after-reserve"]
    if "remove" in has:
        states.append("remove-failed")
        if can_shift(declared.config) and kind != "recurrent":
            states += ["shifted", "shifted-twice"]
    if "load" in has:
        states.append("loaded")
    if kind in ("swa", "swa-memory"):
        states += [name for name in SLIDING if name != "before-memory" or kind != "swa"]
    if kind == "chunked":
        states += CHUNKED
    if kind == "recurrent":
        states += RECURRENT
    return states


def can_shift(config: Mapping[str, Any]) -> bool:
    return True in config.get("shift", (True,))
