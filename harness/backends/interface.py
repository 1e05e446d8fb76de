"""Defines the protocols that a backend implements: arrays, and the caches of each
contract.

An integer that a cache returns may have any type that `operator.index` accepts, such as
an integer array without axes, except bool. A float is a divergence, even if it is equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = Any
"""An array of the backend's framework. The harness only passes it back to `Arrays`."""

Held = Mapping[str, int]
"""The memory that a cache holds now. "bytes": the size of all arrays with its content,
including the snapshots that it made. Optional: "snapshots": the number of its open
snapshots; "blocks": the number of used cells, one cell for each stored token."""

Mask = Any
"""None (every query sees every column), "causal", or a boolean or additive array that
broadcasts."""


class Arrays(Protocol):
    """The array functions of a framework that the harness needs."""

    def from_numpy(self, array: npt.NDArray[np.float32], dtype: str) -> Array:
        """Converts a numpy array to this framework, with the same shape.

        Args:
            array: any shape. The result may share its memory.
            dtype: "float32", "float16" or "bfloat16".
        """

    def to_numpy(self, array: Array) -> npt.NDArray[Any]:
        """Converts an array to numpy: floating types to float32, bool to bool.

        The result may share memory with `array`.
        """

    def dtype(self, array: Array) -> str:
        """Returns "float32", "float16", "bfloat16", "bool", …, without a prefix."""

    def attend(self, queries: Array, keys: Array, values: Array, mask: Mask) -> Array:
        """Computes scaled dot-product attention as this framework's models do.

        The scale is key_dim ** -0.5.

        Args:
            queries: [1, heads, rows, key_dim].
            keys: [1, heads, columns, key_dim].
            values: [1, heads, columns, value_dim].
            mask: see `Mask`.

        Returns:
            [1, heads, rows, value_dim].
        """


