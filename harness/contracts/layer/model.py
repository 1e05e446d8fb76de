"""The config of a layer program, and the reference model of its caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.operation import Answer, Held, Op, Place
from lockstep.harness.core.document import (
    DIMENSION,
    DTYPE,
    WINDOW,
    Schema,
    integer,
    optional,
)
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


def why_not_config(config: Mapping[str, Any]) -> str | None:
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


def open_cache(config: Mapping[str, Any]) -> Cache:
    """Opens the reference for a config."""
    if config["kind"] == "rotating":
        return RotatingCache(config["window"], config["keep"])
    if config["kind"] == "state":
        return StateCache()
    return KVCache(config["chunk"])


REACH, LONG_REACH = 64, 640
"""Offsets beyond the reach of a program show nothing new, but make every step slower. A
few programs reach far, past the growth steps and windows that caches really have."""


class LayerModel:
    """The reference caches and snapshots of one program, by name.

    A cache exists, empty, as soon as it is named.

    Attributes:
        past: what happened to each cache since its last update, for the abstract states.
        reach: bounds the offsets that are drawn.
        last: the operation that was drawn last.
    """

    def __init__(self, config: Mapping[str, Any], rows: bool = True) -> None:
        self.config, self.rows = config, rows
        self.reach, self.last = REACH, ""
        self.tag = 0
        self.caches: dict[str, Cache] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.past: dict[str, set[str]] = {}
        self.get("a")

    def get(self, name: str) -> Cache:
        if name not in self.caches:
            self.put_cache(name, open_cache(self.config))
        return self.caches[name]

    def put_cache(self, name: str, cache: Cache) -> None:
        self.caches[name] = cache
        self.past[name] = {"unwritten"}

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

    def why_not_snapshot(self, name: str | None) -> str | None:
        known = name is None or name in self.snapshots
        return None if known else f"there is no snapshot {name}"

    def list_ends(self) -> list[int]:
        """Lists where each snapshot ends."""
        return [snapshot.end for snapshot in self.snapshots.values()]

    def get_facts(self, op: Op) -> Mapping[str, int]:
        return {"offset": self.get(op["cache"]).offset}

    def list_live(self) -> Mapping[int, int]:
        caches = self.caches.values()
        return {token.tag: token.position for cache in caches for token in cache.tokens}

    def list_held(self, op: Op) -> Sequence[Held]:
        names = sorted(self.caches, key=lambda name: name != op["cache"])
        return [(f"cache {name}", list_places(self.get(name))) for name in names]


def get_range(snapshot: Any) -> list[int] | None:
    """Returns [begin, end] of a snapshot, the reference's or a backend's."""
    return None if snapshot is None else [snapshot.begin, snapshot.end]


def list_places(cache: Cache) -> list[Place]:
    """Lists where a cache has its tokens; those before the window are old."""
    older = {token.tag for token in cache.older()}
    return [
        Place(token.tag, token.position, (), token.tag in older) for token in cache.tokens
    ]


def get_tags(tokens: Sequence[Token]) -> list[int]:
    return [token.tag for token in tokens]


def get_rows_visible(cache: Cache, begin: int) -> list[list[int]]:
    """Lists the tags that each query from position `begin` on may attend to."""
    return [get_tags(cache.visible(query)) for query in range(begin, cache.offset)]


def answer_tags(cache: Cache) -> Answer:
    return {"tags": sorted(get_tags(cache.state()))}
