"""Declares the backends for the layer caches of transformers.

`transformers_layers` has the adapters. Several backends use the same class in different
ways.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, DynamicCache, QuantizedCache, StaticCache

from lockstep.harness.backends import Backend, Duty, Inputs, Kind, Lifetime
from lockstep.impl.peers.transformers_layers import (
    Attention,
    Config,
    IdentityLayer,
    Layer,
    RecurrentLayer,
    get_attention,
)
from lockstep.impl.torch.arrays import TorchArrays

LEDGER = Path(__file__).parent / "ledger"
Fields = Mapping[str, tuple[Any, ...]]
Open = Callable[[Config], Any]

COMMON: Fields = {
    "mask_padding": (1,),
    "mask_form": ("any", "additive"),
    "keep": (0,),
}
PLAIN: Fields = {**COMMON, "chunk": (None,)}
CHUNKED: Fields = {**COMMON, "chunk": (1, 2, 3, 4, 5, 8)}

ROOM = {"step": (16, 8, 11, 1024)}
"""The config field "step" holds the `max_cache_len` of a static cache."""

FP8_ROUNDING = 0.04
"""More than half a step of float8_e4m3fn between 256 and 448, where 448 stands for 15/16,
and the rounding to bfloat16."""

SHARE = 4
"""A backend that differs little from another backend runs 1/SHARE of the programs."""

RECORD = "once the window is full: callers call activate_past_recording() first"


def _full(size: str) -> Duty:
    """Makes a duty of callers: do not trim a sliding layer of this size after it has
    dropped tokens that it would need again."""
    return Duty({"op": "trim", f"offset - {size}": [0, None]}, f"trim {RECORD}")


def _recorded(size: str) -> Duty:
    """Makes a duty of callers: do not trim more tokens than a recording sliding layer has
    kept."""
    when = {"op": "trim", f"offset - {size}": [0, None], "count - written": [1, None]}
    rule = "trim of more than was written since the last one: crop drops the rest"
    return Duty(when, rule)


def _overflow(**fields: Any) -> Duty:
    """Makes a duty of callers: do not update a static cache beyond its
    `max_cache_len`."""
    when = {"op": "update", "offset + length - step": [1, None], **fields}
    return Duty(when, "update of more than max_cache_len tokens")


def uncroppable(size: str, held: str = "offset") -> tuple[Duty, ...]:
    """Forbids a trim that a static layer with a window or chunk cannot undo: its
    `is_croppable` is false, or it has got more than `max_cache_len` tokens.

    Args:
        size: the config field with the size of the window or chunk.
        held: the fact that counts the tokens or columns in the layer.
    """
    larger = {"op": "trim", f"step - {size}": [1, None]}
    return (
        Duty(larger, f"trim if max_cache_len is larger than the {size}"),
        Duty({"op": "trim", f"{held} - step": [1, None]}, "trim past max_cache_len"),
    )


# --- dynamic ----------------------------------------------------------------------------


def transformers() -> Backend:
    """Declares `DynamicCache` with a full layer as kv, and with a sliding layer as
    rotating.

    A sliding layer holds W - 1 tokens between updates, but counts all tokens that it has
    seen. Therefore `state` and `size` are not declared for it.
    """
    kinds = {
        "kv": declare_kind({"update", "state", "size", "trim", "clone", "free"}, PLAIN),
        "rotating": declare_kind(
            {"update", "trim", "clone", "free"}, PLAIN, _full("window")
        ),
    }
    return declare_backend("transformers", kinds, _open_dynamic, "forever")


def transformers_chunked() -> Backend:
    """Declares `DynamicCache` with a chunked layer, which is a sliding layer with another
    mask."""
    operations = {"update", "size", "trim", "clone", "free"}
    kinds = {"kv": declare_kind(operations, CHUNKED, _full("chunk"))}
    return declare_backend("transformers-chunked", kinds, _open_dynamic, "forever")


def transformers_recorded() -> Backend:
    """Declares `DynamicCache` with sliding and chunked layers that record their past, so
    that `crop` restores tokens that have left the window.

    Generation with an assistant uses these layers.
    """
    operations = {"update", "trim", "clone", "free"}
    ring = {**PLAIN, "record": (True,)}
    kinds = {
        "kv": declare_kind(operations, CHUNKED, _recorded("chunk")),
        "rotating": declare_kind(operations, ring, _recorded("window")),
    }
    return declare_backend(
        "transformers-recorded", kinds, _open_recorded, "forever", SHARE
    )


# --- static -----------------------------------------------------------------------------


def transformers_static() -> Backend:
    """Declares `StaticCache` with full and sliding layers, whose tensors have a fixed
    size. A window may be larger or smaller than this size."""
    full, wide = _overflow(), _overflow(**{"window - step": [1, None]})
    kinds = {
        "kv": declare_kind(
            {"update", "size", "trim", "clone", "free"},
            {**PLAIN, **ROOM},
            full,
            inputs="kept",
        ),
        "rotating": declare_kind(
            {"update", "trim", "clone", "free"},
            {**PLAIN, **ROOM},
            wide,
            *uncroppable("window"),
            inputs="kept",
        ),
    }
    return declare_backend("transformers-static", kinds, _open_static, "until-write")


def transformers_static_chunked() -> Backend:
    """Declares `StaticCache` with a chunked layer."""
    config = {**COMMON, **ROOM, "chunk": (4, 1, 2, 3, 5, 8, 12, 20)}
    wide = _overflow(**{"chunk - step": [1, None]})
    kinds = {
        "kv": declare_kind(
            {"update", "size", "trim", "clone", "free"},
            config,
            wide,
            *uncroppable("chunk"),
            inputs="kept",
        )
    }
    return declare_backend(
        "transformers-static-chunked", kinds, _open_static, "until-write"
    )


# --- quantized --------------------------------------------------------------------------


def transformers_quantized() -> Backend:
    """Declares the base class of the quantized layers, whose `is_croppable` is false.
    The config field "step" is the residual length of the layer."""
    kinds = {
        "kv": declare_kind({"update", "size", "clone", "free"}, PLAIN, inputs="kept")
    }
    return declare_backend("transformers-quantized", kinds, _open_quantized, "forever")


def transformers_fp8() -> Backend:
    """Declares `QuantizedCache("fp8")`.

    The first update sets the scale; larger numbers in later updates would be clipped.
    With 64 dimensions, every token contains the largest number, so no number is clipped.
    """
    config = {**PLAIN, "heads": (1, 2), "key_dim": (64,), "value_dim": (64,)}
    kinds = {
        "kv": declare_kind({"update", "size", "clone", "free"}, config, inputs="kept")
    }
    return declare_backend(
        "transformers-fp8", kinds, _open_fp8, "forever", SHARE, FP8_ROUNDING
    )


# --- recurrent --------------------------------------------------------------------------


def transformers_linear() -> Backend:
    """Declares `LinearAttentionLayer` in a `DynamicCache`.

    `trim` is not declared, because a layer with a recurrent state cannot be cropped; its
    `is_croppable` is false.
    """
    kinds = {"state": declare_kind({"update", "state", "view", "clone", "free"}, {})}
    return declare_backend(
        "transformers-linear", kinds, _open_linear, "until-write", SHARE // 2
    )


# --- opening ----------------------------------------------------------------------------


def _open_dynamic(config: Config) -> Layer:
    model = make_model(config)
    return Layer(DynamicCache(config=model), model)


def _open_recorded(config: Config) -> Layer:
    layer = _open_dynamic(config)
    layer.cache.activate_past_recording()
    return layer


def _open_static(config: Config) -> Layer:
    model = make_model(config)
    return Layer(StaticCache(config=model, max_cache_len=config["step"]), model)


def _open_quantized(config: Config) -> Layer:
    layer = IdentityLayer(residual_length=config["step"])
    return Layer(Cache(layers=[layer]), make_model(config))


def _open_fp8(config: Config) -> Layer:
    model = make_model(config)
    return Layer(QuantizedCache("fp8", model), model)


def _open_linear(config: Config) -> Layer:
    model = make_model(config)
    return RecurrentLayer(DynamicCache(config=model), model, config)


def make_model(config: Config, attention: Attention | None = None) -> Any:
    """Returns the configuration of a model with one layer.

    Args:
        config: a complete config.
        attention: the type of the layer; by default, the type that belongs to the kind.
    """
    layer_type, window = attention or get_attention(config)
    make: Callable[..., Any] = PreTrainedConfig  # model fields are not annotated
    return make(
        num_hidden_layers=1,
        layer_types=[layer_type],
        sliding_window=window,
        attention_chunk_size=config["chunk"],
        attn_implementation="eager" if config["mask_form"] == "additive" else "sdpa",
        dtype=config["dtype"],
    )


# --- declarations -----------------------------------------------------------------------


def declare_kind(
    operations: set[str], config: Fields, *duties: Duty, inputs: Inputs = "copied"
) -> Kind:
    """Declares a kind.

    `inputs` is "kept" if the cache returns the tensors that it gets: a static cache
    returns a prompt as long as its window, a quantized cache returns the first prompt.
    This is safe: a model makes new K and V in each pass and never changes them.
    """
    return Kind(frozenset(operations), config, inputs=inputs, duties=duties)


def _overwrite(array: Any) -> None:
    array.fill_(math.nan)


def declare_backend(
    name: str,
    kinds: Mapping[str, Kind],
    opener: Open,
    lifetime: Lifetime,
    share: int = 1,
    tolerance: float = 0.0,
    contract: str = "layer",
) -> Backend:
    return Backend(
        name=name,
        device="cpu",
        contracts={contract: kinds},
        arrays=TorchArrays("cpu"),
        open=opener,
        dtypes=("float32", "float16", "bfloat16"),
        lifetime=lifetime,
        causal="upper-left",
        overwrite=_overwrite,
        tolerance=tolerance,
        ledger=LEDGER,
        code=("lockstep",),
        versions={package: version(package) for package in ("transformers", "torch")},
        share=share,
    )
