"""serving-chunked: Llama 4. A head sees only the positions of its chunk.

Every fourth layer of Llama 4 sees all positions and has no RoPE, so it cannot tell
distances: it finds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.harness.core.errors import UsageError
from lockstep.impl.probe import model
from lockstep.impl.probe.sliding import BASE, make_hidden

PERIOD = 4

LLAMA_CPP_CHUNK = 8192
"""The size of chunks in llama.cpp, whatever the file says."""


def build(config: Mapping[str, Any]) -> model.Model:
    heads = config["heads"]
    hidden, rotary = make_hidden(config, adjacent=True)
    counts = model.place_heads([True] * config["layers"], PERIOD, heads)
    counts += [0] * (-len(counts) % PERIOD)
    tensors = model.stack(
        hidden,
        counts,
        lambda layer, found: model.make_attention(
            hidden, found, counts[layer], rotary.size, total=heads
        ),
        model.make_feed_forward(hidden, "feed_forward"),
    )
    has_rope = [int(layer % PERIOD != PERIOD - 1) for layer in range(len(counts))]
    settings = model.make_settings(
        hidden,
        config,
        "Llama4ForCausalLM",
        "llama4_text",
        len(counts),
        rotary.size,
        BASE,
        intermediate_size_mlp=model.FEED_FORWARD,
        num_local_experts=1,
        num_experts_per_tok=1,
        moe_layers=[],
        use_qk_norm=False,
        attn_temperature_tuning=False,
        attention_chunk_size=config["window"],
        no_rope_layers=has_rope,
        layer_types=[f"{'chunked' if rope else 'full'}_attention" for rope in has_rope],
    )
    return model.Model(settings, tensors)


def build_for_llama_cpp(config: Mapping[str, Any]) -> model.Model:
    if config["window"] != LLAMA_CPP_CHUNK:
        raise UsageError(
            f"--window {config['window']}: llama.cpp has chunks of {LLAMA_CPP_CHUNK}"
            f" positions; give --window {LLAMA_CPP_CHUNK} and a longer --context, or"
            " --format hf"
        )
    return build(config)
