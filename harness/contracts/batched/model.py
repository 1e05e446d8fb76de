"""Defines the config of batched programs, and the reference batches and single caches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.layer.model import (
    CONFIG as LAYER_CONFIG,
)
from lockstep.harness.contracts.layer.model import (
    POOL_FIELDS,
    Cache,
    LayerModel,
    Updates,
    get_tags,
    list_places,
)
from lockstep.harness.contracts.layer.model import (
    why_illegal_config as why_illegal_single,
)
from lockstep.harness.contracts.operation import Answer, Config, Held, Op, ask
from lockstep.harness.core.document import Schema
from lockstep.reference.batched import BatchedCache, Row
from lockstep.reference.list import ListCache, Part
from lockstep.reference.rotating import RotatingCache

PREFIX = "batch-"
ALONE = ("batch-kv", "batch-rotating", "batch-state")
LIST = "batch-list"
KINDS = (*ALONE, LIST)

SIZES = ("window", "keep", "record", "chunk")
OF_PARTS = (*SIZES, "heads", "key_dim", "value_dim", "conv_width")
"""The config fields that each part of a list may set separately."""

CONFIG: Mapping[str, Schema] = {
    **{name: LAYER_CONFIG[name] for name in LAYER_CONFIG if name not in POOL_FIELDS},
    "kind": {"enum": list(KINDS)},
    "pads_left": {"type": "boolean", "default": True},
    "offsets": {"enum": ["rows", "none"], "default": "rows"},
    "ring": {"enum": ["any", "columns"], "default": "any"},
    "caches": {
        "type": "array",
        "maxItems": 4,
        "default": [],
        "items": {
            "type": "object",
            "properties": {
                "kind": {"enum": list(ALONE)},
                **{name: LAYER_CONFIG[name] for name in OF_PARTS},
            },
            "required": ["kind"],
            "additionalProperties": False,
        },
    },
}
"""The fields of a single cache, and these additional fields:

* `pads_left`: whether a first update may have padding on the left.
* `offsets`: "none" for a cache that does not report the offset of each row.
* `ring`: "columns" for a ring that counts padding as content, and refuses a trim once it
  has dropped a column.
