"""serving-convolution: LFM2. Every second layer is a short convolution.

The convolution finds the token at a distance below its width: the query selects a group
of channels, whose kernel delays the codes of tokens by this distance. The arithmetic is
exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.backends.probe import get_probe, list_heads
from lockstep.impl.probe.arrays import Array
from lockstep.impl.probe.codes import choose_length, make_codes
from lockstep.impl.probe.finders import Finder, Rotary
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
from lockstep.impl.probe.sliding import BASE


def build(config: Mapping[str, Any]) -> Model:
    probe, context, width = get_probe(config), config["context"], config["window"]
    ids = probe.first_ids[-1]
    length = choose_length(ids)
    rotary = Rotary(BASE, length)
    by_window = {
        None: rotary.find_distances(context, context),
        width: find_taps(context, width),
    }
    finders = [by_window[head.window] for head in probe.heads]
    hidden = Hidden(probe, make_codes(ids, length), finders, least=width * length)
    heads = hidden.size // length  # some engines need this
    tensors = make_ends(hidden, len(finders), "model.embedding_norm")
    found, types = 0, []
    for layer in range(config["layers"]):
        norms = {"operator_norm.weight": make_norm(hidden, found)}
        count = len(list_heads(config, layer))
        is_convolution = probe.heads[found].window is not None
        types.append("conv" if is_convolution else "full_attention")
        if is_convolution:
            mixer = make_convolution(hidden, found, width)
        else:
            gain = finders[found].peak / np.sqrt(length)
            mixer = make_attention(hidden, found, count, length, normed=True, total=heads)
            mixer["self_attn.out_proj.weight"] = mixer.pop("self_attn.o_proj.weight")
            mixer["self_attn.q_layernorm.weight"] = np.full(length, gain)
            mixer["self_attn.k_layernorm.weight"] = np.ones(length)
        found += count
        norms["ffn_norm.weight"] = make_norm(hidden, found)
        tensors |= name_layer(layer, norms | mixer | make_feed_forward(hidden))
    settings = make_settings(
        hidden,
        context,
        config["layers"],
        heads,
        length,
        architectures=["Lfm2ForCausalLM"],
        model_type="lfm2",
        rope_theta=BASE,
        norm_eps=1e-6,
        conv_L_cache=width,
        conv_bias=False,
        layer_types=types,
        block_auto_adjust_ff_dim=False,
    )
    return Model(settings, tensors)


def find_taps(count: int, width: int) -> Finder:
    """Makes the queries that select a distance below the width; a token that asks
    another head selects itself."""
    asked = np.eye(count, width)
    return Finder(np.arange(width), asked, idle=asked[:1], key=np.eye(width), gain=1.0)


def make_convolution(hidden: Hidden, head: int, width: int) -> dict[str, Array]:
    """Returns the tensors of a convolution by their names in the layer."""
    size, length = hidden.size, hidden.codes.shape[1]
    before, after, value = (np.zeros((size, size)) for _ in range(3))
    kernel, output = np.zeros((size, 1, width)), np.zeros((size, size))
    before[:, hidden.constant] = 1 / hidden.constant_value
    for distance in range(width):
        channels = slice(distance * length, (distance + 1) * length)
        after[channels, hidden.asks[head].start + distance] = 1
        value[channels, hidden.identity] = np.eye(length)
        kernel[channels, 0, width - 1 - distance] = 1
        output[hidden.answers[head], channels] = np.eye(length)
    return {
        "conv.in_proj.weight": np.concatenate([before, after, value]),
        "conv.conv.weight": kernel,
        "conv.out_proj.weight": output,
    }


def make_feed_forward(hidden: Hidden) -> dict[str, Array]:
    """Returns the tensors of a feed-forward layer that adds nothing."""
    return {
        "feed_forward.w1.weight": np.zeros((FEED_FORWARD, hidden.size)),
        "feed_forward.w2.weight": np.zeros((hidden.size, FEED_FORWARD)),
        "feed_forward.w3.weight": np.zeros((FEED_FORWARD, hidden.size)),
    }
