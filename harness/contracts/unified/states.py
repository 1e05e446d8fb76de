"""The abstract states of a unified cache, by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.operation import Config, Op
from lockstep.harness.contracts.states import State, StateTable, list_true, never, only
from lockstep.harness.contracts.unified.model import UnifiedModel
from lockstep.reference.causal import CausalCache
from lockstep.reference.encoder import EncoderCache
from lockstep.reference.recurrent import RecurrentCache

STATES = (
    State("empty", needs="holds"),
    State("idle", needs="holds several"),
    State("shared", needs="holds several copy_prefix"),
    State("shared-in-part", needs="holds several copy_prefix"),
    State("fragmented", needs="holds"),
    State("wrapped", needs="holds"),
    State("full", needs="holds"),
    State("one-free", needs="holds"),
    State("less-than-a-batch-free", needs="holds"),
    State("gap", needs="holds"),
    State("same-position-twice", needs="holds"),
    State("forward-failed", needs="holds"),
    State("remove-failed", needs="holds remove"),
    State("after-exception"),
    State("after-reserve"),
    State("loaded", needs="holds load"),
    State("shifted", needs="shifts"),
    State("shifted-twice", needs="shifts"),
    State("exception"),
    State("reserve"),
    State("several-sequences", needs="several"),
    State("interleaved", needs="several"),
    State("one-row"),
    State("whole-batch"),
    State("step-back", needs="holds"),
    State("too-many-rows", needs="holds"),
    State("uneven-batch", needs="several"),
    State("evicted", needs="slides"),
    State("idle-evicts", needs="slides several"),
    State("at-window", needs="slides"),
    State("past-window", needs="slides"),
    State("before-memory", needs="slides"),
    State("chunk-boundary", needs="chunks"),
    State("inside-chunk", needs="chunks"),
    State("past-chunk", needs="chunks"),
    State("image-cached", needs="images"),
    State("image-not-cached", needs="images"),
    State("image-in-batch", needs="images"),
    State("several-images", needs="images"),
    State("state-shared", needs="states several copy_prefix"),
    State("checkpointed", needs="states interval"),
    State("slots-full", needs="states"),
    State("states-separate", needs="states several copy_prefix many"),
)
"""All states. `get_states` evaluates the conditions, separately for each part."""

RULES = (
    only(
        "tells of the rows that a pass brings",
        "exception reserve several-sequences interleaved one-row whole-batch step-back"
        " too-many-rows uneven-batch image-in-batch several-images states-separate",
        "forward",
    ),
    only(
        "tells of a sequence that the operation names, and the others name none",
        "gap same-position-twice at-window past-window chunk-boundary inside-chunk"
        " past-chunk",
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
    """Returns the names of the states before `op` runs."""
    states_found = model.past | model.ever
    is_pass = op["op"] == "forward"
    owners = set(op["sequences"]) if is_pass else {get_owner(op)}
    ends: dict[int, int] = {}
    for cache in model.parts:
        if isinstance(cache, EncoderCache):
            states_found.add("image-cached" if cache.cached else "image-not-cached")
            continue
        places = group_positions(cache)
        if is_pass:
            for owner, at in places.items():
                ends[owner] = max(ends.get(owner, 0), max(at) + 1)
        add_held_states(states_found, cache, owners, places, model)
        if not cache.memory == cache.window == cache.chunk == inf:
            add_size_states(states_found, cache, owners, places)
        if isinstance(cache, RecurrentCache):
            states_found.update(get_slot_states(cache))
    if is_pass:
        add_pass_states(states_found, op, owners, ends, model)
        shared = model.list_shared_states()
        if sum(not owners.isdisjoint(together) for together in shared) > 1:
            states_found.add("states-separate")
    return list(states_found)


def get_owner(op: Op) -> int | None:
    """Returns the sequence that an operation other than a pass uses, or None."""
    owner: int | None = op.get("sequence", op.get("source"))
    return owner


Positions = Mapping[int, Sequence[int]]
"""Sequence with tokens → their positions."""


def group_positions(cache: CausalCache) -> Positions:
    places: dict[int, list[int]] = defaultdict(list)
    for _, position, owners in cache.tokens:
        for owner in owners:
            places[owner].append(position)
    return places


def add_held_states(
    states_found: set[str],
    cache: CausalCache,
    owners: set[int | None],
    places: Positions,
    model: UnifiedModel,
) -> None:
    """Adds the states that depend on the stored tokens."""
    tokens, count = cache.tokens, len(cache.tokens)
    free = cache.room - count
    positions_named = [at for owner, at in places.items() if owner in owners]
    shares = sum(map(len, places.values())) > count
    if shares:
        states_found |= get_sharing_states(cache, owners)
    states = {
        "empty": not tokens,
        # Tags ascend in the order of writing.
        "fragmented": tokens and tokens[-1].tag - tokens[0].tag >= count,
        "idle": not shares and not places.keys() <= owners,
        "wrapped": model.written > cache.room,
        "less-than-a-batch-free": free < cache.batch,
        "full": free == 0,
        "one-free": free == 1,
        "same-position-twice": any(len({*at}) < len(at) for at in positions_named),
        "gap": any(max(at) - min(at) >= len({*at}) for at in positions_named),
    }
    states_found.update(list_true(states))


def get_sharing_states(cache: CausalCache, owners: set[int | None]) -> set[str]:
    """Returns the states of a cache in which sequences share tokens."""
    states_found = {"shared"}
    together = {token.sequences for token in cache.tokens}
    if any(owners.isdisjoint(sequences) for sequences in together):
        states_found.add("idle")
    shared = [sequences for sequences in together if len(sequences) > 1]
    if any(
        first & second and not first >= second for second in shared for first in together
    ):
        states_found.add("shared-in-part")
    return states_found


def add_size_states(
    states_found: set[str], cache: CausalCache, owners: set[int | None], places: Positions
) -> None:
    """Adds the states at the boundaries of window, memory and chunk."""
    window, memory, chunk = cache.window, cache.memory, cache.chunk
    for owner, at in places.items():
        low, end, is_named = min(at), max(at) + 1, owner in owners
        states = {
            "idle-evicts": not is_named and low < end - memory,
            "before-memory": memory != inf and end - low > window,
            "evicted": memory != inf and low > 0,
            "at-window": is_named and end == window + 1,
            "past-window": is_named and end > window + 1,
            "chunk-boundary": is_named and chunk != inf and end % chunk == 0,
            "inside-chunk": is_named and chunk != inf and end % chunk,
            "past-chunk": is_named and end > chunk,
        }
        states_found.update(list_true(states))


def get_slot_states(cache: RecurrentCache) -> list[str]:
    states = {
        "state-shared": any(map(cache.is_shared, cache.slots)),
        "checkpointed": any(slot.checkpoints for slot in cache.slots.values()),
        "slots-full": len(set(cache.slots.values())) == cache.slot_count,
    }
    return list_true(states)


def add_pass_states(
    states_found: set[str],
    op: Op,
    owners: set[int | None],
    ends: Mapping[int, int],
    model: UnifiedModel,
) -> None:
    """Adds the states that depend on the rows of a new pass.

    Args:
        states_found: the set to which states are added.
        op: the pass.
        owners: the sequences of the rows.
        ends: sequence with tokens → 1 + its last position.
        model: the reference before the pass.
    """
    positions, sequences = op["positions"], op["sequences"]
    length, several = min(len(positions), len(sequences)), len(owners) > 1
    changes = sum([a != b for a, b in pairwise(sequences)])
    images = op["multimodal"] if "encoder" in model.kinds else ()
    rows = zip(positions, sequences, strict=False)
    states = {
        "exception": op["except"],
        "reserve": op["reserve"],
        "several-sequences": several,
        "interleaved": several and changes >= len(owners),
        "uneven-batch": several and len(set(map(sequences.count, owners))) > 1,
        "one-row": length == 1,
        "whole-batch": length == model.config["batch"],
        "too-many-rows": model.causal and length > model.get_room(),
        "step-back": model.causal and any(at < ends.get(owner, 0) for at, owner in rows),
        "image-in-batch": images,
        "several-images": len(images) > 1,
    }
    states_found.update(list_true(states))


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
    }
    kinds = list_kinds(kind, config)
    return {
        *list_true(features),
        *(OF_KIND[cache] for cache in kinds if cache in OF_KIND),
    }


def list_kinds(kind: str, config: Config) -> Iterable[str]:
    """Lists the kind itself, or the kinds of all caches that a wrapper may contain."""
    if kind != "wrapper":
        slides = kind == "recurrent" and any(config.get("memory", ()))
        return [kind, *(["swa"] if slides else [])]
    caches = config.get("caches")
    if caches is None:
        return OF_KIND
    return {cache["kind"] for kinds_listed in caches for cache in kinds_listed}
