"""serving-sinks: gpt-oss. Every second layer slides; each head has a learned sink.

The score of the sink lies between the score of the asked token and all other scores. So
a head finds nothing if the asked token is not visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.backends.probe import list_heads
from lockstep.impl.probe.arrays import Array
from lockstep.impl.probe.finders import GAP
from lockstep.impl.probe.hidden import Hidden
from lockstep.impl.probe.model import (
    FEED_FORWARD,
    Model,
    make_attention,
    make_ends,
    make_norm,
    make_settings,
    name_layer,
)
from lockstep.impl.probe.sliding import BASE, make_hidden

EXPERTS = 2


def build(config: Mapping[str, Any]) -> Model:
    layers, heads = config["layers"], config["heads"]
    hidden, rotary = make_hidden(config, square=False)
    tensors = make_ends(hidden, layers * heads)
    for layer in range(layers):
        sink = hidden.finders[0].peak - GAP / 2
        attention = make_attention(hidden, layer * heads, heads, rotary.size)
        for name, tensor in list(attention.items()):
            attention[name.replace("weight", "bias")] = np.zeros(len(tensor))
        attention |= {
            "self_attn.sinks": np.full(heads, sink),
            "input_layernorm.weight": make_norm(hidden, layer * heads),
            "post_attention_layernorm.weight": make_norm(hidden, (layer + 1) * heads),
        }
        tensors |= name_layer(layer, attention | make_experts(hidden))
    sees_all = [list_heads(config, layer)[0].window is None for layer in range(layers)]
    settings = make_settings(
        hidden,
        config["context"],
        layers,
        heads,
        rotary.size,
        architectures=["GptOssForCausalLM"],
        model_type="gpt_oss",
        rope_theta=BASE,
        rope_parameters={"rope_type": "default", "rope_theta": BASE},
        sliding_window=config["window"],
        layer_types=[f"{'full' if full else 'sliding'}_attention" for full in sees_all],
        num_local_experts=EXPERTS,
        num_experts_per_tok=1,
        attention_bias=True,
    )
    return Model(settings, tensors)


def make_experts(hidden: Hidden) -> dict[str, Array]:
    """Returns the tensors of experts that add nothing."""
    return {
        "mlp.router.weight": np.zeros((EXPERTS, hidden.size)),
        "mlp.router.bias": np.zeros(EXPERTS),
        "mlp.experts.gate_up_proj": np.zeros((EXPERTS, hidden.size, 2 * FEED_FORWARD)),
        "mlp.experts.gate_up_proj_bias": np.zeros((EXPERTS, 2 * FEED_FORWARD)),
        "mlp.experts.down_proj": np.zeros((EXPERTS, FEED_FORWARD, hidden.size)),
        "mlp.experts.down_proj_bias": np.zeros((EXPERTS, hidden.size)),
    }
