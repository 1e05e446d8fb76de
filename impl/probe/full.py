"""serving-full: Llama. Heads find a token by its distance and by its content in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.impl.probe import model
from lockstep.impl.probe.finders import Rotary
from lockstep.impl.probe.hidden import Hidden, make_tokens


def build(config: Mapping[str, Any]) -> model.Model:
    """Builds the model.

    The fast half of the pairs tells distances; in the slow half, keys hold codes. With
    the square of the context as the base of RoPE, the fastest of the slow pairs turns by
    one radian in the whole context.
    """
    layers, heads, context = config["layers"], config["heads"], config["context"]
    probe, codes = make_tokens(config)
    length = codes.shape[1]
    rotary = Rotary(base=float(context) ** 2, size=2 * length)
    by_kind = {
        "distance": rotary.find_distances(context, context, slice(length // 2)),
        "content": rotary.find_contents(codes, probe.content, slice(length // 2, None)),
    }
    hidden = Hidden(probe, codes, [by_kind[head.finds] for head in probe.heads])
    tensors = model.stack(
        hidden,
        [heads] * layers,
        lambda layer, found: model.make_attention(hidden, found, heads, rotary.size),
        model.make_feed_forward(hidden),
    )
    settings = model.make_settings(
        hidden,
        config,
        "LlamaForCausalLM",
        "llama",
        layers,
        rotary.size,
        rotary.base,
        attention_bias=False,
        mlp_bias=False,
    )
    return model.Model(settings, tensors)
