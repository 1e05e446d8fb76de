"""serving-sliding: Mistral, or Gemma 3 where an engine ignores Mistral's window.
serving-mixed: Gemma 3, whose layers slide or see everything in turn.

Heads find a token by its distance. In engines, every sixth layer of Gemma 3 sees all
positions. So a layer that finds nothing stands in for each layer that is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.backends.probe import list_heads
from lockstep.impl.probe import model
from lockstep.impl.probe.arrays import Array
from lockstep.impl.probe.finders import Rotary
from lockstep.impl.probe.hidden import Hidden, make_tokens

BASE = 10.0
"""The base of RoPE: low, since all pairs tell distances."""

PERIOD = 6
"""Every layer of Gemma 3 with index 5 modulo 6 sees all positions."""


def make_hidden(
    config: Mapping[str, Any], square: bool = False, adjacent: bool = False
) -> tuple[Hidden, Rotary]:
    """Returns the hidden vectors, and the pairs of heads, of a model whose heads find
    tokens by their distances. For the arguments see `Hidden` and `Rotary`."""
    probe, codes = make_tokens(config)
    rotary = Rotary(BASE, codes.shape[1], adjacent)
    finder = rotary.find_distances(config["context"], config["context"])
    return Hidden(probe, codes, [finder] * len(probe.heads), square), rotary


def build_mistral(config: Mapping[str, Any]) -> model.Model:
    layers, heads, window = config["layers"], config["heads"], config["window"]
    hidden, rotary = make_hidden(config)
    tensors = model.stack(
        hidden,
        [heads] * layers,
        lambda layer, found: model.make_attention(hidden, found, heads, rotary.size),
        model.make_feed_forward(hidden),
    )
    settings = model.make_settings(
        hidden,
        config,
        "MistralForCausalLM",
        "mistral",
        layers,
        rotary.size,
        BASE,
        sliding_window=window,
    )
    return model.Model(settings, tensors)


def build_gemma(config: Mapping[str, Any]) -> model.Model:
    """Builds Gemma 3, which multiplies embeddings by the root of their size, normalizes
    queries, keys and the output of a layer, and stores the weights of norms minus 1."""
    heads = config["heads"]
    hidden, rotary = make_hidden(config, square=True)
    first = [list_heads(config, layer)[0] for layer in range(config["layers"])]
    counts = model.place_heads([head.window is not None for head in first], PERIOD, heads)
    added = np.sqrt(heads * rotary.size / hidden.size)
    # Queries and keys get the norm of `rotary.size` numbers of 1.
    gain = hidden.finders[0].peak / np.sqrt(rotary.size)
    norms = {
        "self_attn.q_norm.weight": np.full(rotary.size, gain),
        "self_attn.k_norm.weight": np.ones(rotary.size),
        "post_attention_layernorm.weight": np.full(hidden.size, added),
        "post_feedforward_layernorm.weight": np.ones(hidden.size),
    }
    tensors = model.stack(
        hidden,
        counts,
        lambda layer, found: model.make_attention(
            hidden, found, counts[layer], rotary.size, normed=True, total=heads
        ),
        model.make_feed_forward(hidden) | norms,
        norms=("input_layernorm", "pre_feedforward_layernorm"),
    )
    tensors["model.embed_tokens.weight"] /= np.float32(np.sqrt(hidden.size))
    types = ["sliding_attention"] * (PERIOD - 1) + ["full_attention"]
    settings = model.make_settings(
        hidden,
        config,
        "Gemma3ForCausalLM",
        "gemma3_text",
        len(counts),
        rotary.size,
        BASE,
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=rotary.size,
        rope_local_base_freq=BASE,
        sliding_window=config["window"],
        sliding_window_pattern=PERIOD,
        layer_types=[types[layer % PERIOD] for layer in range(len(counts))],
    )
    return model.Model(
        settings, {name: less_one(name, tensors[name]) for name in tensors}
    )


def less_one(name: str, tensor: Array) -> Array:
    return tensor - 1 if name.endswith("norm.weight") else tensor
