"""Programs as code in mlx-lm's own API; see `harness.backends.backend`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import Call, Code

Config = Mapping[str, Any]
SOURCE = Path(__file__).parent / "snippets" / "mlx_lm.py"

TRIM = Call(
    "trimmed = trim_prompt_cache([{cache}], {count})",
    {"trimmed": "trimmed", "offset": "{cache}.offset"},
)
CLONE = Call("{into} = copy.deepcopy({cache})")
COMMON = {"trim": TRIM, "clone": CLONE}


def write_plain(config: Config) -> Code:
    """Writes `KVCache` and `RotatingKVCache`."""
    if config["kind"] == "kv":
        reading = get_reading("read_state", "read_view")
        return get_code(config, "KVCache()", "update", {**reading, "size": SIZE})
    window, keep = config["window"], config["keep"]
    opening = f"RotatingKVCache(max_size={window}, keep={keep})"
    # A ring may return older tokens too, so the tags may rightly differ.
    reading = {
        name: Call(call.text)
        for name, call in get_reading("read_state", "read_view").items()
    }
    return get_code(config, opening, "update", {**reading, "size": SIZE})


def write_concatenated(config: Config) -> Code:
    reading = get_reading("read_concatenated", "read_view")
    return get_code({**config, "step": 256}, "ConcatenateKVCache()", "update", reading)


def write_quantized(config: Config, group_size: int, bits: int) -> Code:
    opening = f"QuantizedKVCache(group_size={group_size}, bits={bits})"
    reading = get_reading("read_quantized", "read_quantized_view")
    return get_code(config, opening, "update_quantized", reading)


def write_chunked(config: Config) -> Code:
    opening = f"ChunkedKVCache({config['chunk']})"
    return get_code(config, opening, "update_chunked", {})


def write_prompts(config: Config) -> Code:
    """Writes `LRUPromptCache`: K and V of a request's tokens, one cache per layer."""
    calls = {
        "begin": Call(
            "tokens = {tokens}\ncaches, remaining = fetch({cache}, tokens)",
            {
                "remaining": "remaining",
                "offsets": "[cache.offset for cache in caches]",
                "tags": "read_state(caches[{layer}])",
            },
        ),
        "feed": Call(
            "rows = [update(cache, {written}) for cache in caches]\n"
            "tokens = tokens + {generate}",
            {
                "offsets": "[cache.offset for cache in caches]",
                "visible": "rows[{layer}]",
            },
        ),
        "close": Call("stored = insert({cache}, tokens, caches)", {"stored": "stored"}),
    }
    layers, step = len(config["layers"]), config["step"]
    settings = {**get_settings(config), "LAYERS": str(layers), "STEP": str(step)}
    return Code(SOURCE, settings, "LRUPromptCache()", calls)


SIZE = Call("size = {cache}.size()", {"size": "size"})


def get_reading(state: str, view: str) -> Mapping[str, Call]:
    """Returns calls of these functions for `state` and `view`."""
    return {
        name: Call(f"tags = {function}({{cache}})", {"tags": "tags"})
        for name, function in (("state", state), ("view", view))
    }


def get_code(
    config: Config, opening: str, update: str, reading: Mapping[str, Call]
) -> Code:
    """Returns the code for a single cache."""
    call = Call(
        f"visible = {update}({{cache}}, {{written}})",
        {"visible": "visible", "offset": "{cache}.offset"},
    )
    if config["step"] != 256:
        opening = f"stepping({opening}, {config['step']})"
    calls = {"update": call, **COMMON, **reading}
    return Code(SOURCE, get_settings(config), opening, calls)


def get_settings(config: Config) -> dict[str, str]:
    return {
        "HEADS": str(config["heads"]),
        "KEY_DIM": str(config["key_dim"]),
        "VALUE_DIM": str(config["value_dim"]),
        "DTYPE": f"mx.{config['dtype']}",
        "WINDOW": str(config.get("window")),
    }
