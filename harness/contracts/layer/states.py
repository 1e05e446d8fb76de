"""The abstract states of a layer cache: where bugs were, by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.layer.sides import Cache, LayerModel
from lockstep.harness.contracts.operation import Op, Unreachable

APPENDS = ("append-after-rewind", "append-after-restore")
SNAPSHOT_STATES = ("snapshot-live", "snapshot-outlived", "restore-after-change")
STEP_STATES = ("at-step", "before-step", "after-step")
CHUNK_STATES = ("chunk-boundary", "inside-chunk", "past-chunk")
BELOW = ("below-window", "before-window")
UPDATES = ("ends-wrapped", "several-after-wrap")
WINDOW_STATES = (
    *BELOW,
    *("at-window", "after-window"),
    *UPDATES,
    *("wrapped", "mid-ring", "window-one"),
)
STATES = (
    *("empty", "unwritten", "rewind", "append-after-rewind", "clone", "free", "restore"),
    *("append-after-restore", "refusal"),
    *SNAPSHOT_STATES,
    "captures-pending",
    *STEP_STATES,
    *CHUNK_STATES,
    *WINDOW_STATES,
)


def get_layer_states(op: Op, model: LayerModel) -> list[str]:
    """Names the states that `op` is about to run in: those of its cache."""
    name = op["cache"]
    if name not in model.caches:
        return ["empty", "unwritten"]
    cache, config = model.caches[name], model.config
    past = model.past[name]
    states = [*past, *get_offset_states(cache.offset, config)]
    if model.snapshots:
        states.append("snapshot-live")
        if is_snapshot_outlived(cache, model):
            states.append("snapshot-outlived")
            if op.get("snapshot") and op["op"] == "restore":
                states.append("restore-after-change")
    if cache.captures.scheduled:
        states.append("captures-pending")
    if op["op"] == "update":
        states += get_update_states(op["length"], cache.offset, past, config["window"])
    return states


def get_update_states(
    length: int, offset: int, past: Collection[str], window: int | None
) -> list[str]:
    """Names what an update finds, and where it leads."""
    states = [f"append-after-{what}" for what in ("rewind", "restore") if what in past]
    if window is not None and offset + length > window:
        states.append("ends-wrapped")
        if length > 1 and offset > window:
            states.append("several-after-wrap")
    return states


def get_offset_states(offset: int, config: Mapping[str, Any]) -> list[str]:
    """Names the place of the offset between boundaries of window, step and chunk."""
    if offset == 0:
        return ["empty"]
    states = []
    if config["kind"] != "state":
        place = offset % config["step"]
        if place == 0:
            states.append("at-step")
        if place == config["step"] - 1:
            states.append("before-step")
        if place == 1:
            states.append("after-step")
    if chunk := config["chunk"]:
        states.append("chunk-boundary" if offset % chunk == 0 else "inside-chunk")
        if offset > chunk:
            states.append("past-chunk")
    if window := config["window"]:
        states += get_window_states(offset, window)
    return states


def get_window_states(offset: int, window: int) -> list[str]:
    if offset < window:
        return ["below-window", *(["before-window"] if offset == window - 1 else [])]
    if offset == window:
        return ["at-window"]
    states = ["wrapped"]
    if offset == window + 1:
        states.append("after-window")
    if offset % window:
        states.append("mid-ring")
    if window == 1:
        states.append("window-one")
    return states


def is_snapshot_outlived(cache: Cache, model: LayerModel) -> bool:
    """Some snapshot ends with a token that the cache no longer holds where it stood."""
    return any(
        snapshot.tokens[-1] not in cache.tokens for snapshot in model.snapshots.values()
    )


def list_layer_states(kind: str, declared: Kind) -> Sequence[str]:
    """Lists the states that generation must reach for a kind as it is declared."""
    has, config = declared.operations, declared.config
    rewinds = "restore" in has or ("trim" in has and kind != "state")
    outlives = bool({"trim", "restore", "free", "clone"} & has)
    chunks = kind == "kv" and config.get("chunk", (None,)) != (None,)
    windows = config.get("window", (1, 2))
    wider = any(window > 1 for window in windows)
    reached = {
        **dict.fromkeys(("empty", "unwritten"), True),
        **dict.fromkeys(("rewind", "append-after-rewind"), rewinds),
        **dict.fromkeys(("clone", "free", "restore"), False),
        **dict.fromkeys(has & {"clone", "free", "restore"}, True),
        "append-after-restore": "restore" in has,
        "refusal": "restore" in has or "trim" in has,
        "snapshot-live": "snapshot" in has,
        "snapshot-outlived": "snapshot" in has and outlives,
        "restore-after-change": {"snapshot", "restore"} <= has,
        "captures-pending": "prepare" in has,
        **dict.fromkeys(STEP_STATES, kind != "state" and "step" in config),
        **dict.fromkeys(CHUNK_STATES, chunks),
        **dict.fromkeys(WINDOW_STATES, kind == "rotating"),
    }
    if kind == "rotating":
        reached |= {
            **dict.fromkeys((*BELOW, "mid-ring"), wider),
            "window-one": 1 in windows,
        }
    return [state for state in STATES if reached[state]]


UNREACHABLE = (
    Unreachable(
        "tells what an update finds, or where it leads",
        (*APPENDS, *UPDATES),
        only=("update",),
    ),
    Unreachable("tells what is restored", ("restore-after-change",), only=("restore",)),
)


def list_unreachable(kind: str, declared: Kind) -> Sequence[Unreachable]:
    return UNREACHABLE
