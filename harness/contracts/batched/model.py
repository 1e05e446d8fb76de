"""The reference side of a batched program: batches and single caches, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.batched.columns import CountedBatch
from lockstep.harness.contracts.layer.sides import (
    CONFIG as LAYER_CONFIG,
)
from lockstep.harness.contracts.layer.sides import (
    Cache,
    LayerModel,
    Updates,
    get_tags,
    list_places,
    open_cache,
)
from lockstep.harness.contracts.layer.sides import (
    why_illegal_config as why_illegal_single,
)
from lockstep.harness.contracts.operation import Answer, Config, Held, Op, ask
from lockstep.harness.core.document import Schema

PREFIX = "batch-"
KINDS = ("batch-kv", "batch-rotating", "batch-state")

CONFIG: Mapping[str, Schema] = {
    **LAYER_CONFIG,
    "kind": {"enum": list(KINDS)},
    "pads_left": {"type": "boolean", "default": True},
    "offsets": {"enum": ["rows", "none"], "default": "rows"},
    "ring": {"enum": ["any", "columns"], "default": "any"},
}
"""Beyond the fields of a single cache: `pads_left`, whether a first update may have
padding on the left; `offsets` "none" for a cache that tells no offset of each row; `ring`
"columns" for a ring that counts padding, and refuses a trim once it has dropped a
column."""

MOST_ROWS = 8
"""Rows of a batch. Each column of an update takes so many tags."""


def get_single_config(config: Config) -> dict[str, Any]:
    """Returns the config of a single cache: of one row."""
    kind = config["kind"].removeprefix(PREFIX)
    return {**{name: config[name] for name in LAYER_CONFIG}, "kind": kind}


def why_illegal_config(config: Config) -> str | None:
    """Names the rule between its fields that a config breaks, or None."""
    return why_illegal_single(get_single_config(config))


REACH, LONG_REACH = 48, 320
"""Offsets beyond the reach of a program show nothing new, but make every step slower."""


FACTS: Mapping[str, str] = {
    "rows": "rows of the batch; 0 of a single cache",
    "shortest": "tokens in its shortest row",
    "longest": "tokens in its longest row",
    "width": "columns that were written since it was empty, padding included",
    "written": "columns that were written since it was made, with those trimmed",
    "turned": "columns that were written one at a time into a full ring since the last"
    " update of several",
    "loaded": "1 if it was loaded and no padding on the right was announced since",
    "finalized": "how often padding on the right was ended since it was made",
    "coming": "columns that are still announced",
    "ending": "the same of the row that gets the fewest of those that get some",
    "ended": "rows that have all their announced tokens",
    "padding": "columns of padding on the left of the update",
    "joined": "`written` of the batch that an extend adds",
}
"""Numbers before an operation, for the conditions of the ledger."""


class BatchedModel:
    """The reference batches and single caches of one program, by name.

    A name stands for a batch from `open` on. A name that was never opened is a single
    cache, which exists, empty, as soon as it is named.

    Attributes:
        singles: the single caches, as a program of the layer contract.
        batches: the batches.
        saved: what batches were saved as.
        written: for each row, the tags of the last update of a batch; empty if that was
            refused.
        past: what happened to each batch since its last update, for the abstract states.
        reach: bounds the offsets that are drawn.
        last: the operation that was drawn last.
    """

    def __init__(self, config: Config, rows: bool = True) -> None:
        self.config, self.rows = config, rows
        self.reach, self.last = REACH, ""
        self.singles = LayerModel(get_single_config(config), rows)
        self.singles.caches.clear()
        self.batches: dict[str, CountedBatch] = {}
        self.saved: dict[str, CountedBatch] = {}
        self.written: Sequence[range] = ()
        self.past: dict[str, set[str]] = {}

    @property
    def tag(self) -> int:
        """The tag of the next token."""
        return self.singles.tag

    @tag.setter
    def tag(self, tag: int) -> None:
        self.singles.tag = tag

    # --- batches and single caches by name ----------------------------------------------

    def open_row(self) -> Cache:
        return open_cache(self.singles.config)

    def put_batch(self, name: str, batch: CountedBatch) -> None:
        self.drop(name)
        self.batches[name] = batch
        self.past[name] = set()

    def put_single(self, name: str, cache: Cache) -> None:
        self.drop(name)
        self.singles.put_cache(name, cache)

    def drop(self, name: str) -> None:
        """Unbinds a name: what it stood for is used up."""
        self.batches.pop(name, None)
        self.singles.caches.pop(name, None)

    def note_extracted(self, name: str, batch: CountedBatch) -> None:
        """Notes whether a row was taken out of a batch that has arrays."""
        self.singles.updates[name] = Updates(is_none=not batch.written)

    def note_stacked(self, batch: CountedBatch, names: Sequence[str]) -> None:
        """Notes that states are arrays also if they have read no token."""
        is_none = all(self.singles.updates[name].is_none for name in names)
        if self.config["kind"] == "batch-state" and not is_none:
            batch.written = max(batch.written, 1)

    def list_settled(self) -> list[str]:
        """Lists the batches for which no padding is announced."""
        return [name for name, one in self.batches.items() if one.coming is None]

    def ask(self, call: Callable[[], Any]) -> Answer:
        return ask(call)

    def ask_for(self, name: str, call: Callable[[], Any]) -> Answer:
        """Answers with the offsets of a batch after `call`, or its refusal."""
        answer = ask(call)
        return answer if "error" in answer else self.say_offsets(name)

    def say_offsets(self, name: str) -> Answer:
        """Returns the offsets of a batch, as an answer has them."""
        batch = self.batches[name]
        told = self.config["offsets"] == "rows" and batch.coming is None
        return {"offsets": batch.offsets} if told else {}

    # --- what others ask of it; see `Contract.open_model` -------------------------------

    def get_facts(self, op: Op) -> Mapping[str, int]:
        batch, left = self.batches.get(op["cache"]), op.get("left")
        if batch is None:
            offset = self.singles.get(op["cache"]).offset
            found = 0, offset, offset, offset, offset, 0, 0, 0, 0, 0, 0, 0, 0
        else:
            offsets = batch.offsets
            ends = len(offsets), min(offsets), max(offsets), batch.width
            counted = batch.written, batch.turned, batch.is_loaded, batch.finalized
            coming = batch.coming or []
            rest = sorted(count for count in coming if count) or [0]
            joined = self.batches[op["other"]].written if "other" in op else 0
            announced = rest[-1], rest[0], coming.count(0)
            found = *ends, *counted, *announced, max(left or [0]), joined
        return dict(zip(FACTS, found, strict=True))

    def list_rows(self) -> list[tuple[str, Cache]]:
        """Lists all rows and single caches, with their names in words."""
        rows = [
            (f"row {number} of {name}", row)
            for name, batch in self.batches.items()
            for number, row in enumerate(batch.rows)
        ]
        return rows + [
            (f"cache {name}", cache) for name, cache in self.singles.caches.items()
        ]

    def list_live(self) -> Mapping[int, int]:
        rows = self.list_rows()
        return {token.tag: token.position for _, row in rows for token in row.tokens}

    def list_held(self, op: Op) -> Sequence[Held]:
        names = {f"of {op['cache']}", f"cache {op['cache']}"}
        rows = sorted(
            self.list_rows(), key=lambda row: not any(map(row[0].endswith, names))
        )
        return [(name, list_places(row)) for name, row in rows]


def answer_row(row: Cache, count: int) -> list[list[int]]:
    """Lists what the last `count` queries of a row may attend to."""
    queries = range(row.offset - count, row.offset)
    return [get_tags(row.visible(query)) for query in queries]
