"""serving-sinks: gpt-oss. Every second layer slides; each head has a learned sink.

The score of the sink lies between the score of the asked token and all other scores. So
a head finds nothing if the asked token is not visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.backends.probe import list_heads
from lockstep.impl.probe import model
from lockstep.impl.probe.arrays import Array
from lockstep.impl.probe.finders import GAP
from lockstep.impl.probe.hidden import Hidden
from lockstep.impl.probe.sliding import BASE, make_hidden

EXPERTS = 2

YARN = {"rope_type": "yarn", "factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
"""Usual RoPE, since the factor is 1; vLLM reads these fields of every gpt-oss."""


def build(config: Mapping[str, Any]) -> model.Model:
    layers, heads = config["layers"], config["heads"]
    hidden, rotary = make_hidden(config)
    sinks = np.full(heads, hidden.finders[0].peak - GAP / 2)

    def make_mixer(layer: int, found: int) -> dict[str, Array]:
        attention = model.make_attention(hidden, found, heads, rotary.size)
        biases = {
            name.replace("weight", "bias"): np.zeros(len(tensor))
            for name, tensor in attention.items()
        }
        return {**attention, **biases, "self_attn.sinks": sinks}

    tensors = model.stack(hidden, [heads] * layers, make_mixer, make_experts(hidden))
    slides = [list_heads(config, layer)[0].window is not None for layer in range(layers)]
    types = [f"{'sliding' if sliding else 'full'}_attention" for sliding in slides]
    settings = model.make_settings(
        hidden,
        config,
        "GptOssForCausalLM",
        "gpt_oss",
        layers,
        rotary.size,
        BASE,
        rope_parameters={
            **YARN,
            "rope_theta": BASE,
            "original_max_position_embeddings": config["context"],
        },
        sliding_window=config["window"],
        layer_types=types,
        num_local_experts=EXPERTS,
        num_experts_per_tok=1,
        attention_bias=True,
    )
    return model.Model(settings, tensors)


def make_experts(hidden: Hidden) -> dict[str, Array]:
    """Returns the tensors of experts that add nothing."""
    size, inner = hidden.size, model.FEED_FORWARD
    shapes = {
        "router.weight": (EXPERTS, size),
        "router.bias": (EXPERTS,),
        "experts.gate_up_proj": (EXPERTS, size, 2 * inner),
        "experts.gate_up_proj_bias": (EXPERTS, 2 * inner),
        "experts.down_proj": (EXPERTS, inner, size),
        "experts.down_proj_bias": (EXPERTS, size),
    }
    return {f"mlp.{name}": np.zeros(shape) for name, shape in shapes.items()}
