"""A backend as the caches of one layer program, and what its arrays say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.interface import Array, Mask
from lockstep.harness.contracts.arrays.reading import Column, Reader, get_rows
from lockstep.harness.contracts.layer.model import Cache, get_range
from lockstep.harness.contracts.operation import Answer, Op
from lockstep.harness.contracts.system import Recurrence, System, judge_attention
from lockstep.harness.core.errors import Broken
from lockstep.harness.core.payload import get_attention_tolerance
from lockstep.reference.token import Token


class LayerSystem(System):
    """The caches and snapshots of one program in a backend, by name.

    Args:
        layer: tells the payloads of the layers of one model apart.
    """

    def __init__(
        self,
        backend: Backend,
        config: Mapping[str, Any],
        tags: int,
        every: bool,
        layer: int = 0,
        writes: Collection[str] = ("update",),
    ) -> None:
        super().__init__(backend, config, tags, every, writes)
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
        if cache is None:
            raise Broken("malformed", "clone returned None, not a cache")
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
