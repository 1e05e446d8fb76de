"""Declares the backends for batches in the caches of transformers.

`transformers_batches` has the adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    Config,
    IdentityLayer,
    Layer,
    RecurrentLayer,
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
    return _batched("transformers-batched", kinds, _open_dynamic, "forever")


def dynamic_chunked() -> Backend:
    """Declares `DynamicCache` with a chunked layer, which is a sliding layer with another
    mask."""
    kinds = {"batch-kv": declare_kind(ALL | ROWS | {"trim"}, CHUNKED, _full("chunk"))}
    return _batched(
        "transformers-batched-chunked", kinds, _open_dynamic, "forever", SHARE
    )


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
    return _batched("transformers-batched-static", kinds, _open_static)


def static_chunked() -> Backend:
    """Declares `StaticCache` with a chunked layer."""
    wide = overflow(**{"chunk - step": [1, None]})
    duties = wide, *uncroppable("chunk", "width")
    kinds = {"batch-kv": declare_kind(CROPPED, CHUNKED_STATIC, *duties, inputs="kept")}
    return _batched(
        "transformers-batched-static-chunked", kinds, _open_static, share=SHARE
    )


def indexed() -> Backend:
    """Declares `DynamicCache` with an indexed layer, which also stores the keys of an
    indexer."""
    config = {**PLAIN, "heads": (1,)}
    kinds = {"batch-kv": declare_kind(ALL | ROWS | {"trim"}, config)}
    return _batched("transformers-batched-indexed", kinds, _open_indexed, share=SHARE)


def static_indexed() -> Backend:
    """Declares `StaticCache` with an indexed layer, which also stores the keys of an
    indexer."""
    config = {**PLAIN, **ROOM, "heads": (1,)}
    kinds = {"batch-kv": declare_kind(CROPPED, config, overflow(), inputs="kept")}
    return _batched(
        "transformers-batched-static-indexed", kinds, _open_static_indexed, share=SHARE
    )


def quantized() -> Backend:
    """Declares the base class of the quantized layers. If the residual length ("step") is
    1, every update is quantized immediately."""
    config = {**PLAIN, "step": (1,)}
    kinds = {"batch-kv": declare_kind(ALL | ROWS, config, inputs="kept")}
    return _batched(
        "transformers-batched-quantized", kinds, _open_quantized, "forever", SHARE
    )


# --- recurrent states, alone and beside attention ---------------------------------------


def linear() -> Backend:
    """Declares `LinearAttentionLayer` in a `DynamicCache`.

    The layer cannot be cropped, and has neither `batch_select_indices` nor
    `batch_repeat_interleave`.
    """
    kinds = {"batch-state": declare_kind(FIXED | {"state"}, {})}
    return _batched("transformers-batched-linear", kinds, _open_linear, share=SHARE // 2)


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
    return _batched("transformers-batched-hybrid", kinds, _open_hybrid, share=SHARE)


def static_hybrid() -> Backend:
    """Declares `StaticCache` with layers that have attention and a recurrent state."""
    config, wide = {**PLAIN, **ROOM}, overflow(**{"window - step": [1, None]})
    kinds = {
        "batch-kv": declare_kind(FIXED, config, overflow(), inputs="kept"),
        "batch-rotating": declare_kind(FIXED, config, wide, inputs="kept"),
        "batch-state": declare_kind(FIXED | {"state"}, BESIDE),
    }
    return _batched(
        "transformers-batched-static-hybrid", kinds, _open_static_hybrid, share=SHARE
    )


# --- opening ----------------------------------------------------------------------------


def _open_dynamic(config: Config) -> Layer | Batch:
    model = make_model(config)
    return _open_attention(DynamicCache(config=model), model, config, Batch)


def _open_static(config: Config) -> Layer | Batch:
    model = make_model(config)
    return _open_attention(_make_static(model, config), model, config, Batch)


def _open_quantized(config: Config) -> Layer | Batch:
    cache = Cache(layers=[IdentityLayer(residual_length=config["step"])])
    return _open_attention(cache, make_model(config), config, Batch)


def _open_indexed(config: Config) -> Layer | Batch:
    model = make_model(config, get_indexed(config))
    return _open_attention(DynamicCache(config=model), model, config, IndexedBatch)


def _open_static_indexed(config: Config) -> Layer | Batch:
    model = make_model(config, get_indexed(config))
    return _open_attention(_make_static(model, config), model, config, IndexedBatch)


def _open_linear(config: Config) -> Layer | Batch:
    model = make_model(config)
    return _open_states(DynamicCache(config=model), model, config, RecurrentBatch)


def _open_hybrid(config: Config) -> Layer | Batch:
    model = make_model(config, get_hybrid(config))
    return _open_both(DynamicCache(config=model), model, config)


def _open_static_hybrid(config: Config) -> Layer | Batch:
    model = make_model(config, get_hybrid(config))
    return _open_both(_make_static(model, config), model, config)


def _open_both(cache: Cache, model: Any, config: Config) -> Layer | Batch:
    if config["kind"] == "batch-state":
        return _open_states(cache, model, config, HybridStates)
    return _open_attention(cache, model, config, HybridBatch)


def _open_attention(
    cache: Cache, model: Any, config: Config, batch: type[Batch]
) -> Layer | Batch:
    """Returns a batch of config["rows"] rows; a single cache if config["rows"]
    is None."""
    rows = config["rows"]
    return Layer(cache, model) if rows is None else batch(cache, model, rows)


def _open_states(
    cache: Cache, model: Any, config: Config, batch: type[RecurrentBatch]
) -> Layer | Batch:
    if config["rows"] is None:
        return RecurrentLayer(cache, model, config)
    return batch(cache, model, config["rows"], config)


def _make_static(model: Any, config: Config) -> StaticCache:
    return StaticCache(config=model, max_cache_len=get_room(config))


# --- declarations -----------------------------------------------------------------------


def _batched(
    name: str,
    kinds: Mapping[str, Kind],
    opener: Open,
    lifetime: Lifetime = "until-write",
    share: int = 1,
) -> Backend:
    return declare_backend(name, kinds, opener, lifetime, share, contract="batched")
