"""serving-latent: DeepSeek V2, whose heads share a latent and a rotated key (MLA).

Heads find a token by its distance, in the rotated numbers, and by its content, in the
latent, in turn. The latent of a token is its code; K and V both come from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.impl.probe import model
from lockstep.impl.probe.arrays import Array
from lockstep.impl.probe.finders import Rotary
from lockstep.impl.probe.hidden import Hidden, make_tokens
from lockstep.impl.probe.sliding import BASE


def build(config: Mapping[str, Any]) -> model.Model:
    layers, heads, context = config["layers"], config["heads"], config["context"]
    probe, codes = make_tokens(config)
    length = codes.shape[1]
    rotary = Rotary(BASE, length, adjacent=True)
    by_kind = {
        "distance": rotary.find_distances(context, context),
        "content": rotary.find_contents(codes, probe.content, slice(None)),
    }
    finders = [by_kind[head.finds] for head in probe.heads]
    hidden = Hidden(probe, codes, finders, unit=heads)
    tensors = model.stack(
        hidden,
        [heads] * layers,
        lambda layer, found: make_latent_attention(hidden, found, heads, length),
        model.make_feed_forward(hidden),
    )
    settings = model.make_settings(
        hidden,
        config,
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        layers,
        length,
        BASE,
        q_lora_rank=len(tensors["model.layers.0.self_attn.q_a_layernorm.weight"]),
        kv_lora_rank=length,
        qk_nope_head_dim=length,
        qk_rope_head_dim=length,
        v_head_dim=length,
        first_k_dense_replace=layers,
        n_routed_experts=2,
        n_shared_experts=1,
        num_experts_per_tok=1,
        moe_intermediate_size=model.FEED_FORWARD,
        n_group=1,
        topk_group=1,
        topk_method="greedy",
    )
    return model.Model(settings, tensors)


def make_latent_attention(
    hidden: Hidden, first: int, heads: int, length: int
) -> dict[str, Array]:
    """Returns the tensors of an attention layer by their names in the layer."""
    size = hidden.size
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
