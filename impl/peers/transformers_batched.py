"""Declares the backends for batches in the caches of transformers.

`transformers_batches` has the adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from transformers.cache_utils import Cache, DynamicCache, StaticCache

from lockstep.harness.backends import Backend, Duty, Kind, Lifetime
from lockstep.impl.peers.transformers import (
    CHUNKED,
    COMMON,
    PLAIN,
    RECORD,
    ROOM,
    SHARE,
    Fields,
    Open,
    declare_backend,
    declare_kind,
    make_model,
    uncroppable,
)
from lockstep.impl.peers.transformers_batches import (
    Batch,
    HybridBatch,
    HybridStates,
    IndexedBatch,
    RecurrentBatch,
)
from lockstep.impl.peers.transformers_layers import (
    ROOM_BESIDE,
    Attention,
    Config,
    IdentityLayer,
    Layer,
    RecurrentLayer,
    get_attention,
    get_hybrid,
    get_indexed,
    get_room,
)

ROWS = {"filter", "select", "repeat"}
"""Operations on the rows of a dynamic layer; other layers have only `reorder_cache`,
which is select."""

ALL = {"open", "update", "clone", "free"}
FIXED = ALL | {"select"}
CROPPED = FIXED | {"trim"}
CHUNKED_STATIC: Fields = {**COMMON, **ROOM, "chunk": (4, 1, 2, 3, 5, 8, 12, 20)}
BESIDE: Fields = {"step": (ROOM_BESIDE, 4, 1, 2)}
"""For attention in a layer with a recurrent state, the config field "step" holds the
window; ROOM_BESIDE stands for no window."""


def _full(size: str) -> Duty:
    """Makes a duty of callers: do not trim a sliding layer after it has dropped columns
    that it would need again."""
    return Duty({"op": "trim", f"width - {size}": [0, None]}, f"trim {RECORD}")


def overflow(**fields: Any) -> Duty:
    """Makes a duty of callers: do not update a static cache beyond its
    `max_cache_len`."""
    when = {"op": "update", "width + length - step": [1, None], **fields}
    return Duty(when, "update of more than max_cache_len columns")


# --- attention --------------------------------------------------------------------------


def dynamic() -> Backend:
    """Declares `DynamicCache` with a full layer as batch-kv, and with a sliding layer as
    batch-rotating."""
    kinds = {
        "batch-kv": declare_kind(ALL | ROWS | {"state", "trim"}, PLAIN),
        "batch-rotating": declare_kind(ALL | ROWS | {"trim"}, PLAIN, _full("window")),
    }
    return _batched("transformers-batched", kinds, OF_DYNAMIC, "forever")


def dynamic_chunked() -> Backend:
    """Declares `DynamicCache` with a chunked layer, which is a sliding layer with another
    mask."""
    kinds = {"batch-kv": declare_kind(ALL | ROWS | {"trim"}, CHUNKED, _full("chunk"))}
    return _batched("transformers-batched-chunked", kinds, OF_DYNAMIC, "forever", SHARE)


def static() -> Backend:
    """Declares `StaticCache` with full and sliding layers, whose tensors have a fixed
    size."""
    config, wide = {**PLAIN, **ROOM}, overflow(**{"window - step": [1, None]})
    kinds = {
        "batch-kv": declare_kind(CROPPED, config, overflow(), inputs="kept"),
        "batch-rotating": declare_kind(
            CROPPED, config, wide, *uncroppable("window", "width"), inputs="kept"
        ),
    }
    return _batched("transformers-batched-static", kinds, OF_STATIC)


def static_chunked() -> Backend:
    """Declares `StaticCache` with a chunked layer."""
    wide = overflow(**{"chunk - step": [1, None]})
    duties = wide, *uncroppable("chunk", "width")
    kinds = {"batch-kv": declare_kind(CROPPED, CHUNKED_STATIC, *duties, inputs="kept")}
    return _batched("transformers-batched-static-chunked", kinds, OF_STATIC, share=SHARE)


def indexed() -> Backend:
    """Declares `DynamicCache` with an indexed layer, which also stores the keys of an
    indexer."""
    config = {**PLAIN, "heads": (1,)}
    kinds = {"batch-kv": declare_kind(ALL | ROWS | {"trim"}, config)}
    return _batched("transformers-batched-indexed", kinds, INDEXED, share=SHARE)


def static_indexed() -> Backend:
    """Declares `StaticCache` with an indexed layer, which also stores the keys of an
    indexer."""
    config = {**PLAIN, **ROOM, "heads": (1,)}
    kinds = {"batch-kv": declare_kind(CROPPED, config, overflow(), inputs="kept")}
    return _batched(
        "transformers-batched-static-indexed", kinds, STATIC_INDEXED, share=SHARE
    )


def quantized() -> Backend:
    """Declares the base class of the quantized layers. If the residual length ("step") is
    1, every update is quantized immediately."""
    config = {**PLAIN, "step": (1,)}
    kinds = {"batch-kv": declare_kind(ALL | ROWS, config, inputs="kept")}
    return _batched(
        "transformers-batched-quantized", kinds, OF_QUANTIZED, "forever", SHARE
    )


# --- recurrent states, alone and beside attention ---------------------------------------


def linear() -> Backend:
    """Declares `LinearAttentionLayer` in a `DynamicCache`.

    The layer cannot be cropped, and has neither `batch_select_indices` nor
    `batch_repeat_interleave`.
    """
    kinds = {"batch-state": declare_kind(FIXED | {"state"}, {})}
    return _batched("transformers-batched-linear", kinds, OF_DYNAMIC, share=SHARE // 2)


def hybrid() -> Backend:
    """Declares `DynamicCache` with layers that have attention and a recurrent state.

    K and V are compared as one kind, the state as another kind. These layers cannot be
    cropped. Some operations move the rows of K and V but not the rows of the states. They
    are declared for the states, too, so that the check finds this mistake.
    """
    kinds = {
        "batch-kv": declare_kind(FIXED | {"state"}, PLAIN),
        "batch-rotating": declare_kind(FIXED, PLAIN),
        "batch-state": declare_kind(ALL | ROWS | {"state"}, BESIDE),
    }
    return _batched("transformers-batched-hybrid", kinds, HYBRID, share=SHARE)


def static_hybrid() -> Backend:
    """Declares `StaticCache` with layers that have attention and a recurrent state."""
    config, wide = {**PLAIN, **ROOM}, overflow(**{"window - step": [1, None]})
    kinds = {
        "batch-kv": declare_kind(FIXED, config, overflow(), inputs="kept"),
        "batch-rotating": declare_kind(FIXED, config, wide, inputs="kept"),
        "batch-state": declare_kind(FIXED | {"state"}, BESIDE),
    }
    return _batched(
        "transformers-batched-static-hybrid", kinds, STATIC_HYBRID, share=SHARE
    )


# --- opening ----------------------------------------------------------------------------


def _make_dynamic(model: Any, config: Config) -> Cache:
    return DynamicCache(config=model)


def _make_static(model: Any, config: Config) -> Cache:
    return StaticCache(config=model, max_cache_len=get_room(config))


def _make_quantized(model: Any, config: Config) -> Cache:
    return Cache(layers=[IdentityLayer(residual_length=config["step"])])


def _open(
    make: Callable[[Any, Config], Cache],
    get_type: Callable[[Config], Attention],
    batch: type[Batch],
    states: type[RecurrentBatch],
    config: Config,
) -> Layer | Batch:
    """Opens a batch of config["rows"] rows, or a single cache if config["rows"] is None.

    Args:
        make: makes the cache of a model.
        get_type: returns the type of the layer and its window.
        batch, states: the classes of batches of tokens and of states.
    """
    model, rows = make_model(config, get_type(config)), config["rows"]
    cache = make(model, config)
    if config["kind"] == "batch-state":
        if rows is None:
            return RecurrentLayer(cache, model, config)
        return states(cache, model, rows, config)
    return Layer(cache, model) if rows is None else batch(cache, model, rows)


PLAIN_TYPES = get_attention, Batch, RecurrentBatch
OF_DYNAMIC, OF_STATIC, OF_QUANTIZED = (
    partial(_open, make, *PLAIN_TYPES)
    for make in (_make_dynamic, _make_static, _make_quantized)
)
INDEXED, STATIC_INDEXED = (
    partial(_open, make, get_indexed, IndexedBatch, RecurrentBatch)
    for make in (_make_dynamic, _make_static)
)
HYBRID, STATIC_HYBRID = (
    partial(_open, make, get_hybrid, HybridBatch, HybridStates)
    for make in (_make_dynamic, _make_static)
)


# --- declarations -----------------------------------------------------------------------


def _batched(
    name: str,
    kinds: Mapping[str, Kind],
    opener: Open,
    lifetime: Lifetime = "until-write",
    share: int = 1,
) -> Backend:
    return declare_backend(name, kinds, opener, lifetime, share, contract="batched")