* `caches`: the parts of a list, each with its kind and the fields that differ."""

MOST_ROWS = 8
"""The maximum number of rows of a batch. Each column of an update consumes this number of
tags."""


def get_single_config(config: Config) -> dict[str, Any]:
    """Returns the config of a single cache with one row."""
    kind = config["kind"].removeprefix(PREFIX)
    fields = {name: LAYER_CONFIG[name].get("default") for name in POOL_FIELDS}
    fields |= {name: config[name] for name in LAYER_CONFIG.keys() & CONFIG.keys()}
    return {**fields, "kind": kind}


def list_part_configs(config: Config) -> list[Config]:
    """Makes a complete config for each cache in a list of caches. For other kinds,
    returns the config itself."""
    if config["kind"] != LIST:
        return [config]
    sizes = {name: LAYER_CONFIG[name].get("default") for name in SIZES}
    return [{**config, **sizes, "caches": [], **member} for member in config["caches"]]


def get_open_config(
    config: Config, rows: int | None, caches: Sequence[Any] | None
) -> dict[str, Any]:
    """Returns the config with which a batch is opened; see `BatchCache`."""
    members = {"parts": list_part_configs(config)} if config["kind"] == LIST else {}
    return {**config, "rows": rows, "caches": caches, **members}


def why_illegal_config(config: Config) -> str | None:
    """Returns the broken rule if the fields of a config do not fit together, else
    None."""
    if (config["kind"] == LIST) != bool(config["caches"]):
        return "caches must be set for a list, and only for a list"
    if config["kind"] == LIST and any(config[name] for name in SIZES):
        return f"a list has no {', '.join(SIZES)} of its own; set them in its caches"
    wrong = (
        why_illegal_single(get_single_config(member))
        for member in list_part_configs(config)
    )
    return next(filter(None, wrong), None)


REACH, LONG_REACH = 48, 1280
"""The largest offsets of short and of long programs. Larger offsets slow every step down
without new coverage."""


FACTS: Mapping[str, str] = {
    "rows": "rows of the batch; 0 of a single cache",
    "shortest": "tokens in its shortest row",
    "longest": "tokens in its longest row",
    "width": "columns that were written since it was empty, padding included",
    "reached": "the largest width since it was opened or freed",
    "ever": "the largest width since it was opened",
    "written": "columns that were written since it was made, with those trimmed",
    "window": "the window, of a list that of its first ring; null without a ring",
    "turned": "columns that were written one at a time into a full ring since the last"
    " update of several",
    "loaded": "1 if it was loaded and no padding on the right was announced since",
    "finalized": "how often padding on the right was ended since it was made",
    "coming": "columns that are still announced",
    "ending": "the same of the row that gets the fewest tokens of those that get some; of"
    " all rows if none gets any",
    "ended": "rows that have all their announced tokens",
    "padding": "columns of padding on the left of the update",
    "joined": "`written` of the batch that an extend adds",
    "kept": "rows that the operation leaves",
    "resized": "1 if it changes the number of rows, otherwise 0",
    "moved": "1 if a row has other tokens afterwards than the one in its place before,"
    " otherwise 0",
}
"""Name → meaning of the numbers before an operation, for the conditions of the ledger."""


def list_parts(cache: Row) -> Sequence[Part]:
    """Lists the caches of one layer."""
    return cache.parts if isinstance(cache, ListCache) else [cache]


def find_window(cache: Row) -> int | None:
    """Returns the window of a ring, or of the first ring in a list; None without
    a ring."""
    rings = (member for member in list_parts(cache) if isinstance(member, RotatingCache))
    return next((ring.window for ring in rings), None)


class CountedBatch(BatchedCache):
    """A reference batch that also counts events on which ledger entries depend.

    Attributes:
        reached: the largest width since the batch was opened or freed.
        ever: the largest width since the batch was opened; some caches keep empty arrays
            with their former rows.
        written: the number of columns written since the batch was made; a trim does not
            lower the number.
        turned: the number of single columns written into a full ring. Counts from 0 again
            after an update with several columns or with padding, because such an update
            sorts the ring by position.
        finalized: the number of calls of `finalize` since the batch was made.
        is_loaded: whether the batch was loaded and no right padding was announced since.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__(rows)
        self.reached = self.ever = self.written = self.width
        self.turned = self.finalized = 0
        self.is_loaded = False
        self.window = find_window(self.rows[0])

    def update(self, length: int, tags: Sequence[Sequence[int]]) -> None:
        is_full = self.window is not None and self.width >= self.window
        in_place = length == 1 and self.coming is None
        self.turned = self.turned + is_full if in_place else 0
        super().update(length, tags)
        self.written += length
        self.note_width()

    def note_width(self) -> None:
        self.reached = max(self.reached, self.width)
        self.ever = max(self.ever, self.width)

    def pad_right(self, lengths: Sequence[int]) -> None:
        super().pad_right(lengths)
        self.is_loaded = False

    def finalize(self) -> None:
        super().finalize()
        self.finalized += 1

    def repeat(self, times: int) -> None:
        self.select([row for row in range(len(self.rows)) for _ in range(times)])

    def extend(self, added: BatchedCache) -> None:
        super().extend(added)
        assert isinstance(added, CountedBatch)
        if self.window is None or (self.turned - added.turned) % self.window:
            self.turned = 0
        self.written = max(self.written, added.written)
        self.finalized = min(self.finalized, added.finalized)
        self.note_width()

    def clone(self) -> CountedBatch:
        copy = super().clone()
        assert isinstance(copy, CountedBatch)
        copy.reached, copy.ever = self.reached, self.ever
        copy.written, copy.turned = self.written, self.turned
        copy.finalized, copy.is_loaded = self.finalized, self.is_loaded
        return copy

    def free(self) -> None:
        super().free()
        self.written = self.turned = self.reached = 0


