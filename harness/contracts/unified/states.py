"""Defines the abstract states of a unified cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.operation import Config, Op
from lockstep.harness.contracts.states import (
    State,
    StateTable,
    list_true,
    make_states,
    never,
    only,
)
from lockstep.harness.contracts.unified.model import UnifiedModel
from lockstep.reference.causal import CausalCache
from lockstep.reference.encoder import EncoderCache
from lockstep.reference.recurrent import RecurrentCache

STATES = (
    State("empty", needs="holds"),
    State("idle", needs="holds several"),
    *make_states("shared shared-in-part", "holds several copy_prefix"),
    *make_states("fragmented wrapped full one-free less-than-a-batch-free gap", "holds"),
    *make_states("same-position-twice forward-failed", "holds"),
    State("remove-failed", needs="holds remove"),
    *make_states("after-exception after-reserve"),
    State("loaded", needs="holds load"),
    *make_states("shifted shifted-twice", "shifts"),
    *make_states("image-rows image-tokens", "axes"),
    *make_states("exception reserve"),
    *make_states("several-sequences interleaved", "several"),
    *make_states("one-row whole-batch"),
    *make_states("step-back too-many-rows", "holds"),
    State("uneven-batch", needs="several"),
    State("evicted", needs="slides"),
    State("idle-evicts", needs="slides several"),
    *make_states("at-window past-window before-memory", "slides"),
    *make_states("chunk-boundary inside-chunk past-chunk", "chunks"),
    *make_states("image-cached image-not-cached image-in-batch several-images", "images"),
    State("state-shared", needs="states several copy_prefix"),
    State("checkpointed", needs="states interval"),
    State("slots-full", needs="states"),
    State("states-separate", needs="states several copy_prefix many"),
)
"""All states. `get_states` evaluates the conditions, separately for each part."""

RULES = (
    only(
        "tells of the rows that a pass brings",
        "exception reserve image-rows several-sequences interleaved one-row whole-batch"
        " step-back"
        " too-many-rows uneven-batch image-in-batch several-images states-separate",
        "forward",
    ),
    only(
        "tells of a sequence that the operation names, and the others name none",
        "gap same-position-twice image-tokens at-window past-window chunk-boundary"
        " inside-chunk past-chunk",
        "forward copy_prefix remove can_resume",
    ),
    never(
        "has ended the pass, and there is nothing to get or put outside of one",
        *("forward-failed loaded", "get put"),
        unless="refuses",
    ),
    never(
        "ends the pass of a wrapper, some of whose caches may have changed",
        *("remove-failed", "get put"),
        needs="wrapper",
        unless="refuses",
    ),
    never(
        "is cleared by the next operation, which ends the pass",
        *("remove-failed", "get put"),
        unless="refuses atomic",
    ),
)
TABLE = StateTable(STATES, RULES)


def get_states(op: Op, model: UnifiedModel) -> list[str]:
    """Returns the names of the abstract states that the cache has before `op` runs."""
    states = model.past | model.ever
    is_pass = op["op"] == "forward"
    owners: set[int | None] = {op.get("sequence", op.get("source"))}
    if is_pass:
        owners = set(op["sequences"])
        states.update(list_pass_states(op, owners, model))
    for cache in model.parts:
        if isinstance(cache, EncoderCache):
            states.add("image-cached" if cache.cached else "image-not-cached")
            continue
        positions = group_positions(cache)
        states.update(list_held_states(cache, owners, positions, model))
        if not cache.memory == cache.window == cache.chunk == inf:
            for owner, stored in positions.items():
                states.update(list_size_states(cache, owner in owners, stored))
        if isinstance(cache, RecurrentCache):
            slots = cache.slots.values()
            conditions = {
                "state-shared": any(map(cache.is_shared, cache.slots)),
                "checkpointed": any(slot.checkpoints for slot in slots),
                "slots-full": len(set(slots)) == cache.slot_count,
            }
            states.update(list_true(conditions))
    return list(states)


Positions = Mapping[int, Sequence[int]]
"""Sequence with tokens → their positions."""


def group_positions(cache: CausalCache) -> Positions:
    positions: dict[int, list[int]] = defaultdict(list)
    for _, position, owners, _ in cache.tokens:
        for owner in owners:
            positions[owner].append(position)
    return positions


def list_held_states(
    cache: CausalCache, owners: set[int | None], positions: Positions, model: UnifiedModel
) -> list[str]:
    """Lists the states that depend on the stored tokens."""
    tokens, count = cache.tokens, len(cache.tokens)
    free, stored = cache.room - count, positions.keys()
    named = [at for owner, at in positions.items() if owner in owners]
    is_idle, together = not stored <= owners, {token.sequences for token in tokens}
    shared = [sequences for sequences in together if len(sequences) > 1]
    if shared:
        is_idle = any(owners.isdisjoint(sequences) for sequences in together)
    conditions = {
        "empty": not tokens,
        "idle": is_idle,
        "shared": shared,
        "shared-in-part": any(
            first & second and not first >= second
            for second in shared
            for first in together
        ),
        # Tags ascend in the order of writing.
        "fragmented": tokens and tokens[-1].tag - tokens[0].tag >= count,
        "wrapped": model.written > cache.room,
        "less-than-a-batch-free": free < cache.batch,
        "full": free == 0,
        "one-free": free == 1,
        "same-position-twice": any(len({*at}) < len(at) for at in named),
        "image-tokens": any(
            any(token.offset) and not owners.isdisjoint(token.sequences)
            for token in tokens
        ),
        "gap": any(max(at) - min(at) >= len({*at}) for at in named),
    }
    return list_true(conditions)


def list_size_states(
    cache: CausalCache, is_named: bool, positions: Sequence[int]
) -> list[str]:
    """Lists the states of a sequence at the boundaries of window, memory and chunk.

    Args:
        cache: the cache.
        is_named: whether the operation uses the sequence.
        positions: the stored positions of the sequence.
    """
    window, memory, chunk = cache.window, cache.memory, cache.chunk
    low, end = min(positions), max(positions) + 1
    conditions = {
        "idle-evicts": not is_named and low < end - memory,
        "before-memory": memory != inf and end - low > window,
        "evicted": memory != inf and low > 0,
        "at-window": is_named and end == window + 1,
        "past-window": is_named and end > window + 1,
        "chunk-boundary": is_named and chunk != inf and end % chunk == 0,
        "inside-chunk": is_named and chunk != inf and end % chunk,
        "past-chunk": is_named and end > chunk,
    }
    return list_true(conditions)


def list_pass_states(op: Op, owners: set[int | None], model: UnifiedModel) -> list[str]:
    """Lists the states that depend on the rows of a new pass.

    Args:
        op: the pass.
        owners: the sequences of the rows.
        model: the reference before the pass.
    """
    positions, sequences = op["positions"], op["sequences"]
    length, several = min(len(positions), len(sequences)), len(owners) > 1
    changes = sum([a != b for a, b in pairwise(sequences)])
    images = op["multimodal"] if "encoder" in model.kinds else ()
    rows = zip(positions, sequences, strict=False)
    ends = {owner: model.get_end(owner) for owner in sequences}
    separate = [
        pair for pair in model.list_shared_states() if not owners.isdisjoint(pair)
    ]
    conditions = {
        "exception": op["except"],
        "image-rows": op["coordinates"],
        "reserve": op["reserve"],
        "several-sequences": several,
        "interleaved": several and changes >= len(owners),
        "uneven-batch": several and len(set(map(sequences.count, owners))) > 1,
        "one-row": length == 1,
        "whole-batch": length == model.config["batch"],
        "too-many-rows": model.causal and length > model.get_room(),
        "step-back": model.causal and any(at < ends[row] for at, row in rows),
        "image-in-batch": images,
        "several-images": len(images) > 1,
        "states-separate": len(separate) > 1,
    }
    return list_true(conditions)


OF_KIND: Mapping[str, str] = {
    "swa": "slides",
    "swa-memory": "slides",
    "chunked": "chunks",
    "encoder": "images",
    "recurrent": "states",
}
"""Kind → the feature of this kind. A wrapper has the features of all its caches."""


def list_features(kind: str, declared: Kind) -> set[str]:
    has, config = declared.operations, declared.config
    shifts = kind not in ("encoder", "recurrent") and "remove" in has
    counts = config.get("sequences", (2, 4))
    features = {
        "several": max(counts) > 1,
        "many": max(counts) > 3,
        "holds": kind != "encoder",  # an encoder cache ignores the tokens
        "shifts": shifts and True in config.get("shift", (True,)),
        "interval": any(config.get("interval", (1,))),
        "axes": any(config.get("sections", ())),
    }
    kinds = list_kinds(kind, config)
    return {*list_true(features), *(OF_KIND[name] for name in kinds if name in OF_KIND)}


def list_kinds(kind: str, config: Config) -> Iterable[str]:
    """Lists the kind itself; for a wrapper, the kinds of all caches that it may
    contain."""
    if kind != "wrapper":
        slides = kind == "recurrent" and any(config.get("memory", ()))
        return [kind, *(["swa"] if slides else [])]
    caches = config.get("caches")
    if caches is None:
        return OF_KIND
    return {cache["kind"] for kinds_listed in caches for cache in kinds_listed}
