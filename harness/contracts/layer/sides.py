"""Both sides of a layer program: the reference model, and a backend as its caches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.interface import Array, Mask
from lockstep.harness.contracts.answers import read_object
from lockstep.harness.contracts.operation import (
    Answer,
    Config,
    Held,
    HeldToken,
    Op,
    ask,
)
from lockstep.harness.contracts.recurrence import Recurrence
from lockstep.harness.contracts.system import (
    Column,
    Reader,
    System,
    get_rows,
    judge_attention,
)
from lockstep.harness.core.document import (
    DIMENSION,
    DTYPE,
    WINDOW,
    Schema,
    integer,
    optional,
)
from lockstep.harness.core.payload import get_attention_tolerance
from lockstep.reference.kv import KVCache
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.snapshot import Snapshot
from lockstep.reference.state import StateCache
from lockstep.reference.token import Token

Cache = KVCache | RotatingCache | StateCache

CONFIG: Mapping[str, Schema] = {
    "kind": {"enum": ["kv", "rotating", "state"]},
    "window": optional(WINDOW),
    "keep": {**integer(0, 1024), "default": 0},
    "chunk": optional(WINDOW),
    "step": {**integer(1, 4096), "default": 256},
    "layers": {**integer(1, 1), "default": 1},
    "heads": {**integer(1, 64), "default": 1},
    "key_dim": {**DIMENSION, "default": 4},
    "value_dim": {**DIMENSION, "minimum": 0, "default": 4},
    "conv_width": {**integer(2, 16), "default": 4},
    "dtype": DTYPE,
    "cache_padding": {**integer(1, 1024), "default": 1},
    "mask_padding": {**integer(1, 1024), "default": 1},
    "mask_form": {"enum": ["any", "additive"], "default": "any"},
    "shift": {"type": "boolean", "default": True},
}
"""Beyond the common fields: `keep` sinks of a rotating cache; `chunk` of chunked
attention in a kv cache; `conv_width` of a state; `mask_form` "additive" asks for
numbers."""


def why_illegal_config(config: Config) -> str | None:
    """Names the rule between its fields that a config breaks, or None."""
    kind, window, keep = config["kind"], config["window"], config["keep"]
    if kind == "rotating" and window is None:
        return "a rotating cache needs a window"
    if kind != "rotating" and (window is not None or keep):
        return f"window and keep belong to rotating caches, not to {kind}"
    if kind == "rotating" and keep >= window:
        return f"keep {keep} leaves nothing to rotate in a window of {window}"
    if kind != "kv" and config["chunk"] is not None:
        return f"chunk belongs to kv caches, not to {kind}"
    if kind == "state" and config["value_dim"] == 0:
        return "a state needs a value_dim of at least 1"
    return None


def open_cache(config: Config) -> Cache:
    """Opens the reference for a config."""
    if config["kind"] == "rotating":
        return RotatingCache(config["window"], config["keep"])
    if config["kind"] == "state":
        return StateCache()
    return KVCache(config["chunk"])


REACH, LONG_REACH = 64, 640
"""Offsets beyond the reach of a program show nothing new, but make every step slower. A
few programs reach far, past the growth steps and windows that caches really have."""


class Updates(NamedTuple):
    """Facts about the updates of a cache since it was empty."""

    begun: int = 0
    pending: int = 0
    is_none: bool = False


NO_UPDATES = Updates(is_none=True)


class LayerModel:
    """The reference caches and snapshots of one program, by name.

    A cache exists, empty, as soon as it is named.

    Attributes:
        past: what happened to each cache since its last update, for the abstract states.
        updates: of each cache, for the conditions of the ledger.
        reach: bounds the offsets that are drawn.
        last: the operation that was drawn last.
    """

    def __init__(self, config: Config, rows: bool = True) -> None:
        self.config, self.rows = config, rows
        self.reach, self.last = REACH, ""
        self.tag = 0
        self.caches: dict[str, Cache] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.past: dict[str, set[str]] = {}
        self.updates: dict[str, Updates] = {}
        self.get("a")

    def get(self, name: str) -> Cache:
        if name not in self.caches:
            self.put_cache(name, open_cache(self.config))
        return self.caches[name]

    def put_cache(self, name: str, cache: Cache) -> None:
        self.caches[name] = cache
        self.past[name] = {"unwritten"}
        self.updates[name] = NO_UPDATES

    def find_snapshot(self, name: str | None) -> Snapshot | None:
        return None if name is None else self.snapshots[name]

    def consume(self, name: str | None) -> Snapshot | None:
        """Unbinds a name; returns its snapshot."""
        return None if name is None else self.snapshots.pop(name, None)

    def put_snapshot(
        self, name: str | None, snapshot: Snapshot | None
    ) -> list[int] | None:
        """Binds a snapshot to its name, or unbinds the name; returns the range."""
        self.consume(name)
        if name is not None and snapshot is not None:
            self.snapshots[name] = snapshot
        return get_range(snapshot)

    def ask(self, call: Callable[[], Any]) -> Answer:
        return ask(call)

    def why_illegal_snapshot(self, name: str | None) -> str | None:
        known = name is None or name in self.snapshots
        return None if known else f"there is no snapshot {name}"

    def list_ends(self) -> list[int]:
        """Lists where each snapshot ends."""
        return [snapshot.end for snapshot in self.snapshots.values()]

    def note_update(self, name: str, begin: int, length: int) -> None:
        """Keeps the facts about updates; see `LayerContract.facts`."""
        before = self.updates[name]
        self.updates[name] = Updates(
            max(before.begun, begin),
            0
            if before.is_none or before.pending + length >= self.config["step"]
            else before.pending + length,
        )

    def get_facts(self, op: Op) -> Mapping[str, int]:
        name = op["cache"]
        offset, updates = self.get(name).offset, self.updates[name]
        return {"offset": offset, "begun": updates.begun, "pending": updates.pending}

    def list_live(self) -> Mapping[int, int]:
        caches = self.caches.values()
        return {token.tag: token.position for cache in caches for token in cache.tokens}

    def list_held(self, op: Op) -> Sequence[Held]:
        names = sorted(self.caches, key=lambda name: name != op["cache"])
        return [(f"cache {name}", list_places(self.get(name))) for name in names]


def get_range(snapshot: Any) -> list[int] | None:
    """Returns [begin, end] of a snapshot, the reference's or a backend's."""
    if snapshot is None:
        return None
    read_object(snapshot, ("begin", "end"), "the cache", "a snapshot")
    return [snapshot.begin, snapshot.end]


def list_places(cache: Cache) -> list[HeldToken]:
    """Lists where a cache has its tokens; those before the window are old."""
    older = {token.tag for token in cache.older()}
    return [
        HeldToken(token.tag, token.position, (), token.tag in older)
        for token in cache.tokens
    ]


def get_tags(tokens: Sequence[Token]) -> list[int]:
    return [token.tag for token in tokens]


def get_rows_visible(cache: Cache, begin: int) -> list[list[int]]:
    """Lists the tags that each query from position `begin` on may attend to."""
    return [get_tags(cache.visible(query)) for query in range(begin, cache.offset)]


def answer_tags(cache: Cache) -> Answer:
    return {"tags": sorted(get_tags(cache.state()))}


# --- the system under test --------------------------------------------------------------


class LayerSystem(System):
    """The caches and snapshots of one program in a backend, by name.

    Args:
        layer: tells the payloads of the layers of one model apart.
    """

    writes: Collection[str] = ("update",)

    def __init__(
        self, backend: Backend, config: Config, tags: int, every: bool, layer: int = 0
    ) -> None:
        super().__init__(backend, config, tags, every)
        self.reader = Reader(backend, config, self.limit, layer)
        self.additive = config["dtype"] if config["mask_form"] == "additive" else None
        kind = backend.contracts.get("layer", {}).get(config["kind"])
        self.closes = kind is not None and "close" in kind.operations
        self.caches: dict[str, Any] = {}
        self.snapshots: dict[str, Any] = {}
        self.inputs: dict[str, Sequence[Array]] = {}
        self.last: tuple[Array, Array, Mask, int] | None = None
        self.margin = 0.0

    @cached_property
    def recurrence(self) -> Recurrence:
        """The computation of a recurrent layer."""
        return Recurrence(self.arrays, self.reader.keys, self.config)

    # --- caches and snapshots by name ---------------------------------------------------

    def get(self, name: str) -> Any:
        if name not in self.caches:
            self.caches[name] = self.backend.open(self.config)
        return self.caches[name]

    def put_cache(self, name: str, cache: Any) -> None:
        read_object(cache, ["offset"], "clone", "a cache")
        if self.backend.lifetime == "until-write":
            self.watch.drop(name)
        self.caches[name] = cache

    def find_snapshot(self, name: str | None) -> Any:
        return None if name is None else self.snapshots[name]

    def consume(self, name: str | None) -> Any:
        """The snapshot, whose name is free from now on."""
        return None if name is None else self.snapshots.pop(name, None)

    def put_snapshot(self, name: str | None, snapshot: Any) -> list[int] | None:
        """Binds a snapshot, closing the one that had the name before; one that gets no
        name is closed at once. Returns its range."""
        reported = get_range(snapshot)
        old = self.snapshots.pop(name, None) if name is not None else snapshot
        if old is not None and self.closes:
            self.get("a").close(old)
        if name is not None and snapshot is not None:
            self.snapshots[name] = snapshot
        return reported

    # --- operations that move arrays ----------------------------------------------------

    def update(self, name: str, tags: Sequence[int], tokens: Sequence[Token]) -> Answer:
        """Appends the tokens with these tags and reads what their queries see.

        tokens: all of the cache, in the order of positions, as the reference has them.
        """
        cache, length = self.get(name), len(tags)
        if self.config["kind"] == "state":
            rows, self.inputs[name] = self.recurrence.advance(
                cache, tags, lambda arrays: self.give(name, tags[0], arrays)
            )
            return {"offset": cache.offset, "visible": rows}
        padding = self.config["mask_padding"]
        rows_padded = -(-length // padding) * padding
        keys, values = self.inputs[name] = self.reader.feed(tags)
        self.give(name, tags[0], (keys, values))
        mask = cache.make_mask(length, rows_padded)
        pair = cache.update(keys, values)
        columns = self.reader.read(pair, "update", tokens)
        if self.is_sampled(tags[0]):
            self.watch.keep(name, "update", pair)
        self.last = (*pair, mask, length)
        form = length, rows_padded, self.backend.causal, self.reader.arrays, self.additive
        answer: Answer = {
            "offset": cache.offset,
            "visible": get_rows(columns, mask, *form),
            "columns": columns,
        }
        if self.tells_layout:
            answer["seen"] = get_rows([*range(len(columns))], mask, *form)
        return answer

    def read_all(self, operation: str, name: str, right: Cache) -> Answer:
        """Reads what `state` or `view` returns, less older tokens that may come along.

        Args:
            operation: "state" or "view".
            name: of the cache.
            right: the reference of the cache.
        """
        cache = self.get(name)
        pair = cache.state() if operation == "state" else cache.view()
        if self.config["kind"] == "state":
            columns = self.recurrence.read(pair, operation)
        elif pair is None:
            return {"tags": []}
        else:
            columns = self.reader.read(pair, operation, right.tokens)
        self.watch.keep(name, operation, pair)
        may_come = {token.tag for token in right.older()}
        tags = [column for column in columns if column not in may_come]
        answer: Answer = {"tags": sort_columns(tags)}
        return {**answer, "columns": columns} if self.tells_layout else answer

    # --- checks beside the answer -------------------------------------------------------

    def give(self, name: str, tag: int, arrays: Sequence[Array]) -> None:
        """Before a cache gets arrays, whose first new token has this tag: they are the
        caller's, and not to be written."""
        if self.is_sampled(tag):
            self.watch.keep(name, "update", arrays, "was given")

    def settle(self, op: Op) -> None:
        """Before `op`: whatever it may end must have held until now. Then the arrays
        that the cache was given last are free to be used again."""
        if not self.inputs and not self.watch.kept:
            return
        if self.every:
            self.watch.check()
        if self.backend.lifetime == "until-write" and op["op"] in self.writes:
            name = op.get("cache", "a")
            self.watch.check(lambda cache: cache == name)
            self.watch.drop(name)
            self.overwrite(self.inputs.pop(name, ()))

    def verify_attention(
        self, visible: Callable[[int], Sequence[Token]], tags: Sequence[int], offset: int
    ) -> None:
        """Puts the last update through the framework's attention and compares with the
        reference in double precision, four rows at most: that is slow. Its tokens have
        these tags, and end at `offset`."""
        sampled = self.last is not None and self.is_sampled(tags[0])
        if self.last is None or not sampled or not self.config["value_dim"]:
            return
        keys, values, mask, length = self.last
        self.last = None
        if mask is not None and not isinstance(mask, str):
            mask = mask[..., :length, :]
        queries = self.reader.queries.get_vectors(tags)
        arrays, dtype, dim = self.arrays, self.config["dtype"], self.config["key_dim"]
        framework = arrays.from_numpy(queries, dtype)
        got = arrays.to_numpy(arrays.attend(framework, keys, values, mask))
        for row in {0, length // 3, 2 * length // 3, length - 1}:
            seen = [token.tag for token in visible(offset - length + row)]
            wanted = self.reader.compute_row(tags[row], seen)
            allowed = get_attention_tolerance(
                dtype, dim, len(seen), self.backend.tolerance
            )
            share = judge_attention(got[0, :, row], wanted, allowed, row, "update")
            self.margin = max(self.margin, share)


def sort_columns(columns: Sequence[Column]) -> list[Any]:
    """Tags first, in order; then words."""
    tags: list[Any] = [column for column in columns if not isinstance(column, str)]
    words = [column for column in columns if isinstance(column, str)]
    return [*sorted(tags), *sorted(words)]
