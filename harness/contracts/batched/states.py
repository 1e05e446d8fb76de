"""The abstract states of a batch: where bugs were, by name."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.batched.model import (
    LIST,
    BatchedModel,
    list_part_configs,
)
from lockstep.harness.contracts.batched.parts import LISTS
from lockstep.harness.contracts.operation import Config, Op, Unreachable, list_true
from lockstep.reference.batched import BatchedCache

SINGLE = "single"
"""The operation is about a single cache."""

FORMS = ("empty", "one-row", "equal-rows", "uneven-rows", "row-empty")
HAPPENED = (
    *("padded-left", "finalized", "rewind", "refusal", "rows-left", "extended"),
    *("stacked", "loaded", "cloned", "freed"),
)
ANNOUNCED = ("announced", "padding-only")
WINDOWS = ("at-window", "just-turned", "turned", "padding-in-window", "turns")
CHUNKS = ("chunk-boundary", "past-chunk", "chunks-apart")
STATES = (SINGLE, *FORMS, *HAPPENED, *ANNOUNCED, *WINDOWS, *CHUNKS)

MAKERS = ("open", "stack", "load")
"""Operations that find no batch: they make one."""


def get_batched_states(op: Op, model: BatchedModel) -> list[str]:
    """Names the states that `op` is about to run in: those of its batch."""
    batch = model.batches.get(op["cache"])
    if op["op"] in MAKERS or batch is None:
        return [SINGLE]
    offsets = batch.offsets
    found = {
        "empty": not batch.width,
        "one-row": len(offsets) == 1,
        "equal-rows": len(offsets) > 1 and batch.width and len(set(offsets)) == 1,
        "uneven-rows": len(set(offsets)) > 1,
        "row-empty": batch.width and not min(offsets),
        "announced": batch.coming is not None,
        "padding-only": op["op"] == "update" and batch.coming and not min(batch.coming),
    }
    sized = [
        state
        for config in list_part_configs(model.config)
        for state in get_window_states(op, batch, config)
        + get_chunk_states(batch, config)
    ]
    return [*model.past[op["cache"]], *list_true(found), *dict.fromkeys(sized)]


def get_window_states(op: Op, batch: BatchedCache, config: Config) -> list[str]:
    """Names the states of a batch, or of one part of it, around a window."""
    window, offsets = config["window"], batch.offsets
    if not window:
        return []
    longest = max(offsets)
    return list_true(
        {
            "at-window": longest == window,
            "just-turned": longest == window + 1,
            "turned": longest > window,
            # Of a row that is aligned with the longest one.
            "padding-in-window": longest > window > min(offsets),
            "turns": op["op"] == "update" and longest <= window < longest + op["length"],
        }
    )


def get_chunk_states(batch: BatchedCache, config: Config) -> list[str]:
    chunk = config["chunk"]
    if not chunk:
        return []
    offsets = batch.offsets
    return list_true(
        {
            "chunk-boundary": any(offset and offset % chunk == 0 for offset in offsets),
            "past-chunk": max(offsets) > chunk,
            "chunks-apart": len({offset // chunk for offset in offsets}) > 1,
        }
    )


def list_batched_states(kind: str, declared: Kind) -> Sequence[str]:
    """Lists the states that generation must reach for a kind as it is declared."""
    has, config = declared.operations, declared.config
    kinds, chunks = {kind}, [*config.get("chunk", (None,))]
    if kind == LIST:
        parts = [part for parts in config.get("caches", LISTS) for part in parts]
        kinds = {part["kind"] for part in parts}
        chunks = [part.get("chunk") for part in parts]
    pads_left = True in config.get("pads_left", (True,))
    rewinds = bool(has & {"trim", "rollback"})
    uneven = pads_left or "pad_right" in has or {"extend", "stack"} & has
    reached = {
        **dict.fromkeys((SINGLE, "empty", "one-row", "equal-rows"), True),
        "uneven-rows": uneven,
        "row-empty": {"extend", "stack"} & has or (uneven and rewinds),
        "padded-left": pads_left,
        **dict.fromkeys(("finalized", *ANNOUNCED), "pad_right" in has),
        "rewind": rewinds,
        "refusal": rewinds and kinds & {"batch-rotating", "batch-state"},
        "rows-left": has & {"filter", "select"},
        "extended": "extend" in has,
        "stacked": "stack" in has,
        "loaded": "load" in has,
        "cloned": "clone" in has,
        "freed": "free" in has,
        **dict.fromkeys(WINDOWS, "batch-rotating" in kinds),
        "padding-in-window": "batch-rotating" in kinds and uneven,
        **dict.fromkeys(CHUNKS, any(chunks)),
    }
    return [state for state in STATES if reached[state]]


BATCH_ONLY = (
    *("pad_right", "finalize", "rollback", "filter", "select", "repeat"),
    *("extend", "extract", "save"),
)
OF_BATCHES = tuple(state for state in STATES if state != SINGLE)

UNREACHABLE = (
    Unreachable("needs a batch", (SINGLE,), never=BATCH_ONLY),
    Unreachable("makes a batch", OF_BATCHES, never=MAKERS),
    Unreachable("tells what an update does", ("padding-only", "turns"), only=("update",)),
    Unreachable(
        "an announcement and updates come before",
        ("one-row", "row-empty", *HAPPENED),
        never=("finalize",),
    ),
    Unreachable("nobody reads then", ("announced",), never=("state", "size")),
    Unreachable("one row has no padding", ("one-row",), never=("pad_right",)),
)

WITHOUT_MISUSE = (
    Unreachable(
        "the padding has to end before anything else",
        ("announced",),
        only=("update", "finalize"),
    ),
    Unreachable("all that was announced has come", ("empty",), never=("finalize",)),
)

WITHOUT_EXTRACT = (
    Unreachable("single caches are extracted from batches", (SINGLE,), only=MAKERS),
)


def list_unreachable(kind: str, declared: Kind) -> Sequence[Unreachable]:
    more = () if declared.refuses else WITHOUT_MISUSE
    singles = () if "extract" in declared.operations else WITHOUT_EXTRACT
    return (*UNREACHABLE, *more, *singles)
