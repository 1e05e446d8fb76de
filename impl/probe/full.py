"""serving-full: Llama. Heads find a token by its distance and by its content in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.harness.backends.probe import get_probe
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
)


def build(config: Mapping[str, Any]) -> Model:
    """Builds the model.

    The fast half of the pairs tells distances; in the slow half, keys hold codes. With
    the square of the context as the base of RoPE, the fastest of the slow pairs turns by
    one radian in the whole context.
    """
    probe, layers, heads = get_probe(config), config["layers"], config["heads"]
    ids, context = probe.first_ids[-1], config["context"]
    length = choose_length(ids)
    codes = make_codes(ids, length)
    rotary = Rotary(base=float(context) ** 2, size=2 * length)
    by_kind = {
        "distance": rotary.find_distances(context, context, slice(length // 2)),
        "content": rotary.find_contents(codes, probe.content, slice(length // 2, None)),
    }
    hidden = Hidden(probe, codes, [by_kind[head.finds] for head in probe.heads])
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
        context,
        layers,
        heads,
        rotary.size,
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        rope_theta=rotary.base,
        attention_bias=False,
        mlp_bias=False,
    )
    return Model(settings, tensors)
