"""Both sides of a layer program: the reference model, and a backend as its caches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.interface import Array, Mask
from lockstep.harness.contracts.answers import read_object
from lockstep.harness.contracts.layer.memory import LayerMemory
from lockstep.harness.contracts.layer.snapshots import OpenSnapshots, call_aside
from lockstep.harness.contracts.operation import (
    Answer,
    Config,
    Held,
    HeldToken,
    Op,
    ask,
)
from lockstep.harness.contracts.recurrence import Recurrence, get_state_shapes
from lockstep.harness.contracts.system import (
    Column,
    Reader,
    System,
    get_rows,
    judge_attention,
    read_mask,
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
from lockstep.harness.core.payload import Margins, get_attention_tolerance
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
    "record": {"type": "boolean", "default": False},
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
    "variant": VARIANT,
    "scope": SCOPE,
}
"""Beyond the common fields: `keep` sinks of a rotating cache, and whether it can `record`
what slides out, for later trims; `chunk` of chunked attention in a kv cache; `conv_width`
of a state; `mask_form` "additive" asks for numbers. Two change no answer: `variant`, the
number of one of several ways that a cache has to do the same, 0 for the one that it would
choose; `scope`, see `Backend.scopes`."""


def why_illegal_config(config: Config) -> str | None:
    """Names the rule between its fields that a config breaks, or None."""
    kind, window, keep = config["kind"], config["window"], config["keep"]
    if kind == "rotating" and window is None:
        return "a rotating cache needs a window"
    if kind != "rotating" and (window is not None or keep or config["record"]):
        return f"window, keep and record belong to rotating caches, not to {kind}"
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
        return RotatingCache(config["window"], config["keep"], config["record"])
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
    written: int = 0
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
        taken: the tag at which each snapshot got its name.
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
        """Returns the answer that a cache gives; of a list, the answers of its parts."""
        return make(cache)

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
        self, name: str | None, snapshot: Snapshot | None, cache: str
    ) -> list[int] | None:
        """Binds a snapshot of a cache to its name, or unbinds the name; returns the
        range."""
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
            before.written + length,
        )

    def note_trim(self, name: str) -> None:
        self.updates[name] = self.updates[name]._replace(written=0)

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


def answer_offset(cache: Any) -> Answer:
    return {"offset": cache.offset}


def answer_size(cache: Any) -> Answer:
    return {"size": cache.size()}


def answer_tags(cache: Cache) -> Answer:
    return {"tags": sorted(get_tags(cache.state()))}


# --- the system under test --------------------------------------------------------------


class LayerSystem(System):
    """The caches and snapshots of one program in a backend, by name.

    Args:
        declared: of the kind, or of the prefix kind whose layer this is.
        layer: tells the payloads of the layers of one model apart.
    """

    writes: Collection[str] = ("update",)

    def __init__(
        self,
        backend: Backend,
        declared: Kind,
        config: Config,
        tags: int,
        every: bool,
        layer: int = 0,
    ) -> None:
        super().__init__(backend, declared, config, tags, every)
        self.reader = Reader(backend, config, self.limit, layer)
        self.additive = config["dtype"] if config["mask_form"] == "additive" else None
        self.snapshots = OpenSnapshots("close" in declared.operations)
        self.caches: dict[str, Any] = {}
        # What is quantized, or left to no later query by chunks, may take less.
        is_exact = not backend.tolerance and config["chunk"] is None
        self.memory = LayerMemory(config, declared.held, is_exact)
        self.open: Mapping[str, Snapshot] = {}  # the reference's snapshots
        self.last: tuple[Array, Array, Mask, int] | None = None
        self.attention = 0.0

    @property
    def margins(self) -> Margins:  # type: ignore[override]  # read only
        return {"attention": self.attention, "storage": self.reader.margin}

    @cached_property
    def recurrence(self) -> Recurrence:
        """The computation of a recurrent layer."""
        return Recurrence(self.arrays, self.reader.keys, self.config)

    # --- caches and snapshots by name ---------------------------------------------------

    def get(self, name: str) -> Any:
        if name not in self.caches:
            self.caches[name] = self.backend.open(self.config)
            self.memory.own(self.caches[name])
        return self.caches[name]

    def put_cache(self, name: str, cache: Any) -> None:
        read_object(cache, ["offset"], "clone", "a cache")
        if self.backend.lifetime == "until-write":
            self.watch.drop(name)
        self.caches[name] = cache

    def drop(self, name: str) -> None:
        """Unbinds a name: its cache is used up."""
        self.memory.owned.pop(id(self.caches.pop(name, None)), None)

    def tell(self, cache: Any, make: Callable[[Any], Answer]) -> Answer:
        """Returns the answer that a cache gives; of a list, the answers of its parts."""
        return make(cache)

    def find_snapshot(self, name: str | None) -> Any:
        return self.snapshots.find(name)

    def consume(self, name: str | None) -> Any:
        """The snapshot, whose name is free from now on."""
        return self.snapshots.consume(name)

    def put_snapshot(
        self, name: str | None, snapshot: Any, cache: str
    ) -> list[int] | None:
        """Binds a snapshot that a cache has made, see `OpenSnapshots.bind`; returns its
        range."""
        reported = get_range(snapshot)
        self.snapshots.bind(name, snapshot, self.get(cache))
        return reported

    # --- operations that move arrays ----------------------------------------------------

    def update(self, name: str, tags: Sequence[int], tokens: Sequence[Token]) -> Answer:
        """Appends the tokens with these tags and reads what their queries see.

        tokens: all of the cache, in the order of positions, as the reference has them.
        """
        cache, length = self.get(name), len(tags)
        if self.config["kind"] == "state":
            rows = self.recurrence.advance(cache, tags, partial(self.write, name))
            return {"offset": cache.offset, "visible": rows}
        padding = self.config["mask_padding"]
        rows_padded = -(-length // padding) * padding
        given = self.reader.feed(tags)
        mask = cache.make_mask(length, rows_padded)
        with self.lend(name, "update", given):
            pair = cache.update(*given)
            columns = self.reader.read(pair, "update", tokens)
            if self.every:
                self.watch.keep(name, "update", pair)
                self.last = (*pair, mask, length)
        mask = read_mask(mask, self.arrays, self.additive)
        form = length, rows_padded, self.backend.causal
        answer: Answer = {
            "offset": cache.offset,
            "visible": get_rows(columns, mask, *form),
            "columns": columns,
        }
        if self.tells_layout:
            answer["seen"] = get_rows([*range(len(columns))], mask, *form)
        return answer

    def write(self, name: str, conv: Array, delta: Array, length: int) -> None:
        """Writes the state after `length` more tokens."""
        with self.lend(name, "update", (conv, delta)):
            self.get(name).write(conv, delta, length)

    def update_wrongly(self, name: str, wrong: str, length: int) -> Answer:
        """Writes arrays of another form; see `operations.FORMS`."""
        cache, config = self.get(name), dict(self.config)
        batch = 2 if wrong == "batch" else 1
        dtype = "float32" if wrong == "dtype" else config["dtype"]
        if wrong in ("heads", "key_dim", "value_dim"):
            config[wrong] += 1
        if config["kind"] == "state":
            if wrong == "length":
                return self.ask(lambda: cache.boundaries(0) and None)
            conv, delta = get_state_shapes(config, batch)
            state = self.make_zeros(conv, dtype), self.make_zeros(delta, "float32")
            return self.ask(lambda: cache.write(*state, length))
        heads, more = config["heads"], wrong == "length"
        keys = self.make_zeros((batch, heads, length, config["key_dim"]), dtype)
        values = self.make_zeros(
            (batch, heads, length + more, config["value_dim"]), dtype
        )
        cache.make_mask(length, length)
        return self.ask(lambda: cache.update(keys, values) and None)

    def make_zeros(self, shape: Sequence[int], dtype: str) -> Array:
        return self.arrays.from_numpy(np.zeros(shape, np.float32), dtype)

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

    def check_aliases(self, op: Op) -> None:
        """Before `op`: whatever it may end must have held until now."""
        if not self.watch.kept:
            return
        if self.every:
            self.watch.check()
        if self.backend.lifetime == "until-write" and op["op"] in self.writes:
            name = op.get("cache", "a")
            self.watch.check(name)
            self.watch.drop(name)

    def cut_mask(self, mask: Array, length: int) -> Array:
        """Cuts padding rows off a mask; gives it two axes, without which frameworks
        do not take one."""
        missing = 2 - self.arrays.to_numpy(mask).ndim
        return mask[(None,) * missing] if missing > 0 else mask[..., :length, :]

    def verify_memory(self, op: Op, model: LayerModel) -> None:
        if self.declared.held is None:
            return
        cache, memory = self.get(op["cache"]), self.memory
        if op["op"] == "clone":
            memory.own(self.get(op["into"]), like=cache)
        if op["op"] == "free":
            memory.reset(cache)
        memory.note(cache, model.get(op["cache"]), op.get("length", 0))
        self.open = model.snapshots
        if self.every:
            self.check_memory()

    def check_memory(self) -> None:
        if self.declared.held is not None:
            self.memory.weigh(self.open.values())
            self.memory.check()

    def finish(self) -> None:
        """Checks arrays and memory; then closes and frees everything, if both are
        declared, and checks that nothing is left."""
        super().finish()
        self.check_memory()
        if (
            self.declared.held is not None
            and {"close", "free"} <= self.declared.operations
        ):
            self.snapshots.close_all()
            for owned in self.memory.owned.values():
                call_aside(owned.cache.free, "free", "freeing a cache, at the end")
            self.memory.check_released()

    def verify_update(self, right: Cache, tags: Sequence[int]) -> None:
        """Checks the attention over what the last update of a cache returned."""
        self.verify_attention(right.visible, tags, right.offset)

    def verify_attention(
        self, visible: Callable[[int], Sequence[Token]], tags: Sequence[int], offset: int
    ) -> None:
        """Puts the last update through the framework's attention and compares with the
        reference in double precision, four rows at most: that is slow. Its tokens have
        these tags, and end at `offset`."""
        if self.last is None or not self.config["value_dim"]:
            return
        keys, values, mask, length = self.last
        self.last = None
        if mask is not None and not isinstance(mask, str):
            mask = self.cut_mask(mask, length)
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
            self.attention = max(self.attention, share)


def sort_columns(columns: Sequence[Column]) -> list[Any]:
    """Tags first, in order; then words."""
    tags: list[Any] = [column for column in columns if not isinstance(column, str)]
    words = [column for column in columns if isinstance(column, str)]
    return [*sorted(tags), *sorted(words)]
