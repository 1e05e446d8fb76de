"""Defines the abstract states of a batch."""

from __future__ import annotations

from math import inf

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.batched.lists import LISTS
from lockstep.harness.contracts.batched.model import (
    LIST,
    BatchedModel,
    list_part_configs,
)
from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.states import State, StateTable, list_true, never, only

MAKERS = ("open", "stack", "load")
"""The operations that make a batch."""


class Situation:
    """An operation and its batch, before the operation runs.

    Attributes:
        length: the number of columns of an update, else None.
        windows: the windows of the batch's caches.
        chunks: the chunk sizes of the batch's caches.
        past_window, past_chunk: the length of the longest row minus the smallest window,
            or minus the smallest chunk.
    """

    def __init__(self, op: Op, model: BatchedModel) -> None:
        self.batch = model.batches[op["cache"]]
        self.coming, self.width = self.batch.coming, self.batch.width
        self.offsets = self.batch.offsets
        self.shortest, self.longest = min(self.offsets), max(self.offsets)
        self.is_even = self.shortest == self.longest
        self.length = op["length"] if op["op"] == "update" else None
        configs = list_part_configs(model.config)
        self.windows = [config["window"] for config in configs if config["window"]]
        self.chunks = [config["chunk"] for config in configs if config["chunk"]]
        self.past_window = self.longest - min(self.windows, default=inf)
        self.past_chunk = self.longest - min(self.chunks, default=inf)

    def ends_chunk(self) -> bool:
        """Whether some row ends where a chunk ends."""
        return any(
            offset and offset % chunk == 0
            for chunk in self.chunks
            for offset in self.offsets
        )

    def is_apart(self) -> bool:
        """Whether two rows end in different chunks."""
        return any(self.shortest // size < self.longest // size for size in self.chunks)

    def turns(self) -> bool:
        """Whether an update reaches the end of a ring and continues at its beginning."""
        longest, length = self.longest, self.length
        return length is not None and any(
            longest <= window < longest + length for window in self.windows
        )


STATES = (
    State("single"),  # the operation uses a single cache
    State("empty", lambda case: not case.width),
    State("one-row", lambda case: len(case.offsets) == 1),
    State(
        "equal-rows", lambda case: len(case.offsets) > 1 and case.width and case.is_even
    ),
    State("uneven-rows", lambda case: not case.is_even, "uneven"),
    State("row-empty", lambda case: case.width and not case.shortest, "empty-rows"),
    State("padded-left", needs="pads-left"),
    State("finalized", needs="pad_right"),
    State("rewind", needs="rewinds"),
    State("refusal", needs="rewinds forgets"),
    State("rows-left", needs="keeps-rows"),
    State("extended", needs="extend"),
    State("stacked", needs="stack"),
    State("loaded", needs="load"),
    State("cloned", needs="clone"),
    State("freed", needs="free"),
    State("announced", lambda case: case.coming is not None, "pad_right"),
    State(
        "padding-only",
        lambda case: case.length is not None and case.coming and not min(case.coming),
        "pad_right",
    ),
    State("at-window", lambda case: case.longest in case.windows, "windows"),
    State("just-turned", lambda case: case.longest - 1 in case.windows, "windows"),
    State("turned", lambda case: case.past_window > 0, "windows"),
    State(  # of a row that is aligned with the longest one
        "padding-in-window",
        lambda case: any(case.longest > size > case.shortest for size in case.windows),
        "windows uneven",
    ),
    State("turns", Situation.turns, "windows"),
    State("chunk-boundary", Situation.ends_chunk, "chunks"),
    State("past-chunk", lambda case: case.past_chunk > 0, "chunks"),
    State("chunks-apart", Situation.is_apart, "chunks"),
)
EVENTS = "padded-left finalized rewind refusal extended stacked loaded cloned"
RULES = (
    never(
        "needs a batch",
        "single",
        "pad_right finalize rollback filter select repeat extend extract save",
    ),
    never("makes a batch", " ".join(name for name, *_ in STATES[1:]), " ".join(MAKERS)),
    only("tells what an update does", "padding-only turns", "update"),
    never(
        "an announcement and updates come before",
        f"row-empty {EVENTS} freed",
        "finalize",
    ),
    never("one row has no padding", "one-row", "finalize", unless="keeps-rows"),
    never("nobody reads then", "announced", "state size"),
    never("one row has no padding", "one-row", "pad_right"),
    only(
        "the padding has to end before anything else",
        *("announced", "update finalize filter select repeat extract"),
        unless="refuses",
    ),
    never("all that was announced has come", "empty", "finalize", unless="refuses"),
    only(
        "single caches are extracted from batches",
        *("single", " ".join(MAKERS)),
        unless="extract",
    ),
)
TABLE = StateTable(STATES, RULES)


def get_states(op: Op, model: BatchedModel) -> list[str]:
    """Returns the names of the abstract states that the batch of `op` has before `op`
    runs."""
    if op["op"] in MAKERS or op["cache"] not in model.batches:
        return ["single"]
    return [*model.past[op["cache"]], *TABLE.find(Situation(op, model))]


def list_features(kind: str, declared: Kind) -> set[str]:
    has, config = declared.operations, declared.config
    kinds, chunks = {kind}, [*config.get("chunk", (None,))]
    if kind == LIST:
        configs = [part for configs in config.get("caches", LISTS) for part in configs]
        kinds = {part["kind"] for part in configs}
        chunks = [part.get("chunk") for part in configs]
    pads_left = True in config.get("pads_left", (True,))
    rewinds, joins = has & {"trim", "rollback"}, has & {"extend", "stack"}
    uneven = pads_left or "pad_right" in has or joins
    features = {
        "uneven": uneven,
        "empty-rows": joins or (uneven and rewinds),
        "pads-left": pads_left,
        "rewinds": rewinds,
        "forgets": kinds & {"batch-rotating", "batch-state"},
        "keeps-rows": has & {"filter", "select"},
        "windows": "batch-rotating" in kinds,
        "chunks": any(chunks),
    }
    return set(list_true(features))