class Snapshot(Protocol):
    """A copy of cache content, for the positions [begin, end)."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...


class LayerCache(Protocol):
    """One cache of kind kv, rotating or pooled: K and V of one sequence in one layer.

    A backend implements `offset`, `make_mask`, `update`, and the operations that it
    declares for the kind. `reference/` defines the behavior of each operation.
    """

    @property
    def offset(self) -> int:
        """The position of the next token: the number of written tokens minus trimmed
        tokens."""

    def make_mask(self, length: int, rows: int) -> Mask:
        """Makes the mask for an update of `length` tokens, *before* that update.

        Args:
            length: the number of tokens of the next update.
            rows: the number of rows of the mask, at least `length`. Rows from `length` on
                belong to padding queries and see nothing.

        Returns:
            None if every query sees every token, "causal", or an array [rows, columns],
            whose columns are the columns of the K and V that the update returns. The
            array is bool, with True where a query sees a token, or additive. A query sees
            its own token; with a window of w, it also sees the w - 1 tokens before. In a
            pooled cache, it sees the entries whose last token is its own or an earlier
            token.
        """

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Appends tokens, and returns the K and V to attend to.

        Args:
            keys: [1, heads, length, key_dim].
            values: [1, heads, length, value_dim]. Both arrays belong to the caller: the
                cache must not write to them, now or later.

        Raises:
            ValueError: the forms of keys and values do not match each other or the stored
                tokens (batch, heads, dimensions, dtype). Nothing changes.

        Returns:
            K and V [1, heads, columns, dim], with the columns of the mask. The columns of
            a pooled cache are its entries: means that are computed with the precision of
            float32 or more, and rounded once to the dtype of K and V.
        """

    def state(self) -> tuple[Array, Array] | None:
        """Returns K and V of the stored tokens, in any order; None without tokens.

        A kv cache stores all tokens. A rotating cache stores the window that ends at the
        last token, and may return older tokens too. A pooled cache returns its entries.
        """

    def view(self) -> tuple[Array, Array] | None:
        """Returns the same as `state`, without a copy."""

    def size(self) -> int:
        """Returns the number of stored tokens: the offset, but at most the window. For a
        pooled cache, returns the number of entries."""

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens, or all tokens if there are fewer; returns the
        number of removed tokens.

        A rotating cache that has dropped tokens removes no tokens. A pooled cache removes
        none if a window would be open again whose tokens it no longer has.

        Raises:
            "usage" error: `count` is negative. Nothing changes.
        """

    def clone(self) -> LayerCache:
        """Returns an independent cache with the same tokens and no scheduled captures."""

    def free(self) -> None:
        """Empties the cache. Its snapshots stay valid."""

    def snapshot(self, begin: int) -> Snapshot | None:
        """Copies the tokens at [begin, offset), or the whole content of a rotating or a
        pooled cache.

        Later changes of the cache do not change the snapshot.

        Returns:
            The snapshot; None if there is no token in the range.
        """

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Brings the cache to offset `target`.

        Args:
            snapshot: the snapshot with the content, which stays usable; it may come from
                any cache of the same config. None to go back without a snapshot.
            target: the new offset.

        Returns:
            False if the cache cannot be brought to this offset; then nothing changes.
        """

    def split(
        self, snapshot: Snapshot, at: int
    ) -> tuple[Snapshot | None, Snapshot | None]:
        """Splits a snapshot [a, b) into [a, at) and [at, b), and consumes the snapshot.

        The snapshot may come from any cache of the same config. An empty part is None.
        The right part gets the whole content of a window.
        """

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        """Joins the snapshots [a, b) and [b, c) into [a, c), and consumes both.

        The snapshots may come from any caches of the same config. For two windows, the
        result is the later window.

        Returns:
            The joined snapshot; None if a snapshot of a kv cache is None.

        Raises:
            "usage" error: the ranges of a kv cache are not adjacent; then no snapshot is
                consumed.
        """

    def close(self, snapshot: Snapshot) -> None:
        """Releases a snapshot and its memory.

        A snapshot belongs to the cache that returned it, from `snapshot`, `take`, `split`
        or `merge`, and is closed through that cache, even if the cache was freed, or if
        another cache restored the snapshot. `split` and `merge` also accept snapshots of
        other caches; the snapshots that they return belong to the cache on which they
        were called.
        """

    def prepare(self, offsets: Sequence[int]) -> None:
        """Schedules a snapshot (a capture) for each offset, taken when an update reaches
        the offset.

        The range of each capture begins at the previous scheduled offset; the first range
        begins at the current offset. An update also reaches the offset at which it
        begins: there, a kv cache captures nothing, and other kinds capture their content
        before the update, with an empty range.

        Args:
            offsets: ascending. The caller may change the list afterwards.

        Raises:
            "usage" error: the offsets do not ascend or are below the current offset, or
                earlier captures were not taken. Then nothing is scheduled.
        """

    def take(self) -> Sequence[Snapshot | None]:
        """Returns a capture for each scheduled offset, and empties the schedule.

        A capture is None if no update reached its offset.
        """

    def held(self) -> Held:
        """Returns the memory usage of the cache, see `Held`; only if the kind declares
        `held`."""


class StateCache(Protocol):
    """One cache of kind "state": the convolution and delta state of a recurrent layer.

    The cache has `read` and `write` instead of `make_mask` and `update`. `LayerCache`
    describes the other operations; `state` and `view` return the same as `read`.
    """

    @property
    def offset(self) -> int:
        """The number of tokens that the state has read."""

    def read(self) -> tuple[Array, Array]:
        """Reads the state after `offset` tokens; zeros at first use.

        Returns:
            conv [1, conv_width - 1, channels] and delta [1, heads, key_dim, value_dim]
            (float32).
        """

    def boundaries(self, length: int) -> Sequence[int]:
        """Returns the lengths of the writes for the next `length` tokens, in order.

        The sum of the lengths is `length`; each scheduled capture is between two writes.
        """

    def write(self, conv: Array, delta: Array, length: int) -> None:
        """Stores the state after `length` more tokens.

        Args:
            conv: in the form of `read`.
            delta: in the form of `read`. Both arrays belong to the caller: the cache must
                not write to them, now or later.
            length: the number of tokens.

        Raises:
            ValueError: a capture is scheduled before the last token, or an array is of
                another form. Nothing changes.
        """


