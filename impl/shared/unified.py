"""The operations, config values and construction of our unified caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lockstep.impl.shared.causal import Sizes
from lockstep.impl.shared.errors import (
    CacheFullError,
    MisuseError,
    NotSupportedError,
    SharedError,
)
from lockstep.impl.shared.slots import Slots
from lockstep.impl.shared.wrapper import WrapperCache

ERRORS: Mapping[str, type[Exception]] = {
    "usage": MisuseError,
    "cache-full": CacheFullError,
    "not-supported": NotSupportedError,
    "shared": SharedError,
}

ALWAYS = {"forward", "copy_prefix", "remove", "can_resume", "get"}
POOL = {*ALWAYS, "put", "save", "load"}

OPERATIONS: Mapping[str, frozenset[str]] = {
    "causal": frozenset(POOL),
    "swa": frozenset(POOL),
    "swa-memory": frozenset({*POOL, "open"}),
    "chunked": frozenset(POOL),
    "encoder": frozenset({*ALWAYS, "put"}),
    "wrapper": frozenset(POOL),
    "recurrent": frozenset(POOL),
}

CONFIG: Mapping[str, tuple[Any, ...]] = {
    "layers": (1, 2, 1, 3),
    "cache_padding": (1, 2, 1, 4, 32),
    "mask_padding": (1, 2, 1, 4, 32),
    "mask_dtype": ("float32", "float16", "bfloat16"),
    "permuted_values": (False, True),
    "small": (None, None, 0, 0, None, None, 0, 16),
}

SECTIONS = {"sections": (None, None, [1, 1], [1, 1, 1], [2, 1, 1], [1, 1, 1, 1])}

OF_KIND: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    **dict.fromkeys(("causal", "swa", "swa-memory", "chunked", "wrapper"), SECTIONS),
    "recurrent": {"window": (None, None, None, 2, 4), "memory": (None, 4, 7)},
}
"""Additional config values of a kind: positions of several axes; and a recurrent cache
may have a window."""

Shape = tuple[int, ...]
Make = Callable[[Mapping[str, Any]], Any]


def get_sizes(config: Mapping[str, Any]) -> Sizes:
    """Returns the sizes of a cache of the causal family."""
    memory = config["window"] if config["kind"] == "swa" else config["memory"]
    return Sizes(
        config["sequences"],
        config["capacity"],
        config["batch"],
        config["window"],
        memory,
        config["chunk"],
        config["cache_padding"],
        config["mask_padding"],
        config["small"],
        config["sections"],
    )


def get_states(config: Mapping[str, Any]) -> tuple[Slots, Shape, Shape]:
    """Returns the slots of a recurrent cache, and the shapes of conv and delta states."""
    count = config["slots"] or config["sequences"]
    slots = Slots(count, config["interval"], config["checkpoints"])
    heads, key_dim = config["heads"], config["key_dim"]
    conv = (config["conv_width"] - 1, heads * key_dim)
    return slots, conv, (heads, key_dim, config["value_dim"])


def make_wrapper(config: Mapping[str, Any], make: Make) -> WrapperCache:
    """Returns a wrapper of caches, each made by `make` from its config."""
    plain = {**config, "caches": (), "window": None, "memory": None, "chunk": None}
    caches = [make({**plain, **cache}) for cache in config["caches"]]
    return WrapperCache(caches, config["sequences"])
