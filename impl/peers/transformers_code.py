"""Programs as code in transformers' own API; see `harness.backends.backend`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import Call, Code

Config = Mapping[str, Any]
SOURCE = Path(__file__).parent / "snippets" / "transformers.py"
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
}


def write_with(opening: str) -> Callable[[Config], Code]:
    """Returns the code of a cache opened by an expression.

    Args:
        opening: the expression, with fields of the config in braces.
    """
    return lambda config: Code(
        SOURCE, get_settings(config), opening.format(**config), get_calls(config)
    )


def get_calls(config: Config) -> Mapping[str, Call]:
    """Returns the code of the operations; none of a recurrent state."""
    return {} if config["kind"] == "state" else CALLS


def get_settings(config: Config) -> dict[str, str]:
    attention = get_attention(config)
    form = "eager" if config["mask_form"] == "additive" else "sdpa"
    return {
        "HEADS": str(config["heads"]),
        "KEY_DIM": str(config["key_dim"]),
        "VALUE_DIM": str(config["value_dim"]),
        "DTYPE": f"torch.{config['dtype']}",
        "CONFIG": f"""PreTrainedConfig(
    num_hidden_layers=1,
    layer_types=["{attention}"],
    sliding_window={config["window"]},
    attention_chunk_size={config["chunk"]},
    attn_implementation="{form}",
    dtype=DTYPE,
)""",
        "make_mask": MASKS[attention],
    }


def get_attention(config: Config) -> str:
    """Returns the layer type of a model with this cache."""
    if config["kind"] == "state":
        return "linear_attention"
    if config["kind"] == "rotating":
        return "sliding_attention"
    return "full_attention" if config["chunk"] is None else "chunked_attention"
