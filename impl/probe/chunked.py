"""serving-chunked: Llama 4. A head sees only the positions of its chunk.

Every fourth layer of Llama 4 sees all positions and has no RoPE, so it cannot tell
distances: it finds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.harness.core.errors import UsageError
from lockstep.impl.probe.model import (
    FEED_FORWARD,
    Model,
    make_attention,
    make_ends,
    make_feed_forward,
    make_norm,
    make_settings,
    name_layer,
    place_layers,
)
from lockstep.impl.probe.sliding import BASE, make_hidden

PERIOD = 4

LLAMA_CPP_CHUNK = 8192
"""The size of chunks in llama.cpp, whatever the file says."""


def build(config: Mapping[str, Any]) -> Model:
    layers, heads = config["layers"], config["heads"]
    hidden, rotary = make_hidden(config, square=False, adjacent=True)
    tensors = make_ends(hidden, layers * heads)
    indices = place_layers([True] * layers, PERIOD)
    count = -(-layers // (PERIOD - 1)) * PERIOD
    found = 0
    for layer in range(count):
        first = min(found, len(hidden.finders) - heads)
        norms = {"input_layernorm.weight": make_norm(hidden, found)}
        attention = make_attention(hidden, first, heads, rotary.size)
        if layer in indices:
            found += heads
        else:
            attention["self_attn.o_proj.weight"] *= 0
        norms["post_attention_layernorm.weight"] = make_norm(hidden, found)
        feed_forward = make_feed_forward(hidden, "feed_forward")
        tensors |= name_layer(layer, norms | attention | feed_forward)
    has_rope = [int(layer % PERIOD != PERIOD - 1) for layer in range(count)]
    settings = make_settings(
        hidden,
        config["context"],
        count,
        heads,
        rotary.size,
        architectures=["Llama4ForCausalLM"],
        model_type="llama4_text",
        rope_theta=BASE,
        intermediate_size_mlp=FEED_FORWARD,
        num_local_experts=1,
        num_experts_per_tok=1,
        moe_layers=[],
        use_qk_norm=False,
        attn_temperature_tuning=False,
        attention_chunk_size=config["window"],
        no_rope_layers=has_rope,
        layer_types=[f"{'chunked' if rope else 'full'}_attention" for rope in has_rope],
    )
    return Model(settings, tensors)


def build_for_llama_cpp(config: Mapping[str, Any]) -> Model:
    if config["window"] != LLAMA_CPP_CHUNK:
        raise UsageError(
            f"--window {config['window']}: llama.cpp has chunks of {LLAMA_CPP_CHUNK}"
            f" positions; give --window {LLAMA_CPP_CHUNK} and a longer --context, or"
            " --format hf"
        )
    return build(config)
