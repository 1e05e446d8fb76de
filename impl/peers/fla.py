"""The adapter to flash-linear-attention's `FLACache`, and its declarations.

It makes the same calls as `fla.layers.attn` without padding, where FlashAttention masks:
its mask ends in the lower right corner, and has a `window_size`. The state of a
recurrent layer is that of `fla.layers.gated_deltanet`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lockstep.harness.backends import Backend, Duty, Kind
from lockstep.harness.backends.interface import Array, Mask
from lockstep.impl.peers.engines.layers import load_fla
from lockstep.impl.peers.static import PLAIN, declare_static

Config = Mapping[str, Any]
fla = load_fla()

SLID = Duty(
    {"op": "trim", "offset - window": [1, None]},
    "trim of a window that has dropped tokens: crop raises NotImplementedError",
)


class Layer:
    """Attention of one layer; K and V are stored as [1, tokens, heads × dim]."""

    def __init__(self, config: Config) -> None:
        self.window, self.heads = config["window"], config["heads"]
        self.cache = fla.FLACache()

    @property
    def offset(self) -> int:
        return int(self.cache.get_seq_length(0))

    def make_mask(self, length: int, rows: int) -> Mask:
        """Returns the mask of `flash_attn_func` with `window_size=(window - 1, 0)`."""
        window = self.window or self.offset + length
        columns = min(self.offset, window - 1) + length
        last = columns - length + torch.arange(length)[:, None]
        column = torch.arange(columns)
        return (column <= last) & (column > last - window)

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Stores K and V, and selects K and V to attend to (`Attention.forward`)."""
        new = [self.fold(array) for array in (keys, values)]
        length, has_content = keys.shape[2], self.offset > 0
        cached = self.cache[0]["attn_state"] if has_content else None
        stored = self.cache.update(
            attn_state=tuple(new),
            layer_idx=0,
            offset=length,
            cache_kwargs={"window_size": self.window},
        )["attn_state"]
        if self.window is not None and length > 1 and cached is not None:
            new = [torch.cat(pair, dim=1) for pair in zip(cached, new, strict=True)]
            new = [array[:, -(self.window + length - 1) :] for array in new]
        elif has_content:
            new = stored
        keys, values = (self.unfold(array) for array in new)
        return keys, values

    def fold(self, array: Array) -> Array:
        return array.transpose(1, 2).flatten(-2, -1)

    def unfold(self, array: Array) -> Array:
        return array.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def trim(self, count: int) -> int:
        """Calls `crop` with the negative number of tokens, like `generate`."""
        previous = self.offset
        self.cache.crop(-count)
        return previous - self.offset

    def clone(self) -> Layer:
        copied = copy.copy(self)
        copied.cache = copy.deepcopy(self.cache)
        return copied

    def free(self) -> None:
        self.cache.reset()


class States(Layer):
    """The states of a gated delta layer."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        heads, key_dim = config["heads"], config["key_dim"]
        dtype = getattr(torch, config["dtype"])
        width, channels = config["conv_width"] - 1, heads * key_dim
        self.missing = (
            torch.zeros(1, width, channels, dtype=dtype),
            torch.zeros(1, heads, key_dim, config["value_dim"]),
        )

    def read(self) -> tuple[Array, Array]:
        """Returns the states; zeros before the first update, like a layer."""
        if self.offset == 0:
            return self.missing
        state = self.cache[0]
        return state["conv_state"][0], state["recurrent_state"]

    state = view = read

    def boundaries(self, length: int) -> Sequence[int]:
        return [length]

    def write(self, conv: Array, delta: Array, length: int) -> None:
        self.cache.update(
            recurrent_state=delta, conv_state=(conv,), layer_idx=0, offset=length
        )


def fla_cache() -> Backend:
    """Declares `FLACache` with attention as kv, with a window as rotating, and with a
    recurrent layer as state.

    A layer stores the tensors of its first update. FLA makes new tensors in each pass.
    """
    operations = frozenset({"update", "trim", "clone", "free"})
    kinds = {
        "kv": Kind(operations, PLAIN, inputs="kept"),
        "rotating": Kind(operations, PLAIN, inputs="kept", duties=(SLID,)),
        "state": Kind(
            frozenset({"update", "state", "view", "clone", "free"}), inputs="kept"
        ),
    }
    return declare_static("flash-linear-attention", "fla", kinds, _open)


def _open(config: Config) -> Layer:
    return States(config) if config["kind"] == "state" else Layer(config)
