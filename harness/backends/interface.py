"""Protocols of what a backend implements: its arrays and the caches of each contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = Any
"""An array of the backend's framework. The harness only hands it back to `Arrays`."""

Mask = Any
"""None (every column is seen), "causal", a boolean array or an additive array."""


class Arrays(Protocol):
    """The array functions that the harness needs of a framework."""

    def from_numpy(self, array: npt.NDArray[np.float32], dtype: str) -> Array:
        """An array of this framework with the same shape, in "float32", "float16" or
        "bfloat16". May share memory with `array`."""

    def to_numpy(self, array: Array) -> npt.NDArray[Any]:
        """The content as numpy: float32 for floating types, bool for bool. May share
        memory with `array`."""

    def dtype(self, array: Array) -> str:
        """ "float32", "float16", "bfloat16", "bool", … without the framework's prefix."""

    def attend(self, queries: Array, keys: Array, values: Array, mask: Mask) -> Array:
        """Scaled dot-product attention as this framework's models call it.

        queries: [1, heads, rows, key_dim]; keys: [1, heads, columns, key_dim];
        values: [1, heads, columns, value_dim]; the scale is key_dim ** -0.5;
        returns [1, heads, rows, value_dim].
        """


class Snapshot(Protocol):
    """A copy of cache content, for the positions [begin, end)."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...


class LayerCache(Protocol):
    """One cache of kind "kv" or "rotating": the K and V of one sequence in one layer.

    A backend implements the operations that it declares for the kind; `offset`,
    `make_mask` and `update` are needed always. For the meaning of each see `reference/`.
    """

    @property
    def offset(self) -> int:
        """The position of the next token: tokens written, less those taken back."""

    def make_mask(self, length: int, rows: int) -> Mask:
        """The mask for an update of `length` tokens, asked for *before* that update.

        rows: rows the mask must have, at least `length`; the rows beyond `length` belong
        to padding queries and see nothing.
        """

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Appends [1, heads, length, dim] and returns the K and V to attend to. The
        arrays are the caller's: not to be written, now or later."""

    def state(self) -> tuple[Array, Array] | None:
        """K and V of what is held (kv: all tokens; rotating: the window that ends at the
        last one, older tokens may come along), in any order; None if that is nothing."""

    def view(self) -> tuple[Array, Array] | None:
        """The same as `state`, without a copy."""

    def size(self) -> int:
        """The number of tokens held: the offset, but at most the width of a window."""

    def trim(self, count: int) -> int:
        """Takes back the last `count` tokens, or all if there are fewer; returns how
        many. A window that has dropped tokens takes none back."""

    def clone(self) -> LayerCache:
        """An independent cache with the same tokens; scheduled captures stay behind."""

    def free(self) -> None:
        """Empties the cache. Its snapshots live on."""

    def snapshot(self, begin: int) -> Snapshot | None:
        """Puts the tokens at [begin, offset) aside, of a window all of it; None if there
        is no token there. The content is independent of the cache from now on."""

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Brings the cache to offset `target` with what the snapshot holds, without one
        (None) by going back; False, and nothing changes, if it cannot be done. The
        snapshot stays usable."""

    def split(
        self, snapshot: Snapshot, at: int
    ) -> tuple[Snapshot | None, Snapshot | None]:
        """Cuts [a, b) into [a, at) and [at, b); a side that would be empty is None, and
        all of a window stays on the right. The snapshot itself is used up."""

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        """Joins [a, b) and [b, c) into [a, c), of windows the later one; None if a side
        of a kv cache is None. Both are used up. Raises ValueError, and uses nothing up,
        if the ranges are not adjacent."""

    def close(self, snapshot: Snapshot) -> None:
        """Releases a snapshot and its memory."""

    def prepare(self, offsets: Sequence[int]) -> None:
        """Schedules captures: a snapshot is taken when an update reaches such an offset,
        from the one before it (or from where the cache stands now). Raises ValueError,
        and schedules nothing, if the offsets do not ascend, lie behind the cache, or if
        earlier captures were not taken. The list is the caller's, who may change it
        afterwards."""

    def take(self) -> Sequence[Snapshot | None]:
        """One capture for each scheduled offset, None where no update reached it; then
        the schedule is empty."""


class StateCache(Protocol):
    """One cache of kind "state": the convolution and delta state of a recurrent layer.

    Instead of `make_mask` and `update` it has `read` and `write`; the other operations
    are those of `LayerCache`, where `state` and `view` return what `read` returns.
    """

    @property
    def offset(self) -> int:
        """The number of tokens that the state has read."""

    def read(self) -> tuple[Array, Array]:
        """conv [1, conv_width - 1, channels] and delta [1, heads, key_dim, value_dim]
        (float32) after `offset` tokens; zeros at first use."""

    def boundaries(self, length: int) -> Sequence[int]:
        """The lengths of the writes, in order and `length` in sum, that the next `length`
        tokens must come in, so that each scheduled capture falls between two of them."""

    def write(self, conv: Array, delta: Array, length: int) -> None:
        """The state after `length` more tokens. The arrays are the caller's: not to be
        written, now or later."""


class UnifiedCache(Protocol):
    """One cache of the unified contract: the tokens of many sequences, in all layers.

    A mistake of the caller raises ValueError with the value and the rule, and changes
    nothing; what else may be refused raises an exception of `Backend.errors`.
    """

    def forward(
        self,
        positions: Sequence[int],
        sequences: Sequence[int],
        exceptions: Sequence[int],
        multimodal: Sequence[int],
        reserve: bool,
    ) -> None:
        """Announces a pass of one row for each position: where its tokens stand and which
        sequence they belong to. Then every layer is put, and got.

        exceptions: rows that may also look ahead. multimodal: rows that stand for an
        image. reserve: worst-case shapes only, nothing changes.
        """

    def put(self, layer: int, keys: Array, values: Array) -> None:
        """K [1, heads, rows, key_dim], turned to its positions, and V of the pass."""

    def get(self, layer: int) -> tuple[Array, Array, Array]:
        """K [1, heads, columns, key_dim], V [1, heads, columns, value_dim] (or
        [1, heads, value_dim, columns], where the config permutes values) and the mask
        [rows, columns]: 0 where seen, -inf elsewhere, both padded as configured.

        An encoder cache returns K and V as they were put, no mask, or None.
        """

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """The target forgets what it had, and has the tokens of `source` at positions
        below `length` from now on, too, without their being stored twice."""

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """The sequence forgets the tokens at [begin, end), None for all from `begin` on.
        What follows moves up by end - begin, its keys turned to where they stand now.
        "shared" if those belong to another sequence, too, "not-supported" if the kind or
        the config cannot do it; then nothing changes."""

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether a pass that goes on at `position` would see all that it should: nothing
        before it has slid out."""

    def save(self) -> Any:
        """All content, independent of the cache from now on."""

    def load(self, saved: Any) -> None:
        """Loads what was saved, in this cache or another one of the same config."""

    def of(self, layer_type: int) -> UnifiedCache:
        """Of a wrapper: the cache that has the layers of this type."""

    @property
    def cached(self) -> bool:
        """Of an encoder cache: whether an image is stored."""

    def read_states(self, layer: int) -> tuple[Array, Array]:
        """(recurrent) conv [sequences, conv_width - 1, channels] and delta
        [sequences, heads, key_dim, value_dim] (float32) of the sequences of the pass, in
        the order in which they first come; zeros at first use."""

    def write_states(self, layer: int, conv: Array, delta: Array) -> None:
        """(recurrent) The same after the pass."""


