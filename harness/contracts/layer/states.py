"""The abstract states of a layer cache, by name."""

from __future__ import annotations

from functools import cached_property

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.layer.model import LayerModel
from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.states import State, StateTable, list_true, never, only

LONG_AFTER = 12
"""The number of tokens after which a snapshot that differs from its cache is old."""


class Situation:
    """An operation that is about to run on a cache, which is not empty of sizes alone.

    Attributes:
        length: the number of tokens of an update, else 0.
        step: the growth step, or None if the cache does not grow by steps.
        window: the window of the config; None while the cache is empty.
        chunk: the chunk size of the config; None while the cache is empty.
    """

    def __init__(self, op: Op, model: LayerModel) -> None:
        self.op, self.model, config = op, model, model.config
        self.cache, self.past = model.caches[op["cache"]], model.past[op["cache"]]
        self.offset = self.cache.offset
        self.length = op["length"] if op["op"] == "update" else 0
        has_steps = self.offset and config["kind"] != "state"
        self.step = config["step"] if has_steps else None
        self.window = config["window"] if self.offset else None
        self.chunk = config["chunk"] if self.offset else None

    @cached_property
    def outlived(self) -> bool:
        """Whether the last token of some snapshot is no longer in the cache."""
        snapshots, tokens = self.model.snapshots.values(), self.cache.tokens
        return any(snapshot.tokens[-1] not in tokens for snapshot in snapshots)

    @property
    def restored(self) -> bool:
        """Whether a snapshot is restored after the cache has changed."""
        return self.outlived and self.op["op"] == "restore" and bool(self.op["snapshot"])

    def is_old(self) -> bool:
        return self.restored and self.model.get_age(self.op["snapshot"]) >= LONG_AFTER

    def count_crossed(self) -> int:
        """Counts the scheduled captures that an update reaches or passes."""
        crossed = range(self.offset + 1, self.offset + self.length + 1)
        return sum(offset in crossed for offset in self.cache.captures.scheduled)

    @property
    def ends_wrapped(self) -> bool:
        window = self.model.config["window"]
        return bool(self.length and window and self.offset + self.length > window)


def is_wrapped(case: Situation) -> bool:
    return case.window is not None and case.offset > case.window


STATES = (
    State("empty", lambda case: not case.offset),
    State("unwritten"),
    State("rewind", needs="rewinds"),
    State(
        "append-after-rewind",
        lambda case: case.length and "rewind" in case.past,
        "rewinds",
    ),
    *(State(name, needs=name) for name in ("clone", "free", "restore")),
    State(
        "append-after-restore",
        lambda case: case.length and "restore" in case.past,
        "restore",
    ),
    State("refusal", needs="refusals"),
    State("snapshot-live", lambda case: case.model.snapshots, "snapshot"),
    State("snapshot-outlived", lambda case: case.outlived, "snapshot outlives"),
    State("restore-after-change", lambda case: case.restored, "snapshot restore"),
    State("restore-long-after", Situation.is_old, "snapshot restore"),
    State("captures-pending", lambda case: case.cache.captures.scheduled, "prepare"),
    State("captures-crossed", lambda case: case.count_crossed() > 1, "prepare"),
    State("at-step", lambda case: case.step and case.offset % case.step == 0, "steps"),
    State(
        "before-step",
        lambda case: case.step and case.offset % case.step == case.step - 1,
        "steps",
    ),
    State("after-step", lambda case: case.step and case.offset % case.step == 1, "steps"),
    State(
        "chunk-boundary",
        lambda case: case.chunk and case.offset % case.chunk == 0,
        "chunks",
    ),
    State("inside-chunk", lambda case: case.chunk and case.offset % case.chunk, "chunks"),
    State("past-chunk", lambda case: case.chunk and case.offset > case.chunk, "chunks"),
    State(
        "below-window", lambda case: case.window and case.offset < case.window, "wider"
    ),
    State(
        "before-window",
        lambda case: case.window and case.offset == case.window - 1,
        "wider",
    ),
    State("at-window", lambda case: case.offset == case.window, "rotating"),
    State(
        "after-window",
        lambda case: case.window and case.offset == case.window + 1,
        "rotating",
    ),
    State("ends-wrapped", lambda case: case.ends_wrapped, "rotating"),
    State(
        "several-after-wrap",
        lambda case: case.ends_wrapped and case.length > 1 and is_wrapped(case),
        "rotating",
    ),
    State("wrapped", is_wrapped, "rotating"),
    State(
        "mid-ring", lambda case: is_wrapped(case) and case.offset % case.window, "wider"
    ),
    State("window-one", lambda case: case.window == 1 and case.offset > 1, "one-token"),
)

RULES = (
    only(
        "tells what an update finds, or where it leads",
        "append-after-rewind append-after-restore ends-wrapped several-after-wrap"
        " captures-crossed",
        "update",
    ),
    only("tells what is restored", "restore-after-change restore-long-after", "restore"),
    never(
        "breaks a rule of usage before the captures were taken",
        *("captures-pending", "prepare"),
        unless="refuses",
    ),
)
TABLE = StateTable(STATES, RULES)


def get_states(op: Op, model: LayerModel) -> list[str]:
    """Returns the names of the states of the operation's cache before `op` runs."""
    if op["cache"] not in model.caches:
        return ["empty", "unwritten"]
    return [*model.past[op["cache"]], *TABLE.find(Situation(op, model))]


def list_features(kind: str, declared: Kind) -> set[str]:
    has, config = declared.operations, declared.config
    windows = config.get("window", (1, 2)) if kind == "rotating" else ()
    features = {
        "rewinds": "restore" in has or ("trim" in has and kind != "state"),
        "refusals": "restore" in has or "trim" in has,
        "outlives": not {"trim", "restore", "free", "clone"}.isdisjoint(has),
        "steps": kind != "state" and "step" in config,
        "chunks": kind == "kv" and config.get("chunk", (None,)) != (None,),
        "wider": any(window > 1 for window in windows),
        "one-token": 1 in windows,
    }
    return set(list_true(features))
