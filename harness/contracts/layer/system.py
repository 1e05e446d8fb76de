"""Runs a layer program on a backend: its caches and snapshots, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from lockstep.harness.backends.interface import Array, Mask
from lockstep.harness.contracts.answers import read_object
from lockstep.harness.contracts.layer.model import (
    Cache,
    LayerModel,
    get_range,
    get_tags,
)
from lockstep.harness.contracts.layer.pooled import PooledReader
from lockstep.harness.contracts.memory import LayerMemory
from lockstep.harness.contracts.operation import Answer, Config, Op
from lockstep.harness.contracts.recurrence import Recurrence, get_state_shapes
from lockstep.harness.contracts.system import (
    Column,
    Reader,
    Setup,
    System,
    explain_nan,
    get_rows,
    read_mask,
    sort_columns,
)
from lockstep.harness.core.errors import Broken, format_raised
from lockstep.harness.core.payload import Margins
from lockstep.reference.snapshot import Snapshot
from lockstep.reference.token import Token


class OpenSnapshot(NamedTuple):
    """A snapshot, and the cache that made it, even if the cache no longer has a name."""

    snapshot: Any
    maker: Any


class LayerSystem(System):
    """The caches and open snapshots of one program in a backend, by name."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        backend, declared, config = self.backend, self.declared, self.config
        sizes = backend, config, self.limit, setup.layer
        self.reader = Reader(*sizes)
        self.returned = PooledReader(*sizes) if config["pool"] else self.reader
        self.additive = config["dtype"] if config["mask_form"] == "additive" else None
        self.snapshots: dict[str | None, OpenSnapshot] = {}
        self.caches: dict[str, Any] = {}
        # A quantized token or a token before the current chunk may take fewer bytes.
        is_exact = not backend.tolerance and config["chunk"] is None
        self.memory = LayerMemory(config, declared.held, is_exact)
        self.open: Mapping[str, Snapshot] = {}  # the reference's snapshots
        self.last: tuple[Array, Array, Mask, int] | None = None

    @property
    def margins(self) -> Margins:  # type: ignore[override]  # read only
        return {"attention": self.returned.attention, "storage": self.returned.margin}

    @cached_property
    def recurrence(self) -> Recurrence:
        """The computation of a recurrent layer."""
        return Recurrence(self.arrays, self.reader.keys, self.config)

    # --- caches and snapshots by name ---------------------------------------------------

    def get(self, name: str) -> Any:
        if name not in self.caches:
            self.caches[name] = self.backend.open(self.config)
            self.memory.open(self.caches[name])
        return self.caches[name]

    def put_cache(self, name: str, cache: Any) -> None:
        read_object(cache, ["offset"], "clone", "a cache")
        if self.backend.lifetime == "until-write":
            self.watch.drop(name)
        self.caches[name] = cache

    def drop(self, name: str) -> None:
        """Removes the name of a cache that an operation has consumed."""
        self.memory.rooms.pop(id(self.caches.pop(name, None)), None)

    def tell(self, cache: Any, make: Callable[[Any], Answer]) -> Answer:
        """Returns a cache's answer, or the answers of all parts of a list."""
        return make(cache)

    def find_snapshot(self, name: str | None) -> Any:
        return None if name is None else self.snapshots[name].snapshot

    def consume(self, name: str | None) -> None:
        """Removes the name of a snapshot that an operation has consumed."""
        self.snapshots.pop(name, None)

    def put_snapshot(
        self, name: str | None, snapshot: Any, cache: str
    ) -> list[int] | None:
        """Gives a new snapshot a name, and returns its range.

        If an earlier snapshot had this name, closes the earlier snapshot. If there is no
        name, closes the new snapshot.
        """
        reported = get_range(snapshot)
        opened = None if snapshot is None else OpenSnapshot(snapshot, self.get(cache))
        if name is None:
            self.discard(opened, "a capture that gets no name")
            return reported
        old = self.snapshots.pop(name, None)
        self.discard(old, f"{name}, whose name this step gives to another snapshot")
        if opened is not None:
            self.snapshots[name] = opened
        return reported

    def close(self, name: str) -> None:
        opened = self.snapshots.pop(name)
        opened.maker.close(opened.snapshot)

    def discard(self, opened: OpenSnapshot | None, description: str) -> None:
        """Closes a snapshot outside of the program; see `call_aside`."""
        if opened is not None and "close" in self.declared.operations:
            close, snapshot = opened.maker.close, opened.snapshot
            call_aside(
                lambda: close(snapshot), "close", f"closing snapshot {description}"
            )

    # --- operations that move arrays ----------------------------------------------------

    def update(self, name: str, tags: Sequence[int], reference: Any) -> Answer:
        """Appends the tokens with these tags; reads the tokens that their queries see.

        Args:
            name: the name of the cache.
            tags: the tags of the new tokens.
            reference: the reference of the cache, after the update.
        """
        cache, length = self.get(name), len(tags)
        if self.config["kind"] == "state":
            rows = self.recurrence.advance(cache, tags, partial(self.write, name))
            return {"offset": cache.offset, "visible": rows}
        padding = self.config["mask_padding"]
        rows_padded = -(-length // padding) * padding
        pair_given = self.reader.feed(tags)
        mask = cache.make_mask(length, rows_padded)
        with self.lend(name, "update", pair_given):
            pair = cache.update(*pair_given)
            columns = self.returned.read(pair, "update", self.returned.expect(reference))
            if self.every:
                self.watch.keep(name, "update", pair)
            if self.attends:
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
        """Writes arrays of a wrong form; see `operations.FORMS`."""
        cache, config = self.get(name), self.config
        if config["kind"] == "state" and wrong == "length":
            return self.ask(lambda: cache.boundaries(0) and None)
        pair = self.make_wrong(config, wrong, 1, length)
        if config["kind"] == "state":
            return self.ask(lambda: cache.write(*pair, length))
        cache.make_mask(length, length)
        return self.ask(lambda: cache.update(*pair) and None)

    def make_wrong(
        self, config: Config, wrong: str | None, batch: int, length: int
    ) -> tuple[Array, Array]:
        """Makes K and V, or a state, of which one property is wrong.

        Args:
            config: the config of the cache.
            wrong: see `operations.FORMS`; None if nothing is wrong.
            batch, length: the correct sizes.
        """
        sizes = dict(config)
        if wrong in ("heads", "key_dim", "value_dim"):
            sizes[wrong] += 1
        batch += wrong == "batch"
        dtypes = ["float32" if wrong == "dtype" else config["dtype"]] * 2
        if config["kind"] == "state":
            shapes: Sequence[Sequence[int]] = get_state_shapes(sizes, batch)
            dtypes[1] = "float32"
        else:
            lengths = length, length + (wrong == "length")
            dims = sizes["key_dim"], sizes["value_dim"]
            pairs = zip(lengths, dims, strict=True)
            shapes = [(batch, sizes["heads"], *pair) for pair in pairs]
        if wrong == "rank":
            shapes = [shape[1:] if length % 2 else (1, *shape) for shape in shapes]
        keys, values = (np.zeros(shape, np.float32) for shape in shapes)
        first, second = dtypes
        made = self.arrays.from_numpy(keys, first), self.arrays.from_numpy(values, second)
        return made

    def read_all(self, operation: str, name: str, reference: Cache) -> Answer:
        """Lists the tokens in the result of `state` or `view`. Leaves out the tokens that
        the cache need not keep: it may return or omit them.

        Args:
            operation: "state" or "view".
            name: the name of the cache.
            reference: the reference of the cache.
        """
        cache = self.get(name)
        pair = cache.state() if operation == "state" else cache.view()
        if self.config["kind"] == "state":
            columns = self.recurrence.read(pair, operation)
        elif pair is None:
            return {"tags": []}
        else:
            columns = self.returned.read(pair, operation, self.returned.expect(reference))
        self.watch.keep(name, operation, pair)
        tags = leave_out_older(columns, reference)
        answer: Answer = {"tags": sort_columns(tags)}
        return {**answer, "columns": columns} if self.tells_layout else answer

    # --- checks beside the answer -------------------------------------------------------

    def cut_mask(self, mask: Array, length: int) -> Array:
        """Returns the mask without padding rows and with at least two axes, as frameworks
        require."""
        missing = 2 - self.arrays.to_numpy(mask).ndim
        return mask[(None,) * missing] if missing > 0 else mask[..., :length, :]

    def verify_memory(self, op: Op, model: LayerModel) -> None:
        if self.declared.held is None:
            return
        cache, memory = self.get(op["cache"]), self.memory
        if op["op"] == "clone":
            # A clone may allocate the same space.
            memory.open(self.get(op["into"])).columns = memory.open(cache).columns
        if op["op"] == "free":
            memory.reset(cache)
        memory.note(cache, model.get(op["cache"]), op.get("length", 0))
        self.open = model.snapshots
        if self.is_weighed():
            self.check_memory()

    def check_memory(self) -> None:
        if self.declared.held is not None:
            self.memory.store(self.open.values())
            self.memory.check()

    def finish(self) -> None:
        """Checks arrays and memory at the end of the program.

        If the backend reports its memory and declares `close` and `free`, also closes
        and frees everything, and checks that the memory is released.
        """
        super().finish()
        self.check_memory()
        declares = {"close", "free"} <= self.declared.operations
        if self.declared.held is not None and declares:
            for name, opened in self.snapshots.items():
                self.discard(opened, f"{name}, at the end")
            for cache in self.memory.list_caches():
                call_aside(cache.free, "free", "freeing a cache, at the end")
            self.memory.check_released()

    def verify_update(self, reference: Cache, tags: Sequence[int]) -> None:
        """Checks the attention over the arrays from the last update of a cache."""
        self.verify_attention(reference.visible, tags, reference.offset)

    def verify_attention(
        self, visible: Callable[[int], Sequence[Token]], tags: Sequence[int], offset: int
    ) -> None:
        """Runs the framework's attention on the last update and checks the result.

        At most four rows are compared with the double-precision reference, which is slow.
        The tokens of the update have the given tags and end at `offset`.
        """
        last, self.last = self.last, None
        if last is None or not self.config["value_dim"] or not visible(offset - 1):
            return
        keys, values, mask, length = last
        if mask is not None and not isinstance(mask, str):
            mask = self.cut_mask(mask, length)
        queries = self.reader.queries.get_vectors(tags)
        queries = self.arrays.from_numpy(queries, self.config["dtype"])
        got = self.arrays.to_numpy(self.arrays.attend(queries, keys, values, mask))
        explain = partial(explain_nan, self.arrays, keys, values)
        self.compared["attention"] += 1
        for row in {0, length // 3, 2 * length // 3, length - 1}:
            seen = [token.tag for token in visible(offset - length + row)]
            if seen:
                form = tags[row], seen, row, "update", explain
                self.returned.judge(got[0, :, row], *form)


def leave_out_older(columns: Sequence[Column], cache: Cache) -> list[Column]:
    """Leaves out the tokens before the window, which a backend may return or omit."""
    older = cache.older()
    # Few columns have such a token. To list all of them at each step takes long.
    if not older or set(columns).issubset(get_tags(cache.state())):
        return list(columns)
    tags = set(get_tags(older))
    return [column for column in columns if column not in tags]


def call_aside(call: Callable[[], Any], operation: str, description: str) -> None:
    """Calls the backend for an operation that is not in the program.

    Args:
        call: calls the backend.
        operation: the name of the operation.
        description: the object of the call and the reason, for the message.

    Raises:
        Broken: the backend raised.
    """
    try:
        call()
    except (Broken, NotImplementedError):
        raise
    except Exception as error:
        message = f"{description}: {format_raised(error)}"
        raise Broken("error", message, operation) from error