class BatchCache(Protocol):
    """One cache of kind "batch-kv" or "batch-rotating": several requests in a layer.

    Row b behaves like a layer cache that contains only the tokens of row b, without
    padding. The returned arrays may have more columns than tokens, in any order; the mask
    of a row shows only the row's tokens.

    `open` makes an empty batch of config["rows"] rows, or a batch of the single caches in
    config["caches"], which it consumes. Without these fields, `open` makes a single
    cache: a `LayerCache` with the declared operations that a `LayerCache` has.
    """

    @property
    def offsets(self) -> Sequence[int] | Array:
        """The position of the next column in each row: column j of an update has position
        offsets[b] + j in row b.

        Therefore, padding on the left has negative positions: after `pad_left`,
        offsets[b] is -padding[b]. Between `pad_right` and `finalize`, the offsets may
        include padding. A returned value keeps its content during later operations.
        """

    def pad_left(self, padding: Sequence[int]) -> None:
        """Announces padding on the left: in the next update, the first `padding[b]`
        columns of row b are padding. Called for an empty batch; at least one row has no
        padding."""

    def pad_right(self, lengths: Sequence[int]) -> None:
        """Announces padding on the right: until `finalize`, the next updates have
        max(lengths) columns, with `lengths[b]` >= 1 tokens for row b. The columns
        after the tokens of a row are padding. Called only if at least one row has
        padding. Until `finalize`, rows may leave, be copied or be extracted; all
        announced columns come all the same."""

    def finalize(self) -> None:
        """Ends the padding on the right, after the updates with all announced columns."""

    def make_mask(self, length: int) -> Mask:
        """Makes the mask for an update of `length` columns, *before* that update.

        Returns:
            None if every query sees every column, "causal", or a boolean or additive
            array that broadcasts to [rows, 1, length, columns]. Queries in padding
            columns may see any columns.
        """

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Appends columns, and returns the K and V to attend to.

        Args:
            keys: [rows, heads, length, key_dim].
            values: [rows, heads, length, value_dim]. Both arrays belong to the caller.
                The content of padding is undefined, and may be NaN.

        Returns:
            K and V [rows, heads, columns, dim], with the columns of the mask.
        """

    def state(self) -> Sequence[tuple[Array, Array] | None]:
        """Returns the result of `LayerCache.state` for each row."""

    def size(self) -> Sequence[int]:
        """Returns the result of `LayerCache.size` for each row."""

    def trim(self, count: int) -> int:
        """Removes the last `count` tokens of each row; no row has fewer.

        Returns:
            `count`; 0 if a row refuses, or if a ring that counts padding cannot determine
            whether it can remove the tokens. If 0, nothing changes.
        """

    def rollback(self, counts: Sequence[int]) -> bool:
        """Like `trim`, with a count for each row; returns whether it succeeded."""

    def filter(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order. At least one row is listed; no row is listed
        twice."""

    def select(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order. A row that is listed twice becomes two
        rows."""

    def repeat(self, times: int) -> None:
        """Repeats each row this number of times; the copies of a row are adjacent."""

    def extend(self, other: BatchCache) -> None:
        """Appends the rows of another batch, which is consumed."""

    def extract(self, row: int) -> LayerCache:
        """Returns an independent single cache with the tokens of one row."""

    def clone(self) -> BatchCache:
        """Returns an independent batch with the same rows."""

    def free(self) -> None:
        """Empties all rows."""

    def save(self) -> Any:
        """Returns the content as the library stores it; it outlives the batch."""

    def load(self, saved: Any) -> None:
        """Replaces the content of a batch that `open` has just made. Raises the "usage"
        error if a batch of another config saved the content, as far as the library can
        tell."""

    def held(self) -> Held:
        """Returns the memory usage of the cache, see `Held`; only if the kind declares
        `held`."""


class BatchStateCache(Protocol):
    """One cache of kind "batch-state": a recurrent state for each row of a batch.

    `BatchCache` describes the other operations, except `trim`, `rollback` and `size`,
    which this cache does not have. `state` returns the result of `StateCache.read` for
    each row. A single cache is a `StateCache`.
    """

    def make_mask(self, length: int) -> Array | None:
        """Makes the mask of the columns of the next update that are tokens, *before* that
        update.

        Returns:
            bool [rows, length], True for tokens; None if all columns are tokens.
        """

    def read(self) -> tuple[Array, Array]:
        """Reads the states; zeros at first use.

        Returns:
            conv [rows, conv_width - 1, channels] and delta [rows, heads, key_dim,
            value_dim] (float32).
        """

    def write(self, conv: Array, delta: Array, length: int) -> None:
        """Stores the states after `length` more columns; columns that are padding
        according to `make_mask` must not change the states."""


class ListCache(Protocol):
    """One single cache of a list: the caches of one request in one layer.

    Tokens are written to and read from each part. The list has `trim`, `clone` and `free`
    of `LayerCache`, which act on all parts; if a part refuses, `trim` removes no tokens.
    """

    @property
    def parts(self) -> Sequence[LayerCache | StateCache]:
        """The caches, in the order of config["parts"], all with the same offset."""


class BatchListCache(Protocol):
    """One cache of kind "batch-list": batches of one layer, all with the same rows.

    Tokens are written to and read from each part: `make_mask`, `update`, `read`, `write`,
    `offsets`, `state` and `size` are methods of the parts; `held` is a method of the
    parts and of the list. The other methods of `BatchCache`, such as `pad_left`,
    `pad_right`, `finalize`, `filter`, `extend` and `save`, are called on the list, and
    act on all parts or on none. `trim` and `rollback` remove nothing if a part refuses,
    and a part with states always refuses. `load` may replace the parts.

    config["parts"] has the complete config of each part. As for other kinds, `open` makes
    config["rows"] empty rows, or rows of the single lists in config["caches"], or else a
    single list.
    """

    @property
    def parts(self) -> Sequence[BatchCache | BatchStateCache]:
        """The batches, in the order of config["parts"]."""

    def extract(self, row: int) -> ListCache:
        """Returns an independent single list with the tokens of one row."""


class UnifiedCache(Protocol):
    """One cache of the unified contract: the tokens of many sequences, in all layers.

    A refused call raises an exception in `Backend.errors`. An invalid call raises the
    "usage" error, whose message has the value and the rule, and changes nothing.
    """

    def forward(
        self,
        positions: Sequence[int],
        sequences: Sequence[int],
        exceptions: Sequence[int],
        multimodal: Sequence[int],
        reserve: bool,
        coordinates: Sequence[Sequence[int]] = (),
    ) -> None:
        """Announces a pass; then `put` and `get` are called for every layer.

        `coordinates` are given if the config has `sections`. A position, as in windows
        and removals, is always t. At one position, a row sees the tokens up to its own
        (y, x): those with a lower y, or with this y and at most this x.

        Args:
            positions: the position of each row.
            sequences: the sequence of each row.
            exceptions: the rows that may also see later positions.
            multimodal: the rows that represent an image.
            reserve: the pass measures worst-case shapes, and stores nothing. It evicts
                and adds nothing, and is never refused as full. `put` and `get` follow:
                `put` stores nothing; K, V and mask of `get` may have any content, and
                have at least as many columns as in any later pass.
            coordinates: (y, x) of each row, whose position is t; empty if all rows are
                text, where y = x = t.

        Room is the number of free cells; a token takes one cell, even if sequences share
        the token. A refused pass adds nothing. A causal cache does not
        restore the tokens that it has evicted for the pass. In a wrapper, each cache may
        have evicted tokens, and the first cache that refuses determines the reason.

        Raises:
            "usage" error: the batch is invalid. This is checked before all other reasons;
                nothing is evicted, and an open pass stays open.
            "not-supported" error: (recurrent) the sequences of the batch have different
                numbers of rows; also raised with `reserve`. If there is also no room,
                both errors are accepted.
            "cache-full" error: after the evictions, there are fewer free cells than rows;
                or (recurrent) no slot is free for a state.
        """

    def put(self, layer: int, keys: Array, values: Array) -> None:
        """Stores the K and V of the pass in a layer.

        With `at_once` in the config, `put_all(keys, values)` stores all layers, which are
        the first axis.

        Args:
            layer: from 0.
            keys: [1, heads, rows, key_dim], each key rotated to its position.
            values: [1, heads, rows, value_dim].
        """

    def get(self, layer: int) -> tuple[Array, Array, Array]:
        """Returns the K, V and mask with which the rows of the pass attend in a layer.

        Returns:
            K [1, heads, columns, key_dim]; V [1, heads, columns, value_dim], or
            [1, heads, value_dim, columns] where the config permutes values; and the mask
            [rows, columns]: 0 where a row sees a column, -inf elsewhere. The config
            determines the padding of rows and columns. An encoder cache returns (K, V),
            as passed to `put`, without a mask; or None if it stores no image.
        """

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Replaces the content of `target` by the tokens of `source` below `length`.

        Both sequences share these tokens; they are not stored twice. A recurrent cache
        shares the whole state, whatever the length.

        Raises:
            "usage" error: `source` is `target`, or an argument is out of range.
            "not-supported" error: the cache is an encoder.
        """

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Removes the tokens of a sequence at [begin, end); None for all from `begin` on.

        Later tokens move to positions lower by end - begin, and their keys are rotated to
        these positions; an empty range also counts as a move, by 0. All coordinates move
        by the same distance. A refusal changes nothing, except that in a wrapper, the
        caches before the refusing cache have removed the tokens. If `Kind.atomic` is
        False, the content of the sequence is undefined after a refusal, until
        `remove(sequence, 0, None)` clears it; other sequences keep their content.

        Raises: the first of these errors whose condition is true.
            "usage" error: begin > end, or an argument is out of range.
            "not-supported" error: (recurrent) the state has read a token at `end` or
                later, or it must go back and has no checkpoint at begin - 1.
            "cache-full" error: (recurrent) a shared state must go back, and no slot is
                free for another state.
            "shared" error: a token that moves belongs to another sequence too.
            "not-supported" error: a token moves, and the config has no `shift`.
        """

    def can_resume(self, sequence: int, position: int) -> bool:
        """Returns whether a pass can continue at `position`: whether all tokens that it
        must see are stored.

        True if no memory limits the cache. Otherwise, False if the sequence has no
        tokens; else whether its lowest position <= max(0, position - window), and
        position <= its largest coordinate + 1. Missing positions in between do not
        matter.
        A recurrent cache also needs a state or checkpoint at position - 1, unless
        position is 0. An encoder returns True; a wrapper returns whether all its caches
        return True.
        """

    def held(self) -> Held:
        """Returns the memory usage of the cache without saved content, see `Held`;
        only if the kind declares `held`."""

    def save(self) -> Any:
        """Returns a copy of all content. Later changes of the cache do not change it."""

    def load(self, saved: Any) -> None:
        """Restores a result of `save` of this cache or another of the same config.

        Raises:
            "usage" error: the other cache had another config. Nothing changes.
        """

    def of(self, layer_type: int) -> UnifiedCache:
        """(wrapper) Returns the cache with the layers of this type."""

    @property
    def cached(self) -> bool:
        """(encoder) Whether an image is stored. The harness reads this property of
        every encoder; it is not an operation, and is not declared."""

    def read_states(self, layer: int) -> tuple[Array, Array]:
        """(recurrent) Reads the states of the pass's sequences; zeros at first use.

        Returns:
            conv [sequences, conv_width - 1, channels] and delta
            [sequences, heads, key_dim, value_dim] (float32), with the sequences in the
            order in which they first occur in the pass.
        """

    def write_states(self, layer: int, conv: Array, delta: Array) -> None:
        """(recurrent) Stores the states after the pass, in the form of `read_states`."""


class Statistics(Protocol):
    """Counts of a prefix cache.

    Attributes:
        requests: the number of opened requests.
        hits: the number of requests that reused a token.
        asked: the number of tokens in all requests.
        reused: the number of tokens that were not computed again.
        tokens, bytes: see `PrefixCache.count_tokens` and `count_bytes`. For slots, the
            number of tokens in all slots, and 0.
    """

    requests: int
    hits: int
    asked: int
    reused: int
    tokens: int
    bytes: int


STATISTICS = tuple(Statistics.__annotations__)


class PrefixCache(Protocol):
    """A session or a trie: stores conversations in the caches of a model's layers.

    It serves one request at a time: `begin`; updates of any length, in which the layers
    compute the remaining tokens; `extend` with generated tokens; `close`. An invalid call
    raises the "usage" error of `Backend.errors`, and changes nothing.
    """

    @property
    def layers(self) -> Sequence[LayerCache | StateCache | None]:
        """The cache of each layer for the open request; None for a layer without a
        cache."""

    def begin(self, tokens: Sequence[int], checkpoints: Sequence[int]) -> Sequence[int]:
        """Opens a request, and brings every layer to the same offset.

        Args:
            tokens: all tokens of the request.
            checkpoints: (trie) numbers of tokens after which the layers are captured.

        Returns:
            The tokens from that offset on, which remain to be computed: at least one.
        """

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends generated tokens to the request."""

    def close(self) -> int:
        """Ends the request at any time; returns the number of its tokens that are stored.

        These are the tokens that every layer has read.
        """

    def cancel(self) -> int:
        """Ends an aborted request; otherwise the same as `close`."""

    def free(self) -> None:
        """Removes all stored tokens, and closes all snapshots."""

    def set_limit(self, limit: int | None) -> None:
        """(trie) Sets the limit of stored bytes, and applies it immediately; None for
        no limit."""

    def count_tokens(self) -> int:
        """Counts the stored tokens; a token that several conversations share counts
        once."""

    def count_bytes(self) -> int:
        """(trie) Counts the bytes of all snapshots, even if they are not copied yet."""

    def get_statistics(self) -> Statistics: ...


class SlotsCache(Protocol):
    """Slots for several users, which share a cache of many sequences.

    The number `slot` is also the number of the sequence in the cache.
    """

    @property
    def cache(self) -> UnifiedCache: ...

    def begin(self, tokens: Sequence[int]) -> int:
        """Opens a request in a free slot, and returns the number of the slot.

        Raises:
            Backend.errors["no-slot"]: no slot is free.
        """

    def get_tokens(self, slot: int) -> Sequence[int]:
        """Returns the computed tokens in the slot."""

    def get_remaining(self, slot: int) -> Sequence[int]:
        """Returns the tokens that remain to be computed."""

    def extend(self, slot: int, tokens: Sequence[int]) -> None: ...
    def reserve(self, slot: int, count: int) -> Sequence[int]:
        """Makes room for the next `count` remaining tokens, and returns their positions.

        This call may change the remaining tokens and increase their number.
        """

    def commit(self, slot: int, count: int) -> None:
        """Records that the next `count` remaining tokens were computed."""

    def close(self, slot: int) -> int:
        """Frees the slot; returns the number of tokens that remain in it."""

    def cancel(self, slot: int) -> int: ...
    def get_statistics(self) -> Statistics: ...
