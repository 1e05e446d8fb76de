"""Defines the config of a layer program, and the reference caches and snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lockstep.harness.contracts.answers import read_object, require_index
from lockstep.harness.contracts.operation import (
    Answer,
    Config,
    Held,
    HeldToken,
    Op,
    ask,
)
from lockstep.harness.core.document import (
    DIMENSION,
    DTYPE,
    SCOPE,
    VARIANT,
    WINDOW,
    Schema,
    integer,
    optional,
)
from lockstep.reference.kv import KVCache
from lockstep.reference.pooled import PooledCache
from lockstep.reference.rotating import RotatingCache
from lockstep.reference.snapshot import Snapshot
from lockstep.reference.state import StateCache
from lockstep.reference.token import Token

Cache = KVCache | RotatingCache | StateCache | PooledCache

CONFIG: Mapping[str, Schema] = {
    "kind": {"enum": ["kv", "rotating", "state", "pooled"]},
    "window": optional(WINDOW),
    "keep": {**integer(0, 1024), "default": 0},
    "record": {"type": "boolean", "default": False},
    "chunk": optional(WINDOW),
    "pool": optional(WINDOW),
    "overlap": {**integer(0, 1024), "default": 0},
    "lookahead": {**integer(0, 1024), "default": 0},
    "step": {**integer(1, 4096), "default": 256},
    "layers": {**integer(1, 1), "default": 1},
    "heads": {**integer(1, 64), "default": 1},
    "key_dim": {**DIMENSION, "default": 4},
    "value_dim": {**DIMENSION, "minimum": 0, "default": 4},
    "conv_width": {**integer(2, 16), "default": 4},
    "dtype": DTYPE,
    "special_numbers": {"type": "boolean", "default": False},
    "cache_padding": {**integer(1, 1024), "default": 1},
    "mask_padding": {**integer(1, 1024), "default": 1},
    "mask_form": {"enum": ["any", "additive"], "default": "any"},
    "shift": {"type": "boolean", "default": True},
    "variant": VARIANT,
    "scope": SCOPE,
}
"""The fields that only layer caches have:

* `keep`: the number of sink tokens of a rotating cache.
* `record`: whether a rotating cache records evicted tokens, for later trims.
* `chunk`: the chunk size for chunked attention in a kv cache.
* `pool`, `overlap`, `lookahead`: of a pooled cache, see `reference.pooled`.
* `conv_width`: the convolution width of a state.
* `mask_form`: the form of masks; "additive" requests numbers.

Three fields change no answer:

* `special_numbers`: whether K and V also hold NaN, infinities, -0 and subnormal numbers;
  see `core.payload`.
