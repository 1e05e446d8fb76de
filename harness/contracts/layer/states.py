"""The abstract states of a layer cache, by name."""

from __future__ import annotations

from functools import cached_property
from math import inf, nan

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.layer.model import LayerModel
from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.states import State, StateTable, list_true, never, only

LONG_AFTER = 12
"""The number of tokens after which a snapshot that differs from its cache is old."""


STEPPED = ("kv", "rotating")
"""The kinds whose memory grows at each multiple of a step of tokens."""


class Situation:
    """An operation that is about to run on a cache.

    Attributes:
        length: the number of tokens of an update, else 0.
        past_window: the offset minus the window.
        step: the number of slots by which the memory of a cache grows.
        after_step: the number of tokens after the last growth step.
        in_chunk: the number of tokens after the last chunk boundary.
        past_chunk: the offset minus the chunk size.
        is_open: the number of open tokens of a pooled cache.

    The last five are NaN while the cache is empty, and if the cache has no window, steps,
    chunks or pool. NaN is neither equal to, less than nor greater than any number.
    """

    def __init__(self, op: Op, model: LayerModel) -> None:
        self.op, self.model, self.config = op, model, model.config
        self.cache, self.past = model.caches[op["cache"]], model.past[op["cache"]]
        self.offset = offset = self.cache.offset
        self.length = op["length"] if op["op"] == "update" else 0
        window, chunk = self.config["window"], self.config["chunk"]
        has_steps = offset and self.config["kind"] in STEPPED
        pool = self.config["pool"]
        self.is_open: float = offset % pool if offset and pool else nan
        self.past_window = offset - window if offset and window else nan
        self.step: int = self.config["step"]
        self.after_step = offset % self.step if has_steps else nan
        self.in_chunk = offset % chunk if offset and chunk else nan
        self.past_chunk = offset - chunk if offset and chunk else nan

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
        window = self.config["window"]
        return bool(self.length and window and self.offset + self.length > window)

    def count_closed(self) -> int:
        """Counts the windows that an update of a pooled cache closes."""
        pool: float = self.config["pool"] or inf
        return int((self.offset + self.length) // pool - self.offset // pool)

    def appends_after(self, event: str) -> bool:
        return self.length > 0 and event in self.past


STATES = (
    State("empty", lambda case: not case.offset),
    State("unwritten"),
    State("rewind", needs="rewinds"),
    State("append-after-rewind", lambda case: case.appends_after("rewind"), "rewinds"),
    *(State(name, needs=name) for name in ("clone", "free", "restore")),
    State("append-after-restore", lambda case: case.appends_after("restore"), "restore"),
    State("refusal", needs="refusals"),
    State("snapshot-live", lambda case: case.model.snapshots, "snapshot"),
    State("snapshot-outlived", lambda case: case.outlived, "snapshot outlives"),
    State("restore-after-change", lambda case: case.restored, "snapshot restore"),
    State("restore-long-after", Situation.is_old, "snapshot restore"),
    State("captures-pending", lambda case: case.cache.captures.scheduled, "prepare"),
    State("captures-crossed", lambda case: case.count_crossed() > 1, "prepare"),
    State("at-step", lambda case: case.after_step == 0, "steps"),
    State("before-step", lambda case: case.after_step == case.step - 1, "steps"),
    State("after-step", lambda case: case.after_step == 1, "steps"),
    State("chunk-boundary", lambda case: case.in_chunk == 0, "chunks"),
    State("inside-chunk", lambda case: case.in_chunk > 0, "chunks"),
    State("past-chunk", lambda case: case.past_chunk > 0, "chunks"),
    State("window-closed", lambda case: case.is_open == 0, "pooled"),
    State("window-open", lambda case: case.is_open > 0, "larger-pool"),
    State("closes-one", lambda case: case.count_closed() == 1, "pooled"),
    State("closes-several", lambda case: case.count_closed() > 1, "pooled"),
    State("reopened", needs="reopens"),
    State(
        "append-after-reopened", lambda case: case.appends_after("reopened"), "reopens"
    ),
    State("below-window", lambda case: case.past_window < 0, "wider"),
    State("before-window", lambda case: case.past_window == -1, "wider"),
    State("at-window", lambda case: case.past_window == 0, "rotating"),
    State("after-window", lambda case: case.past_window == 1, "rotating"),
    State("ends-wrapped", lambda case: case.ends_wrapped, "rotating"),
    State(
        "several-after-wrap",
        lambda case: case.length > 1 and case.past_window > 0,
        "rotating",
    ),
    State("wrapped", lambda case: case.past_window > 0, "rotating"),
    State(
        "mid-ring",
        lambda case: case.past_window > 0 and case.past_window % case.config["window"],
        "wider",
    ),
    State(
        "window-one",
        lambda case: case.config["window"] == 1 and case.offset > 1,
        "one-token",
    ),
)

RULES = (
    only(
        "tells what an update finds, or where it leads",
        "append-after-rewind append-after-restore ends-wrapped several-after-wrap"
        " captures-crossed closes-one closes-several append-after-reopened",
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
    """Returns the names of the abstract states that the cache of `op` has before `op`
    runs."""
    if op["cache"] not in model.caches:
        return ["empty", "unwritten"]
    return [*model.past[op["cache"]], *TABLE.find(Situation(op, model))]


def list_features(kind: str, declared: Kind) -> set[str]:
    has, config = declared.operations, declared.config
    windows = config.get("window", (1, 2)) if kind == "rotating" else ()
    goes_far = any(config.get("lookahead", (1,))) and "trim" in has
    features = {
        "reopens": kind == "pooled" and ("restore" in has or goes_far),
        "rewinds": "restore" in has or ("trim" in has and kind != "state"),
        "refusals": "restore" in has or "trim" in has,
        "outlives": not {"trim", "restore", "free", "clone"}.isdisjoint(has),
        "steps": kind in STEPPED and "step" in config,
        "larger-pool": kind == "pooled" and max(config.get("pool", (2,))) > 1,
        "chunks": kind == "kv" and config.get("chunk", (None,)) != (None,),
        "wider": any(window > 1 for window in windows),
        "one-token": 1 in windows,
    }
    return set(list_true(features))
