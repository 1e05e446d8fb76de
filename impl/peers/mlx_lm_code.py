"""Programs as code in mlx-lm's own API; see `harness.backends.backend`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import Call, Code

Config = Mapping[str, Any]
SOURCE = Path(__file__).parent / "snippets" / "mlx_lm.py"

OFFSET = "{cache}.offset"


def get_trim(call: str) -> Call:
    return Call(f"trimmed = {call}", {"trimmed": "trimmed", "offset": OFFSET})


COPIED = {
    "trim": get_trim("trim_prompt_cache([{cache}], {count})"),
    "clone": Call("{into} = copy.deepcopy({cache})"),
}
STORED = {
    "trim": get_trim("{cache}.trim({count})"),
    "clone": Call("{into} = store_and_load({cache})"),
}
SIZE = Call("size = {cache}.size()", {"size": "size"})


def write_plain(
    config: Config, masks_window: bool = True, return_array: bool = False, less: int = 0
) -> Code:
    """Writes `KVCache` and `RotatingKVCache`.

    Args:
        config: a complete config.
        masks_window: the model passes its window to the mask.
        return_array: it asks for a mask that is an array.
        less: by how many tokens the ring is smaller than the window.
    """
    reading = get_reading("read_state", "read_view")
    opening, window = "KVCache()", config["window"]
    if config["kind"] == "rotating":
        opening = f"RotatingKVCache(max_size={window - less}, keep={config['keep']})"
        # A ring may return older tokens too, so the tags may rightly differ.
        reading = {name: Call(call.text) for name, call in reading.items()}
    is_usual = masks_window and not less
    others = {**(COPIED if is_usual else STORED), **reading, "size": SIZE}
    settings = {
        "WINDOW": str(window if masks_window else None),
        "RETURN_ARRAY": str(return_array),
    }
    return get_code(config, opening, "update", others, settings)


def write_restored(config: Config) -> Code:
    """Writes the same caches, made anew from their `state` before each operation."""
    code = write_plain(config)
    anew = "{cache} = restore({cache})\n"
    calls = {**code.calls, **STORED}
    for name in ("update", "trim"):
        if name in calls:
            calls[name] = replace(calls[name], text=anew + calls[name].text)
    return replace(code, calls=calls)


def write_concatenated(config: Config) -> Code:
    reading = get_reading("read_concatenated", "read_view")
    config = {**config, "step": 256}
    return get_code(config, "ConcatenateKVCache()", "update", {**STORED, **reading})


def write_quantized(config: Config, group_size: int, bits: int) -> Code:
    opening = f"QuantizedKVCache(group_size={group_size}, bits={bits})"
    reading = get_reading("read_quantized", "read_quantized_view")
    return get_code(config, opening, "update_quantized", {**STORED, **reading})


def write_turning(config: Config, setting: tuple[int, int, int]) -> Code:
    """Writes a `KVCache` that is quantized in mid-sequence."""
    code = get_code(config, "KVCache()", "update_turning", COPIED)
    text = "{cache}, visible = update_turning({cache}, {written})"
    calls = {**code.calls, "update": replace(code.calls["update"], text=text)}
    names = ("START", "GROUP_SIZE", "BITS")
    settings = dict(zip(names, map(str, setting), strict=True))
    return replace(code, calls=calls, settings={**code.settings, **settings})


def write_chunked(config: Config) -> Code:
    opening = f"ChunkedKVCache({config['chunk']})"
    return get_code(config, opening, "update_chunked", STORED)


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


def get_reading(state: str, view: str) -> Mapping[str, Call]:
    """Returns calls of these functions for `state` and `view`."""
    return {
        name: Call(f"tags = {function}({{cache}})", {"tags": "tags"})
        for name, function in (("state", state), ("view", view))
    }


def get_code(
    config: Config,
    opening: str,
    update: str,
    others: Mapping[str, Call],
    more: Mapping[str, str] | None = None,
) -> Code:
    """Returns the code for a single cache; none for a recurrent state.

    Args:
        config: a complete config.
        opening: the expression that makes an empty cache.
        update: the function that updates it.
        others: the other operations.
        more: settings beside the common ones.
    """
    call = Call(
        f"visible = {update}({{cache}}, {{written}})",
        {"visible": "visible", "offset": OFFSET},
    )
    if config["step"] != 256:
        opening = f"stepping({opening}, {config['step']})"
    calls = {} if config["kind"] == "state" else {"update": call, **others}
    return Code(SOURCE, {**get_settings(config), **(more or {})}, opening, calls)


def get_settings(config: Config) -> dict[str, str]:
    return {
        "HEADS": str(config["heads"]),
        "KEY_DIM": str(config["key_dim"]),
        "VALUE_DIM": str(config["value_dim"]),
        "DTYPE": f"mx.{config['dtype']}",
    }
