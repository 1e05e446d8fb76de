"""serving-convolution: LFM2. Every second layer is a short convolution.

The convolution finds the token at a distance below its width: the query selects a group
of channels, whose kernel delays the codes of tokens by this distance. The arithmetic is
exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.backends.probe import list_heads
from lockstep.impl.probe import model
from lockstep.impl.probe.arrays import Array
from lockstep.impl.probe.finders import Finder, Rotary
from lockstep.impl.probe.hidden import Hidden, make_tokens
from lockstep.impl.probe.sliding import BASE


def build(config: Mapping[str, Any]) -> model.Model:
    context, width = config["context"], config["window"]
    probe, codes = make_tokens(config)
    length = codes.shape[1]
    attending = Rotary(BASE, length).find_distances(context, context)
    by_window = {None: attending, width: find_taps(context, width)}
    finders = [by_window[head.window] for head in probe.heads]
    hidden = Hidden(probe, codes, finders, least=width * length)
    heads = hidden.size // length  # some engines need this
    counts = [len(list_heads(config, layer)) for layer in range(config["layers"])]
    types = ["conv" if layer % 2 else "full_attention" for layer in range(len(counts))]

    def make_mixer(layer: int, found: int) -> dict[str, Array]:
        if types[layer] == "conv":
            return make_convolution(hidden, found, width)
        attention = model.make_attention(
            hidden, found, counts[layer], length, normed=True, total=heads
        )
        output = attention.pop("self_attn.o_proj.weight")
        return {
            **attention,
            "self_attn.out_proj.weight": output,
            "self_attn.q_layernorm.weight": np.full(
                length, attending.peak / np.sqrt(length)
            ),
            "self_attn.k_layernorm.weight": np.ones(length),
        }

    tensors = model.stack(
        hidden,
        counts,
        make_mixer,
        make_feed_forward(hidden),
        norms=("operator_norm", "ffn_norm"),
        last_norm="model.embedding_norm",
    )
    settings = model.make_settings(
        hidden,
        {**config, "heads": heads},
        "Lfm2ForCausalLM",
        "lfm2",
        len(counts),
        length,
        BASE,
        norm_eps=1e-6,
        conv_L_cache=width,
        conv_bias=False,
        layer_types=types,
        block_auto_adjust_ff_dim=False,
    )
    return model.Model(settings, tensors)


def find_taps(count: int, width: int) -> Finder:
    """Makes the queries that select a distance below the width; a token that asks
    another head selects itself."""
    queries = np.eye(count, width)
    return Finder(
        np.arange(width), queries, idle=queries[:1], key=np.eye(width), gain=1.0
    )


def make_convolution(hidden: Hidden, head: int, width: int) -> dict[str, Array]:
    """Returns the tensors of a convolution by their names in the layer."""
    size, length = hidden.size, hidden.codes.shape[1]
    previous, after, value = (np.zeros((size, size)) for _ in range(3))
    kernel, output = np.zeros((size, 1, width)), np.zeros((size, size))
    previous[:, hidden.constant] = 1 / hidden.constant_value
    for distance in range(width):
        channels = slice(distance * length, (distance + 1) * length)
        after[channels, hidden.asks[head].start + distance] = 1
        value[channels, hidden.identity] = np.eye(length)
        kernel[channels, 0, width - 1 - distance] = 1
        output[hidden.answers[head], channels] = np.eye(length)
    return {
        "conv.in_proj.weight": np.concatenate([previous, after, value]),
        "conv.conv.weight": kernel,
        "conv.out_proj.weight": output,
    }


def make_feed_forward(hidden: Hidden) -> dict[str, Array]:
    """Returns the tensors of a feed-forward layer that adds nothing."""
    return {
        "feed_forward.w1.weight": np.zeros((model.FEED_FORWARD, hidden.size)),
        "feed_forward.w2.weight": np.zeros((hidden.size, model.FEED_FORWARD)),
        "feed_forward.w3.weight": np.zeros((model.FEED_FORWARD, hidden.size)),
    }
