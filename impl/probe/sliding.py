"""serving-sliding: Mistral, or Gemma 3 where an engine ignores Mistral's window.
serving-mixed: Gemma 3, whose layers slide or see everything in turn.

Heads find a token by its distance. In engines, every sixth layer of Gemma 3 sees all
positions. So a layer that finds nothing stands in for each layer that is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.backends.probe import get_probe, list_heads
from lockstep.impl.probe.arrays import Array
from lockstep.impl.probe.codes import choose_length, make_codes
from lockstep.impl.probe.finders import Rotary
from lockstep.impl.probe.hidden import Hidden
from lockstep.impl.probe.model import (
    Model,
    make_attention,
    make_ends,
    make_feed_forward,
    make_norm,
    make_settings,
    name_layer,
    place_layers,
)

BASE = 10.0
"""The base of RoPE: low, since all pairs tell distances."""

PERIOD = 6
"""Every layer of Gemma 3 with index 5 modulo 6 sees all positions."""


def make_hidden(
    config: Mapping[str, Any], square: bool, adjacent: bool = False
) -> tuple[Hidden, Rotary]:
    """Returns the hidden vectors, and the pairs of heads, of a model whose heads find
    tokens by their distances. For the arguments see `Hidden` and `Rotary`."""
    probe, context = get_probe(config), config["context"]
    ids = probe.first_ids[-1]
    rotary = Rotary(BASE, choose_length(ids), adjacent)
    finder = rotary.find_distances(context, context)
    codes = make_codes(ids, rotary.size)
    return Hidden(probe, codes, [finder] * len(probe.heads), square), rotary


def build_mistral(config: Mapping[str, Any]) -> Model:
    layers, heads = config["layers"], config["heads"]
    hidden, rotary = make_hidden(config, square=False)
    tensors = make_ends(hidden, layers * heads)
    for layer in range(layers):
        norms = {
            "input_layernorm.weight": make_norm(hidden, layer * heads),
            "post_attention_layernorm.weight": make_norm(hidden, (layer + 1) * heads),
        }
        attention = make_attention(hidden, layer * heads, heads, rotary.size)
        tensors |= name_layer(layer, norms | attention | make_feed_forward(hidden))
    settings = make_settings(
        hidden,
        config["context"],
        layers,
        heads,
        rotary.size,
        architectures=["MistralForCausalLM"],
        model_type="mistral",
        rope_theta=BASE,
        sliding_window=config["window"],
    )
    return Model(settings, tensors)


def build_gemma(config: Mapping[str, Any]) -> Model:
    """Builds Gemma 3, which multiplies embeddings by the root of their size, norms
    queries, keys and what a layer adds, and stores the weights of norms less 1."""
    heads = config["heads"]
    hidden, rotary = make_hidden(config, square=True)
    finder, length = hidden.finders[0], hidden.codes.shape[1]
    slides = [
        list_heads(config, layer)[0].window is not None
        for layer in range(config["layers"])
    ]
    indices = place_layers(slides, PERIOD)
    tensors = make_ends(hidden, len(hidden.finders))
    tensors["model.embed_tokens.weight"] /= np.float32(np.sqrt(hidden.size))
    found = 0
    for layer in range(max(indices) + 1):
        attention = make_attention(hidden, found, heads, rotary.size, normed=True)
        norms = {"input_layernorm.weight": make_norm(hidden, found)}
        if layer in indices:
            found += heads
        else:
            attention["self_attn.o_proj.weight"] *= 0
        # Queries and keys get the norm of `rotary.size` numbers of 1.
        gain = finder.peak / np.sqrt(rotary.size)
        added = np.sqrt(heads * length / hidden.size)
        norms |= {
            "self_attn.q_norm.weight": np.full(rotary.size, gain),
            "self_attn.k_norm.weight": np.ones(rotary.size),
            "post_attention_layernorm.weight": np.full(hidden.size, added),
            "pre_feedforward_layernorm.weight": make_norm(hidden, found),
            "post_feedforward_layernorm.weight": np.ones(hidden.size),
        }
        tensors |= name_layer(layer, norms | attention | make_feed_forward(hidden))
    tensors = {name: less_one(name, tensor) for name, tensor in tensors.items()}
    settings = make_settings(
        hidden,
        config["context"],
        max(indices) + 1,
        heads,
        rotary.size,
        architectures=["Gemma3ForCausalLM"],
        model_type="gemma3_text",
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=rotary.size,
        rope_theta=BASE,
        rope_local_base_freq=BASE,
        sliding_window=config["window"],
        sliding_window_pattern=PERIOD,
        layer_types=[
            "full_attention" if layer % PERIOD == PERIOD - 1 else "sliding_attention"
            for layer in range(max(indices) + 1)
        ],
    )
    return Model(settings, tensors)


def less_one(name: str, tensor: Array) -> Array:
    return tensor - 1 if name.endswith("norm.weight") else tensor
