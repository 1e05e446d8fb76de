"""The abstract states of a unified cache: where bugs were, by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.operation import Config, Op, Unreachable, list_true
from lockstep.harness.contracts.unified.model import UnifiedModel
from lockstep.reference.causal import CausalCache
from lockstep.reference.encoder import EncoderCache
from lockstep.reference.recurrent import RecurrentCache

SHARED = ("shared", "shared-in-part")
ROOM = ("wrapped", "full", "one-free", "less-than-a-batch-free")
PLACES = ("gap", "same-position-twice")
HELD = ("empty", "idle", *SHARED, "fragmented", *ROOM, *PLACES)
FAILED = ("forward-failed", "remove-failed")
AFTER = ("after-exception", "after-reserve")
SHIFTED = ("shifted", "shifted-twice")
HAPPENED = (*FAILED, *AFTER, "loaded", *SHIFTED)
MIXED = ("several-sequences", "interleaved")
SIZED = ("one-row", "whole-batch")
REACHING = ("step-back", "too-many-rows")
PASS = ("exception", "reserve", *MIXED, *SIZED, *REACHING, "uneven-batch")
WINDOWED = ("at-window", "past-window")
SLIDING = ("evicted", "idle-evicts", *WINDOWED, "before-memory")
CHUNKED = ("chunk-boundary", "inside-chunk", "past-chunk")
IMAGES = ("image-in-batch", "several-images")
ENCODER = ("image-cached", "image-not-cached", *IMAGES)
SEPARATING = ("states-separate",)
RECURRENT = ("state-shared", "checkpointed", "slots-full", *SEPARATING)
STATES = (*HELD, *HAPPENED, *PASS, *SLIDING, *CHUNKED, *ENCODER, *RECURRENT)


def get_unified_states(op: Op, model: UnifiedModel) -> list[str]:
    """Names the states that `op` is about to run in."""
    found = model.past | model.ever
    is_pass = op["op"] == "forward"
    owners = set(op["sequences"]) if is_pass else {get_owner(op)}
    ends: dict[int, int] = {}
    for part in model.parts:
        if isinstance(part, EncoderCache):
            found.add("image-cached" if part.cached else "image-not-cached")
            continue
        places = group_positions(part)
        if is_pass:
            for owner, at in places.items():
                ends[owner] = max(ends.get(owner, 0), max(at) + 1)
        add_held_states(found, part, owners, places, model)
        if not part.memory == part.window == part.chunk == inf:
            add_size_states(found, part, owners, places)
        if isinstance(part, RecurrentCache):
            found.update(get_slot_states(part))
    if is_pass:
        add_pass_states(found, op, owners, ends, model)
        shared = model.list_shared_states()
        if sum(not owners.isdisjoint(together) for together in shared) > 1:
            found.add("states-separate")
    return list(found)


def get_owner(op: Op) -> int | None:
    """Returns the sequence that an operation between passes is about."""
    owner: int | None = op.get("sequence", op.get("source"))
    return owner


Positions = Mapping[int, Sequence[int]]
"""Sequence with tokens → their positions."""


def group_positions(part: CausalCache) -> Positions:
    places: dict[int, list[int]] = defaultdict(list)
    for _, position, owners in part.tokens:
        for owner in owners:
            places[owner].append(position)
    return places


def add_held_states(
    found: set[str],
    part: CausalCache,
    owners: set[int | None],
    places: Positions,
    model: UnifiedModel,
) -> None:
    """Adds the states of the tokens that are held."""
    tokens, held = part.tokens, len(part.tokens)
    free, own = part.room - held, [at for owner, at in places.items() if owner in owners]
    shares = sum(map(len, places.values())) > held
    if shares:
        found |= get_sharing_states(part, owners)
    states = {
        "empty": not tokens,
        # Tags ascend in the order of writing.
        "fragmented": tokens and tokens[-1].tag - tokens[0].tag >= held,
        "idle": not shares and not places.keys() <= owners,
        "wrapped": model.written > part.room,
        "less-than-a-batch-free": free < part.batch,
        "full": free == 0,
        "one-free": free == 1,
        "same-position-twice": any(len({*at}) < len(at) for at in own),
        "gap": any(max(at) - min(at) >= len({*at}) for at in own),
    }
    found.update(list_true(states))


def get_sharing_states(part: CausalCache, owners: set[int | None]) -> set[str]:
    """Finds the states of tokens that belong to several sequences."""
    found = {"shared"}
    together = {token.sequences for token in part.tokens}
    if any(owners.isdisjoint(sequences) for sequences in together):
        found.add("idle")
    shared = [sequences for sequences in together if len(sequences) > 1]
    if any(one & other and not one >= other for other in shared for one in together):
        found.add("shared-in-part")
    return found


def add_size_states(
    found: set[str], part: CausalCache, owners: set[int | None], places: Positions
) -> None:
    """Adds the states at the boundaries of window, memory and chunk."""
    window, memory, chunk = part.window, part.memory, part.chunk
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
        found.update(list_true(states))


def get_slot_states(part: RecurrentCache) -> list[str]:
    states = {
        "state-shared": any(map(part.is_shared, part.slots)),
        "checkpointed": any(slot.checkpoints for slot in part.slots.values()),
        "slots-full": len(set(part.slots.values())) == part.slot_count,
    }
    return list_true(states)


def add_pass_states(
    found: set[str],
    op: Op,
    owners: set[int | None],
    ends: Mapping[int, int],
    model: UnifiedModel,
) -> None:
    """Adds the states of a new pass; `ends`: sequence with tokens → `get_end`."""
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
        "step-back": model.causal and any(at < ends.get(own, 0) for at, own in rows),
        "image-in-batch": images,
        "several-images": len(images) > 1,
    }
    found.update(list_true(states))


OF_KIND: Mapping[str, Sequence[str]] = {
    "swa": SLIDING,
    "swa-memory": SLIDING,
    "chunked": CHUNKED,
    "encoder": ENCODER,
    "recurrent": RECURRENT,
}
"""Kind → the states that only it has. A wrapper has those of all its caches."""

SEVERAL = ("idle", *MIXED, "uneven-batch", "idle-evicts")
"""The states that need more than one sequence."""

COPIED = (*SHARED, "state-shared")
"""The states that need a copied prefix, and so more than one sequence."""


def list_unified_states(kind: str, declared: Kind) -> Sequence[str]:
    """Lists the states that generation must reach for a kind as it is declared."""
    has, config = declared.operations, declared.config
    several = any(count > 1 for count in config.get("sequences", (2,)))
    holds = kind != "encoder"  # it never looks at the tokens
    shifts = kind not in ("encoder", "recurrent") and "remove" in has
    own = [state for part in list_parts(kind, config) for state in OF_KIND.get(part, ())]
    reached = {
        **dict.fromkeys((*PASS, *AFTER, *own), True),
        **dict.fromkeys(REACHING, holds),
        **dict.fromkeys((*HELD, "forward-failed"), holds),
        "remove-failed": holds and "remove" in has,
        "loaded": holds and "load" in has,
        **dict.fromkeys(SHIFTED, shifts and True in config.get("shift", (True,))),
    }
    out = {*(() if several else SEVERAL)}
    out |= {*(() if several and "copy_prefix" in has else COPIED)}
    out |= {*(() if max(config.get("sequences", (4,))) > 3 else SEPARATING)}
    out |= {*(() if several and "copy_prefix" in has else SEPARATING)}
    out |= {*(() if any(config.get("interval", (1,))) else ("checkpointed",))}
    return [state for state in STATES if reached.get(state) and state not in out]


def list_parts(kind: str, config: Config) -> Iterable[str]:
    """Lists the kind itself; of a wrapper, the kinds of all caches it can consist of."""
    if kind != "wrapper":
        slides = kind == "recurrent" and any(config.get("memory", ()))
        return [kind, *(["swa"] if slides else [])]
    caches = config.get("caches")
    return OF_KIND if caches is None else {one["kind"] for all in caches for one in all}


NAMING = ("forward", "copy_prefix", "remove", "can_resume")

OF_A_PASS = Unreachable(
    "tells of the rows that a pass brings",
    (*PASS, *IMAGES, *SEPARATING),
    only=("forward",),
)
OF_A_SEQUENCE = Unreachable(
    "tells of a sequence that the operation names, and the others name none",
    (*PLACES, *WINDOWED, *CHUNKED),
    only=NAMING,
)
CLOSED = Unreachable(
    "has ended the pass, and there is nothing to get or put outside of one",
    ("forward-failed", "loaded"),
    never=("get", "put"),
)
CLOSED_WRAPPER = Unreachable(
    "ends the pass of a wrapper, some of whose caches may have changed",
    ("remove-failed",),
    never=("get", "put"),
)

CLEARED = Unreachable(
    "is cleared by the next operation, which ends the pass",
    ("remove-failed",),
    never=("get", "put"),
)


def list_unreachable(kind: str, declared: Kind) -> Sequence[Unreachable]:
    """Lists the states that some operations never find."""
    rules = [OF_A_PASS, OF_A_SEQUENCE]
    if not declared.refuses:
        rules += [CLOSED, *([CLOSED_WRAPPER] if kind == "wrapper" else [])]
        rules += [] if declared.atomic else [CLEARED]
    return rules
