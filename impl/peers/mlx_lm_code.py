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


def write_batch(config: Config, masks_window: bool, trims: str) -> Code:
    """Writes batches of `KVCache` and `RotatingKVCache`, and their single caches.

    Args:
        config: a complete config.
        masks_window: the model passes its window to the mask.
        trims: the operation "trim".
    """
    window = config["window"]
    opening = "KVCache()" if window is None else f"RotatingKVCache(max_size={window})"
    settings = {"WINDOW": str(window if masks_window else None), "RETURN_ARRAY": "False"}
    reading = get_reading("read_state", "read_view")
    others = {
        **get_rows(opening, config["step"]),
        "pad_right": Call("pad_right({cache}, {lengths})"),
        "finalize": Call("{cache}.finalize()", OFFSETS),
        "trim": Call(f"trimmed = {trims}", {"trimmed": "trimmed", **BOTH}),
        "state": reading["state"],
        "state rows": Call("tags = read_rows({cache})", {"tags": "tags[{layer}]"}),
        "clone": COPIED["clone"],
        "save": Call("{into} = store_and_load({cache})"),
        "load": Call(
            "{cache} = stepping(store_and_load({from}), STEP)", OFFSETS, makes=True
        ),
        "update rows": Call(
            "visible, position = update_rows({cache}, {written_rows}, {length}, {left})",
            {
                "visible": "visible[{layer}]",
                "position": "position[{layer}]",
                "offset": "{cache}.offset.tolist()[{layer}]",
            },
        ),
    }
    settings["STEP"] = str(config["step"])
    return get_code(config, opening, "update", others, settings)


def write_states(config: Config) -> Code:
    """Writes batches of `ArraysCache`, which are not updated."""
    settings = {**get_settings(config), "STEP": "256"}
    return Code(SOURCE, settings, ARRAYS, get_rows(ARRAYS, 256))


ARRAYS = "ArraysCache(size=2)"
OFFSETS = {"offsets": "{cache}.offset.tolist()"}
BOTH = {"offset": OFFSET, **OFFSETS}


def get_rows(opening: str, step: int) -> dict[str, Call]:
    """Returns the operations that move whole rows."""
    if step != 256:
        opening = f"stepping({opening}, {step})"
    return {
        "open": Call(
            f"{{cache}} = merge([{opening} for _ in range({{rows}})])",
            OFFSETS,
            makes=True,
        ),
        "stack": Call(
            "{cache} = merge({caches})", OFFSETS, makes=True, uses_up=("caches",)
        ),
        "filter": Call("{cache}.filter({rows})", OFFSETS),
        "extend": Call("{cache}.extend({other})", OFFSETS, uses_up=("other",)),
        "extract": Call(
            "{into} = stepping({cache}.extract({row}), STEP)", {"offset": "{into}.offset"}
        ),
    }


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
