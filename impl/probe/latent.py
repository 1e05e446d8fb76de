"""serving-latent: DeepSeek V2, whose heads share a latent and a rotated key (MLA).

Heads find a token by its distance, in the rotated numbers, and by its content, in the
latent, in turn. The latent of a token is its code; K and V both come from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.backends.probe import get_probe
from lockstep.impl.probe.arrays import Array
from lockstep.impl.probe.codes import choose_length, make_codes
from lockstep.impl.probe.finders import Rotary
from lockstep.impl.probe.hidden import Hidden
from lockstep.impl.probe.model import (
    FEED_FORWARD,
    Model,
    make_ends,
    make_feed_forward,
    make_norm,
    make_settings,
    name_layer,
)
from lockstep.impl.probe.sliding import BASE


def build(config: Mapping[str, Any]) -> Model:
    probe, layers, heads = get_probe(config), config["layers"], config["heads"]
    ids, context = probe.first_ids[-1], config["context"]
    length = choose_length(ids)
    codes, rotary = make_codes(ids, length), Rotary(BASE, length, adjacent=True)
    by_kind = {
        "distance": rotary.find_distances(context, context),
        "content": rotary.find_contents(codes, probe.content, slice(None)),
    }
    finders = [by_kind[head.finds] for head in probe.heads]
    hidden = Hidden(probe, codes, finders, unit=heads)
    tensors = make_ends(hidden, layers * heads)
    for layer in range(layers):
        norms = {
            "input_layernorm.weight": make_norm(hidden, layer * heads),
            "post_attention_layernorm.weight": make_norm(hidden, (layer + 1) * heads),
        }
        attention = make_latent_attention(hidden, layer * heads, heads, rotary)
        tensors |= name_layer(layer, norms | attention | make_feed_forward(hidden))
    settings = make_settings(
        hidden,
        context,
        layers,
        heads,
        length,
        architectures=["DeepseekV2ForCausalLM"],
        model_type="deepseek_v2",
        rope_theta=BASE,
        q_lora_rank=len(tensors["model.layers.0.self_attn.q_a_layernorm.weight"]),
        kv_lora_rank=length,
        qk_nope_head_dim=length,
        qk_rope_head_dim=length,
        v_head_dim=length,
        first_k_dense_replace=layers,
        n_routed_experts=2,
        n_shared_experts=1,
        num_experts_per_tok=1,
        moe_intermediate_size=FEED_FORWARD,
        n_group=1,
        topk_group=1,
        topk_method="greedy",
    )
    return Model(settings, tensors)


def make_latent_attention(
    hidden: Hidden, first: int, heads: int, rotary: Rotary
) -> dict[str, Array]:
    """Returns the tensors of an attention layer by their names in the layer."""
    length, size = hidden.codes.shape[1], hidden.size
    asks = np.concatenate(
        [np.arange(size)[numbers] for numbers in hidden.asks[first : first + heads]]
    )
    square = sum(
        (finder.asked[0] ** 2).sum() for finder in hidden.finders[first:][:heads]
    )
    query, begin = np.zeros((heads, 2 * length, len(asks))), 0
    key, value = np.zeros((2, heads, length, length))
    shared, output = np.zeros((2 * length, size)), np.zeros((size, heads, length))
    shared[:length, hidden.identity] = np.eye(length)
    for head in range(heads):
        finder = hidden.finders[first + head]
        end = begin + len(finder.columns)
        columns = np.arange(length)
        if hidden.probe.heads[first + head].finds == "distance":
            columns = length + finder.columns
            shared[columns, hidden.constant] = finder.key / hidden.constant_value
        else:
            key[head] = np.eye(length)
        gain = finder.gain * np.sqrt(2 * length)
        query[head, columns, begin:end] = np.eye(end - begin) * gain
        value[head] = output[hidden.answers[first + head], head] = np.eye(length)
        begin = end
    return {
        "self_attn.q_a_proj.weight": np.eye(size)[asks],
        "self_attn.q_a_layernorm.weight": np.full(len(asks), np.sqrt(square / len(asks))),
        "self_attn.q_b_proj.weight": query.reshape(-1, len(asks)),
        "self_attn.kv_a_proj_with_mqa.weight": shared,
        "self_attn.kv_a_layernorm.weight": np.ones(length),
        "self_attn.kv_b_proj.weight": np.hstack([key, value]).reshape(-1, length),
        "self_attn.o_proj.weight": output.reshape(size, -1),
    }