class BatchedModel:
    """The reference batches and single caches of one program, by name.

    After `open`, a name stands for a batch. A name that was never opened stands for a
    single cache, which exists and is empty from its first use on.

    Attributes:
        singles: the single caches, as the model of a layer program.
        batches: name → batch.
        saved: name → the saved content of a batch.
        written: for each row, the tags of the last update of a batch; empty if that
            update was refused.
        past: batch → its events since its last update, for the abstract states.
        reach: the upper bound of drawn offsets.
        last: the name of the operation that was drawn last.
    """

    def __init__(self, config: Config, rows: bool = True) -> None:
        self.config, self.rows = config, rows
        self.reach, self.last = REACH, ""
        self.tag = 0
        self.singles = self.open_singles()
        self.singles.caches.clear()
        self.batches: dict[str, CountedBatch] = {}
        self.saved: dict[str, CountedBatch] = {}
        self.written: Sequence[range] = ()
        self.past: dict[str, set[str]] = {}

    # --- batches and single caches by name ----------------------------------------------

    def open_singles(self) -> LayerModel:
        return LayerModel(get_single_config(self.config), self.rows)

    def split(self) -> Sequence[BatchedModel]:
        """Returns the models of all parts of a list; for other kinds, of the single
        part."""
        return [self]

    def tell(self, make: Callable[[BatchedModel], Answer]) -> Answer:
        """Returns the answer of `make` for the model, or for each part of a list."""
        return make(self)

    def put_batch(self, name: str, batch: CountedBatch) -> None:
        self.drop(name)
        self.batches[name] = batch
        self.past[name] = set()

    def open_batch(
        self, name: str, rows: int = 0, caches: Sequence[Row] | None = None
    ) -> None:
        opened = [self.singles.open() for _ in range(rows)] if caches is None else caches
        self.put_batch(name, CountedBatch(opened))

    def save(self, name: str, into: str) -> None:
        self.saved[into] = self.batches[name].clone()

    def put_single(self, name: str, cache: Cache) -> None:
        self.drop(name)
        self.singles.put_cache(name, cache)

    def drop(self, name: str) -> None:
        """Removes the name of a batch or single cache that an operation has consumed."""
        self.batches.pop(name, None)
        self.singles.caches.pop(name, None)

    def note_extracted(self, name: str, batch: CountedBatch) -> None:
        """Records whether the batch of an extracted row has arrays."""
        self.singles.updates[name] = Updates(is_none=not batch.written)

    def note_stacked(self, batch: CountedBatch, names: Sequence[str]) -> None:
        """Records that a batch of states has arrays if one of its single caches has
        arrays, even without tokens."""
        is_none = all(self.singles.updates[name].is_none for name in names)
        if self.config["kind"] == "batch-state" and not is_none:
            batch.written = max(batch.written, 1)

    def list_settled(self) -> list[str]:
        """Lists the batches without announced padding."""
        return [name for name, batch in self.batches.items() if batch.coming is None]

    def ask(self, call: Callable[[], Any]) -> Answer:
        return ask(call)

    def ask_for(self, name: str, call: Callable[[], Any]) -> Answer:
        """Runs `call`, and returns the offsets of the batch or the refusal."""
        answer = ask(call)
        return answer if "error" in answer else self.say_offsets(name)

    def say_offsets(self, name: str) -> Answer:
        """Returns the offsets of a batch in the form of an answer."""
        return self.answer_offsets(self.batches[name])

    def answer_offsets(self, batch: BatchedCache) -> Answer:
        facts = self.config["offsets"] == "rows" and batch.coming is None
        return {"offsets": batch.offsets} if facts else {}

    # --- what others ask of it; see `Contract.open_model` -------------------------------

    def get_facts(self, op: Op) -> Mapping[str, int | None]:
        batch = self.batches.get(op["cache"])
        if batch is None:
            cache = self.singles.get(op["cache"])
            names = ("shortest", "longest", "width", "reached", "ever", "written")
            facts = dict.fromkeys(FACTS, 0) | dict.fromkeys(names, cache.offset)
            return {**facts, "window": find_window(cache)}
        rows, coming = list(range(len(batch.rows))), batch.coming or []
        pending = min((count for count in coming if count), default=batch.announced)
        rows_left = list_kept(op, rows)
        return {
            "rows": len(rows),
            "shortest": min(batch.offsets),
            "longest": max(batch.offsets),
            "width": batch.width,
            "reached": batch.reached,
            "ever": batch.ever,
            "written": batch.written,
            "window": batch.window,
            "turned": batch.turned,
            "loaded": batch.is_loaded,
            "finalized": batch.finalized,
            "coming": batch.announced,
            "ending": pending,
            "ended": coming.count(0),
            "padding": max(op.get("left") or [0]),
            "joined": self.batches[op["other"]].written if "other" in op else 0,
            "kept": len(rows_left),
            "resized": len(rows_left) != len(rows),
            "moved": list_tokens(batch.rows)
            != list_tokens(batch.rows[n] for n in rows_left),
        }

    def list_rows(self) -> list[tuple[str, Cache]]:
        """Lists the tokens of all rows and single caches, with their display names."""
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


def list_kept(op: Op, rows: Sequence[int]) -> list[int]:
    """Lists the rows that an operation keeps, in their new order."""
    if "times" in op:
        return [row for row in rows for _ in range(op["times"])]
    kept = op.get("rows", rows) if op["op"] != "open" else rows
    return [row for row in kept if row in rows]


def list_tokens(rows: Iterable[Row]) -> list[list[Any]]:
    return [[member.tokens for member in list_parts(row)] for row in rows]


def answer_row(row: Cache, count: int) -> list[list[int]]:
    """Lists the tokens that each of the last `count` queries of a row may attend to."""
    queries = range(row.offset - count, row.offset)
    return [get_tags(row.visible(query)) for query in queries]
