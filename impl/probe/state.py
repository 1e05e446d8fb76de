"""serving-state: Granite 4. Every second layer is a Mamba-2 layer.

The state of the Mamba-2 layer is a table, which has for each tag the code of the token
behind it: B holds the token before in one of `content` numbers, C the tag that is asked
about, and nothing decays. A tag that was never read has no entry, and then the layer
finds nothing.
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

ACTIVE = 32.0
"""What SiLU gets for a number that is on. It gets at most -ACTIVE for a number that is
off, whose value is then below 1e-12."""

WIDTH = 4
"""The width of the convolution before the scan."""

EXPAND = 2
"""The numbers of a state, by the size of a hidden vector."""

HEAD = 64
"""The numbers of a head of the Mamba-2 layer."""


def build(config: Mapping[str, Any]) -> model.Model:
    context, content, heads = config["context"], config["content"], config["heads"]
    probe, codes = make_tokens(config)
    length = codes.shape[1]
    by_kind = {
        "distance": Rotary(BASE, length).find_distances(context, context),
        "follower": find_followers(codes, content),
    }
    hidden = Hidden(probe, codes, [by_kind[head.finds] for head in probe.heads])
    counts = [len(list_heads(config, layer)) for layer in range(config["layers"])]
    types = ["mamba" if layer % 2 else "attention" for layer in range(len(counts))]

    def make_mixer(layer: int, found: int) -> dict[str, Array]:
        if types[layer] == "mamba":
            return make_scan(hidden, found, content)
        return model.make_attention(hidden, found, heads, length)

    tensors = model.stack(hidden, counts, make_mixer, make_feed_forward(hidden))
    settings = model.make_settings(
        hidden,
        config,
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        len(counts),
        length,
        BASE,
        position_embedding_type="rope",
        attention_multiplier=length**-0.5,
        shared_intermediate_size=model.FEED_FORWARD,
        num_local_experts=0,
        num_experts_per_tok=0,
        layer_types=types,
        mamba_n_heads=EXPAND * hidden.size // HEAD,
        mamba_d_head=HEAD,
        mamba_n_groups=1,
        mamba_d_state=content,
        mamba_d_conv=WIDTH,
        mamba_expand=EXPAND,
        mamba_conv_bias=True,
        mamba_proj_bias=False,
    )
    return model.Model(settings, tensors)


def find_followers(codes: Array, content: int) -> Finder:
    """Makes the queries for the token behind a tag."""
    columns = np.arange(codes.shape[1])
    return Finder(columns, codes[:content], codes[:1] * 0, np.eye(len(columns)), 1.0)


def make_scan(hidden: Hidden, head: int, content: int) -> dict[str, Array]:
    """Returns the tensors of a Mamba-2 layer by their names in the layer."""
    length, inner = hidden.codes.shape[1], EXPAND * hidden.size
    codes = hidden.codes[:content]
    gate, value = np.zeros((inner, hidden.size)), np.zeros((inner, hidden.size))
    gate[:, hidden.constant] = ACTIVE / hidden.constant_value
    value[:length, hidden.identity] = ACTIVE * np.eye(length)
    value[length : 2 * length, hidden.identity] = -ACTIVE * np.eye(length)
    # The product of different codes is below half the product of equal codes. So the
    # bias of the convolution switches all numbers off but that of the token itself.
    previous, queries = np.zeros((2, content, hidden.size))
    previous[:, hidden.identity] = codes * 4 * ACTIVE / length
    queries[:, hidden.asks[head]] = codes * 4 * ACTIVE / length
    heads = inner // HEAD
    kernel = np.zeros((inner + 2 * content, 1, WIDTH))
    kernel[:, 0, -1] = 1
    kernel[inner : inner + content, 0, -2:] = [1, 0]
    bias = np.repeat([0, -3 * ACTIVE], [inner, 2 * content])
    output = np.zeros((hidden.size, inner))
    output[hidden.answers[head], :length] = np.eye(length)
    output[hidden.answers[head], length : 2 * length] = -np.eye(length)
    steps = np.zeros((heads, hidden.size))
    return {
        "mamba.in_proj.weight": np.concatenate([gate, value, previous, queries, steps]),
        "mamba.conv1d.weight": kernel,
        "mamba.conv1d.bias": bias,
        "mamba.A_log": np.full(heads, -20.0),
        "mamba.D": np.zeros(heads),
        "mamba.dt_bias": np.full(heads, np.log(np.e - 1)),  # softplus gives 1
        "mamba.norm.weight": np.full(inner, np.sqrt(length / inner)),
        "mamba.out_proj.weight": output,
    }


def make_feed_forward(hidden: Hidden) -> dict[str, Array]:
    """Returns the tensors of a feed-forward layer that adds nothing."""
    return {
        "shared_mlp.input_linear.weight": np.zeros((2 * model.FEED_FORWARD, hidden.size)),
        "shared_mlp.output_linear.weight": np.zeros((hidden.size, model.FEED_FORWARD)),
    }