* `variant`: the index of one of several equivalent code paths; 0 for the default choice.
* `scope`: see `Backend.scopes`."""


POOL_FIELDS = ("pool", "overlap", "lookahead")


def why_illegal_config(config: Config) -> str | None:
    """Returns the broken rule if the fields of a config do not fit together, else
    None."""
    kind, window, keep = config["kind"], config["window"], config["keep"]
    if kind == "rotating" and window is None:
        return "a rotating cache needs a window"
    if kind != "rotating" and (window is not None or keep or config["record"]):
        return (
            "window, keep and record are fields of rotating caches only; leave them"
            f" out for {kind}"
        )
    if kind == "rotating" and keep >= window:
        return (
            f"keep must be less than the window, but keep is {keep} and window is"
            f" {window}"
        )
    if kind != "kv" and config["chunk"] is not None:
        return f"chunk is a field of kv caches only; leave it out for {kind}"
    pool, overlap, lookahead = (config[name] for name in POOL_FIELDS)
    if kind == "pooled" and pool is None:
        return "a pooled cache needs a pool"
    if kind != "pooled" and (pool is not None or overlap or lookahead):
        names = ", ".join(POOL_FIELDS)
        return f"{names} are fields of pooled caches only; leave them out for {kind}"
    if kind == "pooled" and overlap > pool:
        return f"overlap must be at most the pool, but overlap is {overlap}, pool {pool}"
    if kind == "pooled" and config["special_numbers"]:
        return "a pooled cache cannot have special_numbers: means do not keep them"
    if kind == "state" and config["value_dim"] == 0:
        return "value_dim of a state must be at least 1"
    return None


def open_cache(config: Config) -> Cache:
    """Opens the reference for a config."""
    if config["kind"] == "rotating":
        return RotatingCache(config["window"], config["keep"], config["record"])
    if config["kind"] == "pooled":
        return PooledCache(*(config[name] for name in POOL_FIELDS))
    if config["kind"] == "state":
        return StateCache()
    return KVCache(config["chunk"])


REACH, LONG_REACH = 64, 2304
"""The largest offsets of short and of long programs. Larger offsets slow every step down
without new coverage. Long programs exceed the growth steps and windows of real caches."""


class Updates(NamedTuple):
    """Facts about the updates of a cache since the cache was last empty."""

    begun: int = 0
    pending: int = 0
    written: int = 0
    is_none: bool = False


NO_UPDATES = Updates(is_none=True)


class LayerModel:
    """The reference caches and snapshots of one program, by name.

    A cache exists, empty, as soon as it is named.

    Attributes:
        past: cache → its events since its last update, for the abstract states.
        updates: cache → facts about its updates, for the conditions of the ledger.
        reach: the upper bound of drawn offsets.
        last: the name of the operation that was drawn last.
        taken: snapshot → the tag of the next token when the snapshot got its name.
    """

    def __init__(self, config: Config, rows: bool = True) -> None:
        self.config, self.rows = config, rows
        self.reach, self.last = REACH, ""
        self.tag = 0
        self.caches: dict[str, Cache] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.past: dict[str, set[str]] = {}
        self.updates: dict[str, Updates] = {}
        self.taken: dict[str, int] = {}
        self.get("a")

    def get(self, name: str) -> Cache:
        if name not in self.caches:
            self.put_cache(name, self.open())
        return self.caches[name]

    def open(self) -> Cache:
        return open_cache(self.config)

    def tell(self, cache: Any, make: Callable[[Any], Answer]) -> Answer:
        """Returns a cache's answer, or the answers of all parts of a list."""
        return make(cache)

    def put_cache(self, name: str, cache: Cache) -> None:
        self.caches[name] = cache
        self.past[name] = {"unwritten"}
        self.updates[name] = NO_UPDATES

    def find_snapshot(self, name: str | None) -> Snapshot | None:
        return None if name is None else self.snapshots[name]

    def consume(self, name: str | None) -> None:
        """Removes the name of a snapshot that an operation has consumed."""
        if name is not None:
            self.snapshots.pop(name, None)

    close = consume

    def put_snapshot(
        self, name: str | None, snapshot: Snapshot | None, cache: str
    ) -> list[int] | None:
        """Stores a snapshot under a name, and returns its range. If the snapshot is None,
        removes the name instead."""
        self.consume(name)
        if name is not None and snapshot is not None:
            self.snapshots[name] = snapshot
            self.taken[name] = self.tag
        return get_range(snapshot)

    def ask(self, call: Callable[[], Any]) -> Answer:
        return ask(call)

    def get_age(self, name: str) -> int:
        """Counts the tokens that were written since a snapshot got its name."""
        return self.tag - self.taken.get(name, self.tag)

    def why_illegal_snapshot(self, name: str | None) -> str | None:
        is_known = name is None or name in self.snapshots
        return None if is_known else f"there is no snapshot {name}"

    def list_ends(self) -> list[int]:
        """Lists the end position of each snapshot."""
        return [snapshot.end for snapshot in self.snapshots.values()]

    def note_update(self, name: str, begin: int, length: int) -> None:
        """Updates the facts about a cache's updates; see `LayerContract.facts`."""
        updates = self.updates[name]
        self.updates[name] = Updates(
            max(updates.begun, begin),
            0
            if updates.is_none or updates.pending + length >= self.config["step"]
            else updates.pending + length,
            updates.written + length,
        )

    def note_trim(self, name: str) -> None:
        self.updates[name] = self.updates[name]._replace(written=0)

    def note_rewind(self, name: str, offset: int) -> None:
        """Records that a cache went back from `offset`."""
        self.past[name].add("rewind")
        pool = self.config["pool"]
        if pool and self.get(name).offset // pool < offset // pool:
            self.past[name].add("reopened")

    def get_facts(self, op: Op) -> Mapping[str, int]:
        name = op["cache"]
        offset = self.get(name).offset
        *facts, _ = self.updates[name]
        names = ("offset", "begun", "pending", "written")
        return dict(zip(names, (offset, *facts), strict=True))

    def list_live(self) -> Mapping[int, int]:
        caches = self.caches.values()
        return {token.tag: token.position for cache in caches for token in cache.tokens}

    def list_held(self, op: Op) -> Sequence[Held]:
        names = sorted(self.caches, key=lambda name: name != op["cache"])
        return [(f"cache {name}", list_places(self.get(name))) for name in names]


def get_range(snapshot: Any) -> list[int] | None:
    """Returns [begin, end] of a snapshot of the reference or of a backend."""
    if snapshot is None:
        return None
    names = "begin", "end"
    read_object(snapshot, names, "the cache", "a snapshot")
    return [
        require_index(getattr(snapshot, name), f"{name} of a snapshot") for name in names
    ]


def list_places(cache: Cache) -> list[HeldToken]:
    """Lists a cache's tokens with positions. Tokens before the window are marked as old,
    because the backend may have dropped them."""
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


def answer_offset(cache: Any) -> Answer:
    return {"offset": cache.offset}


def answer_size(cache: Any) -> Answer:
    return {"size": cache.size()}


def answer_tags(cache: Cache) -> Answer:
    return {"tags": sorted(get_tags(cache.state()))}
