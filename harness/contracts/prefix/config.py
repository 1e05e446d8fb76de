"""The config of a prefix program, and the configs of the caches that it builds on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.harness.contracts.layer.model import CONFIG as LAYER_CONFIG
from lockstep.harness.contracts.layer.model import why_not_config as why_not_layer
from lockstep.harness.contracts.unified.model import CONFIG as UNIFIED_CONFIG
from lockstep.harness.contracts.unified.model import why_not_config as why_not_unified
from lockstep.harness.core.fields import (
    DIMENSION,
    DTYPE,
    MAX_POSITION,
    Schema,
    integer,
    optional,
)

CONVERSATIONS = ("session", "trie")
"""The kinds that stand above one cache for each layer; slots stand above one for all."""

SIZES: Mapping[str, tuple[str, ...]] = {
    "kv": (),
    "rotating": ("window",),
    "state": (),
    "causal": (),
    "swa": ("window",),
    "swa-memory": ("window", "memory"),
    "chunked": ("chunk",),
    "recurrent": (),
    "encoder": (),
}
"""The sizes that stand behind the kind of a layer: "rotating:4", "swa-memory:2:5"."""

LAYER_KINDS = ("kv", "rotating", "state")
LAYER = "^(" + "|".join(SIZES) + r")(:[0-9]{1,5}){0,2}(?![\s\S])"

CONFIG: Mapping[str, Schema] = {
    "kind": {"enum": [*CONVERSATIONS, "slots"]},
    "layers": {
        "type": "array",
        "minItems": 1,
        "maxItems": 8,
        "items": {"type": ["string", "null"], "pattern": LAYER},
        "default": ["kv"],
    },
    "limit": optional(integer(0, 1 << 40)),
    "interval": optional(integer(1, MAX_POSITION)),
    "slots": {**integer(1, 8), "default": 1},
    "context": {**integer(1, 1024), "default": 16},
    "keep": {**integer(0, 1023), "default": 0},
    "several_users": {"type": "boolean", "default": False},
    "step": {**integer(1, 4096), "default": 256},
    "heads": {**integer(1, 64), "default": 1},
    "key_dim": {**DIMENSION, "default": 4},
    "value_dim": {**DIMENSION, "default": 4},
    "conv_width": {**integer(2, 16), "default": 4},
    "dtype": DTYPE,
    "shift": {"type": "boolean", "default": True},
}
"""`layers`: the cache of each layer, null for none; of slots, the caches of a wrapper, or
the only one. `limit`, in bytes, belongs to tries; `interval` to tries, and to recurrent
caches under slots. `slots`, `context`, `keep` and `several_users` belong to slots, and so
does `shift`."""

SLOTS_ONLY = ("slots", "context", "keep", "several_users", "shift")
TRIE_ONLY = ("limit",)


def why_not_config(config: Mapping[str, Any]) -> str | None:
    """The rule between its fields that a config breaks, or None."""
    kind = config["kind"]
    for names, owner in ((SLOTS_ONLY, "slots"), (TRIE_ONLY, "trie")):
        for name in names:
            if kind != owner and config[name] != CONFIG[name]["default"]:
                return f"{name} belongs to {owner}, not to {kind}"
    has_interval = kind == "trie" or "recurrent" in config["layers"]
    if config["interval"] is not None and not has_interval:
        return f"interval belongs to trie and recurrent caches, not to this {kind}"
    for spec in config["layers"]:
        why = why_not_spec(spec, kind)
        if why:
            return why
    if kind == "slots":
        if config["keep"] >= config["context"]:
            return f"keep {config['keep']} leaves nothing of {config['context']} to move"
        return why_not_unified(get_unified_config(config))
    layers = (get_layer_config(config, spec) for spec in config["layers"] if spec)
    return next((why for layer in layers if (why := why_not_layer(layer))), None)


def why_not_spec(spec: str | None, kind: str) -> str | None:
    if spec is None:
        return "slots need a cache in every layer" if kind == "slots" else None
    name, *sizes = spec.split(":")
    if (name in LAYER_KINDS) == (kind == "slots"):
        return f"{kind} has no layer of kind {name}"
    if len(sizes) != len(SIZES[name]):
        form = ":".join((name, *SIZES[name]))
        return f'"{spec}" is no layer; it is written {form}'
    return None


def parse_layer(spec: str) -> dict[str, Any]:
    """{"kind": "rotating", "window": 4} of "rotating:4"."""
    name, *sizes = spec.split(":")
    numbers = map(int, sizes)
    return {"kind": name, **dict(zip(SIZES[name], numbers, strict=True))}


CHECKPOINTS = 4
"""That a recurrent cache keeps of each state."""

DIMENSIONS = ("heads", "key_dim", "value_dim", "conv_width", "dtype")

LAYER_DEFAULTS, UNIFIED_DEFAULTS = (
    {name: schema.get("default") for name, schema in schemas.items()}
    for schemas in (LAYER_CONFIG, UNIFIED_CONFIG)
)
"""What stands in a config of another contract where this one has no field for it."""


def get_layer_config(config: Mapping[str, Any], spec: str) -> dict[str, Any]:
    """A complete config of the layer contract, for one layer."""
    own = {name: config[name] for name in (*DIMENSIONS, "step")}
    return {**LAYER_DEFAULTS, **own, **parse_layer(spec)}


def get_unified_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A complete config of the unified contract, for the cache under the slots."""
    own = {name: config[name] for name in (*DIMENSIONS, "shift")}
    unified = {**UNIFIED_DEFAULTS, **own}
    unified |= {"sequences": config["slots"], "capacity": config["context"]}
    unified["batch"] = config["context"]
    if config["interval"] is not None:
        unified |= {"interval": config["interval"], "checkpoints": CHECKPOINTS}
    layers = [parse_layer(spec) for spec in config["layers"]]
    if len(layers) == 1:
        return {**unified, **layers[0]}
    return {**unified, "kind": "wrapper", "caches": layers}