class PrefixCache(Protocol):
    """A session or a trie: conversations above the caches of a model's layers.

    One request at a time: begin, then the layers compute what is left, in updates of any
    length; extend by tokens that were generated; close. A mistake of the caller raises
    ValueError, and changes nothing.
    """

    @property
    def layers(self) -> Sequence[LayerCache | StateCache | None]:
        """The caches that the open request is computed with; None for a layer without
        one."""

    def begin(self, tokens: Sequence[int], checkpoints: Sequence[int]) -> Sequence[int]:
        """Opens a request, brings every layer to the same offset, and returns the tokens
        behind it: what is left to compute, at least one.

        checkpoints: (trie) numbers of tokens after which the layers are to be captured.
        """

    def extend(self, tokens: Sequence[int]) -> None:
        """Tokens that were generated: they belong to the request from now on."""

    def close(self) -> int:
        """Ends the request, wherever it stands; the number of its tokens that are stored:
        all that every layer has read."""

    def cancel(self) -> int:
        """The same for a request that was broken off."""

    def free(self) -> None:
        """Forgets everything, and closes all snapshots."""

    def set_limit(self, limit: int | None) -> None:
        """(trie) Another limit on the bytes that are stored, which is kept at once."""

    def count_tokens(self) -> int:
        """The tokens that are stored; what conversations share counts once."""

    def count_bytes(self) -> int:
        """(trie) The bytes of all snapshots, whether or not they were copied yet."""


class SlotsCache(Protocol):
    """Several users over one cache of many sequences. `slot` is a number, and that of a
    sequence of the cache."""

    @property
    def cache(self) -> UnifiedCache: ...

    def begin(self, tokens: Sequence[int]) -> int:
        """Opens a request in a free slot; its number. Raises the exception that
        `Backend.errors` names for "no-slot" if there is none."""

    def get_tokens(self, slot: int) -> Sequence[int]:
        """The tokens that the slot holds, computed."""

    def get_remaining(self, slot: int) -> Sequence[int]:
        """The tokens that are left to compute."""

    def extend(self, slot: int, tokens: Sequence[int]) -> None: ...
    def reserve(self, slot: int, count: int) -> Sequence[int]:
        """The positions of the next `count` of the remaining tokens. Makes room for them;
        after that there may be more remaining tokens, and others."""

    def commit(self, slot: int, count: int) -> None:
        """The next `count` tokens have been computed."""

    def close(self, slot: int) -> int:
        """The slot is free again; how many tokens it keeps."""

    def cancel(self, slot: int) -> int: ...
