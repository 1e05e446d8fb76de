"""Programs as code in transformers' own API; see `harness.backends.backend`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import Call, Code

Config = Mapping[str, Any]
SOURCE = Path(__file__).parent / "snippets" / "transformers.py"
BATCHED = SOURCE.with_name("transformers_batched.py")
ROOM_BESIDE = 1024
"""Room for K and V beside a recurrent state in a static cache; as a window it is none."""

Attention = tuple[str, int | None]
"""The type of a layer, and its window."""

OFFSET = "int({cache}.get_seq_length())"

CALLS = {
    "update": Call(
        "visible = update({cache}, {written})", {"visible": "visible", "offset": OFFSET}
    ),
    "trim": Call(
        "trimmed = trim({cache}, {count})", {"trimmed": "trimmed", "offset": OFFSET}
    ),
    "clone": Call("{into} = copy.deepcopy({cache})"),
    "state": Call("tags = read_state({cache})", {"tags": "tags"}),
    "size": Call(f"size = {OFFSET}", {"size": "size"}),
    "free": Call("{cache}.reset()", {"offset": OFFSET}),
}
MASKS = {
    "full_attention": "create_causal_mask",
    "sliding_attention": "create_sliding_window_causal_mask",
    "chunked_attention": "create_chunked_causal_mask",
    "linear_attention": "create_causal_mask",  # it has none
    "indexed_attention": "partial(create_causal_mask, allow_is_causal_skip=False)",
    "hybrid": "create_causal_mask",
    "hybrid_sliding": "create_sliding_window_causal_mask",
}

OFFSETS = {"offsets": "{cache}.offsets()"}
OF_ROWS = {
    "visible": "visible[{layer}]",
    "position": "positions[{layer}]",
    "offset": "{cache}.offsets()[{layer}]",
}
KEEP = "{cache}.attention_mask = {cache}.attention_mask[{rows}]"
BATCH_CALLS = {
    "open": Call("{cache} = Batch({opening}, {rows})", OFFSETS, makes=True),
    "update": Call("positions, visible = update({cache}, {written_rows})", OF_ROWS),
    "trim": Call("trimmed = trim({cache}, {count})", {**OFFSETS, "trimmed": "trimmed"}),
    "filter": Call(
        "{cache}.cache.batch_select_indices(torch.tensor({rows}))\n" + KEEP, OFFSETS
    ),
    "select": Call("{cache}.cache.reorder_cache(torch.tensor({rows}))\n" + KEEP, OFFSETS),
    "repeat": Call(
        "{cache}.cache.batch_repeat_interleave({times})\n"
        + KEEP.replace("[{rows}]", ".repeat_interleave({times}, dim=0)"),
        OFFSETS,
    ),
    "clone": Call("{into} = copy.deepcopy({cache})"),
    "state": Call("tags = read_rows({cache})", {"tags": "tags[{layer}]"}),
    "free": Call("free({cache})", OFFSETS),
}
STATE_CALLS = {
    **BATCH_CALLS,
    "update": Call("positions, visible = advance({cache}, {written_rows})", OF_ROWS),
    "state": Call("tags = read_states({cache})", {"tags": "tags[{layer}]"}),
}


def write_with(opening: str, clips: bool = False) -> Callable[[Config], Code]:
    """Returns the code of a cache opened by an expression.

    Args:
        opening: the expression, with fields of the config in braces.
        clips: see `Code`.
    """
    return lambda config: Code(
        *(SOURCE, get_settings(config), opening.format(**config), get_calls(config)),
        clips=clips,
    )


def get_calls(config: Config) -> Mapping[str, Call]:
    """Returns the code of the operations; none of a recurrent state."""
    return {} if config["kind"] == "state" else CALLS


def get_settings(config: Config, attention: Attention | None = None) -> dict[str, str]:
    layer_type, window = attention or get_attention(config)
    form = "eager" if config["mask_form"] == "additive" else "sdpa"
    sizes = {"sliding_window": window, "attention_chunk_size": config["chunk"]}
    given = [f"    {name}={size},\n" for name, size in sizes.items() if size is not None]
    return {
        "HEADS": str(config["heads"]),
        "KEY_DIM": str(config["key_dim"]),
        "VALUE_DIM": str(config["value_dim"]),
        "DTYPE": f"torch.{config['dtype']}",
        "CONFIG": f"""PreTrainedConfig(
    num_hidden_layers=1,
    layer_types=["{layer_type}"],
{"".join(given)}    attn_implementation="{form}",
    dtype=DTYPE,
)""",
        "make_mask": MASKS[layer_type],
    }


# --- the layer of a config --------------------------------------------------------------


def get_attention(config: Config) -> Attention:
    """Returns the layer of a cache, or batch, of attention or of a state alone."""
    kind, window = config["kind"].removeprefix("batch-"), config["window"]
    if kind == "state":
        return "linear_attention", None
    if kind == "rotating":
        return "sliding_attention", window
    return "full_attention" if config["chunk"] is None else "chunked_attention", None


def get_indexed(config: Config) -> Attention:
    """Returns the layer with an indexer."""
    return "indexed_attention", None


def get_hybrid(config: Config) -> Attention:
    """Returns the layer with attention and a state. Where the state is compared, the
    window is the config field "step", which a state does not have."""
    window = config["window"]
    if config["kind"] == "batch-state" and config["step"] < ROOM_BESIDE:
        window = config["step"]
    return "hybrid" if window is None else "hybrid_sliding", window


def get_room(config: Config) -> int:
    """Returns the `max_cache_len` of a static cache: the config field "step", which it
    does not have."""
    return ROOM_BESIDE if config["kind"] == "batch-state" else int(config["step"])


# --- batches ---------------------------------------------------------------------------


def write_batches_with(
    opening: str,
    get: Callable[[Config], Attention] = get_attention,
    store: str = "",
) -> Callable[[Config], Code]:
    """Returns the code of batches in a cache opened by an expression.

    Args:
        opening: the expression, with {room} for that of a static cache.
        get: returns the layer of a config.
        store: of the vocabulary, what stores new K and V in place of `update`, or K and
            V beside a state.
    """

    def write(config: Config) -> Code:
        is_state = config["kind"] == "batch-state"
        calls = dict(STATE_CALLS if is_state else BATCH_CALLS)
        if store:
            name = "store_attention" if is_state else store
            text = calls["update"].text.replace(
                "{written_rows}", f"{{written_rows}}, {name}"
            )
            calls["update"] = Call(text, OF_ROWS)
        settings = get_settings(config, get(config))
        settings["KERNEL"] = str(config["conv_width"])
        filled = opening.format(room=get_room(config))
        return Code(BATCHED, settings, filled, calls, frozenset({"malformed"}))

    return write
