"""Adapters to batches in transformers' caches, with the calls of `generate` and models.

Padding is on the left. Only the 2-D attention mask describes the padding; `generate`
appends a column of ones to this mask for each new token. Therefore all rows of a cache
have the same length, including padding. The caller holds the mask and the positions of
the rows, and moves them together with the rows of the cache. The adapters check no call.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from lockstep.harness.backends.interface import Array, Mask
from lockstep.impl.peers.transformers_layers import Config, States, build_mask

KERNEL = 4
"""Inputs of a convolution that are kept beside attention."""


class Rows(ABC):
    """Operations on the rows of a cache that must also move the rows of its masks."""

    cache: Any

    @abstractmethod
    def count_rows(self) -> int: ...

    @abstractmethod
    def keep(self, rows: Sequence[int]) -> None:
        """Keeps the given rows of the masks."""

    @abstractmethod
    def clear(self) -> None:
        """Notes that all columns were removed."""

    def filter(self, rows: Sequence[int]) -> None:
        self.cache.batch_select_indices(torch.tensor(rows))
        self.keep(rows)

    def select(self, rows: Sequence[int]) -> None:
        """Calls `reorder_cache`, like a beam search."""
        self.cache.reorder_cache(torch.tensor(rows))
        self.keep(rows)

    def repeat(self, times: int) -> None:
        self.cache.batch_repeat_interleave(times)
        self.keep([row for row in range(self.count_rows()) for _ in range(times)])

    def free(self) -> None:
        self.cache.reset()
        self.clear()


class Batch(Rows):
    """Adapts a cache of transformers with one layer to the interface of a batch.

    Args:
        cache: the cache of transformers.
        config: the configuration of its model.
        rows: the number of rows.

    Attributes:
        attention_mask: the 2-D mask of all columns in the cache; 0 is padding.
        padding: for each row, the padding on the left of the next update.
    """

    def __init__(self, cache: Any, config: Any, rows: int) -> None:
        self.cache, self.config = cache, config
        self.attention_mask = torch.ones(rows, 0, dtype=torch.long)
        self.padding = torch.zeros(rows, dtype=torch.long)

    @property
    def offsets(self) -> Array:
        """Returns the position of the next column of each row: the number of tokens in
        its mask, minus the padding that the next update will have."""
        return self.attention_mask.sum(dim=-1) - self.padding

    def pad_left(self, padding: Sequence[int]) -> None:
        self.padding = torch.tensor(padding)

    def extend_mask(self, length: int) -> torch.Tensor:
        """Returns the 2-D mask with `length` more columns: zeros for padding, like a
        tokenizer, and ones for tokens, like `generate`."""
        columns = torch.arange(length) >= self.padding[:, None]
        return torch.cat([self.attention_mask, columns.long()], dim=-1)

    def make_mask(self, length: int) -> Mask:
        mask = build_mask(self.config, self.cache, length, self.extend_mask(length))
        return "causal" if mask is None and length > 1 else mask

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        pair = self.cache.update(keys, values, 0)
        self.append(keys.shape[2])
        return pair[0], pair[1]

    def append(self, length: int) -> None:
        """Adds `length` new columns to the mask."""
        self.attention_mask = self.extend_mask(length)
        self.padding = torch.zeros_like(self.padding)

    def state(self) -> Sequence[tuple[Array, Array] | None]:
        """Returns the columns of each row that contain tokens, from the tensors of a full
        layer."""
        return [self.read_row(row) for row in range(len(self.attention_mask))]

    def read_row(self, row: int) -> tuple[Array, Array] | None:
        layer, tokens = self.cache.layers[0], self.attention_mask[row].bool()
        if not layer.is_initialized:
            return None
        keys, values = layer.keys[row, :, tokens], layer.values[row, :, tokens]
        return keys[None], values[None]

    def trim(self, count: int) -> int:
        """Calls `crop` with the negative number of columns to remove."""
        offset = int(self.cache.get_seq_length())
        self.cache.crop(-count)
        removed = offset - int(self.cache.get_seq_length())
        self.attention_mask = self.attention_mask[:, : offset - removed]
        return removed

    def keep(self, rows: Sequence[int]) -> None:
        self.attention_mask, self.padding = self.attention_mask[rows], self.padding[rows]

    def clone(self) -> Batch:
        """Copies the cache by `copy.deepcopy`, which the documentation recommends to
        reuse a prompt."""
        copied = copy.copy(self)
        copied.cache = copy.deepcopy(self.cache)
        return copied

    def count_rows(self) -> int:
        return len(self.attention_mask)

    def clear(self) -> None:
        self.attention_mask = self.attention_mask[:, :0]


class IndexedBatch(Batch):
    """Adapts a layer that also stores the keys of an indexer to the interface of a batch.

    The indexer gets the second half of each key. When the cache is read, the halves are
    joined again, so one comparison covers all three tensors. An indexer has one head.
    """

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        half = keys.shape[-1] // 2
        indexer_keys = self.cache.update_indexer(keys[:, 0, :, half:], 0)
        keys, values = super().update(keys[..., :half], values)
        return torch.cat([keys, indexer_keys[:, None]], dim=-1), values


class RecurrentBatch(Batch, States):
    """Adapts a `LinearAttentionLayer` to the interface of a batch.

    Args:
        cache: the cache of transformers.
        model: the configuration of its model.
        rows: the number of rows.
        config: a complete config, which gives the shapes of a missing state.
    """

    def __init__(self, cache: Any, model: Any, rows: int, config: Config) -> None:
        super().__init__(cache, model, rows)
        self.set_shapes(model, config)

    def make_mask(self, length: int) -> Mask:
        """Builds the mask with which a model sets the inputs of padding to zero."""
        mask = self.extend_mask(length)
        return build_mask(self.config, self.cache, length, mask, "linear_attention")

    def read_row(self, row: int) -> tuple[Array, Array]:
        conv, delta = self.read()
        return conv[row : row + 1], delta[row : row + 1]

    def write(self, conv: Array, delta: Array, length: int) -> None:
        self.write_states(conv, delta, length)
        self.append(length)


class HybridBatch(Batch):
    """Adapts the attention of a layer with attention and a recurrent state
    (`models.falcon_h1`) to the interface of a batch.

    Each update also writes the state, which is not compared.
    """

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        inputs = keys.transpose(2, 3).flatten(1, 2)  # [rows, channels, length]
        self.cache.update_conv_state(inputs, 0, conv_kernel_size=KERNEL)
        self.cache.update_recurrent_state(keys[:, :, -1:].mT, 0)
        return super().update(keys, values)


class HybridStates(RecurrentBatch):
    """Adapts the recurrent state of a layer with attention and a recurrent state to the
    interface of a batch of states.

    Each update also writes K and V, which are not compared.
    """

    def write(self, conv: Array, delta: Array, length: int) -> None:
        keys = conv.new_zeros(len(conv), 1, length, 1)
        super().write(conv, delta, length)
        self.cache.update(keys, keys, 0)
