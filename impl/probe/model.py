"""A probe model in the form of a Hugging Face checkpoint, and the common parts of its
layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.impl.probe.arrays import Array
from lockstep.impl.probe.hidden import Hidden

FEED_FORWARD = 32
"""The size of feed-forward layers, which add nothing."""


@dataclass(frozen=True)
class Model:
    """A checkpoint.

    Attributes:
        settings: the content of config.json.
        tensors: tensors by their names in the checkpoint, in float32.
    """

    settings: Mapping[str, Any]
    tensors: Mapping[str, Array]


def make_settings(
    hidden: Hidden,
    config: Mapping[str, Any],
    class_name: str,
    model_type: str,
    layers: int,
    head_dim: int,
    rope_theta: float,
    **more: Any,
) -> dict[str, Any]:
    """Returns the content of config.json; `more` has the fields of the architecture."""
    unused = len(hidden.codes)
    return {
        "architectures": [class_name],
        "model_type": model_type,
        "vocab_size": unused + 1,
        "hidden_size": hidden.size,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": layers,
        "num_attention_heads": config["heads"],
        "num_key_value_heads": config["heads"],
        "head_dim": head_dim,
        "max_position_embeddings": config["context"],
        "rope_theta": rope_theta,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": unused,
        "eos_token_id": unused,
        "pad_token_id": unused,
        **more,
    }


def stack(
    hidden: Hidden,
    counts: Sequence[int],
    make_mixer: Callable[[int, int], Mapping[str, Array]],
    feed_forward: Mapping[str, Array],
    norms: Sequence[str] = ("input_layernorm", "post_attention_layernorm"),
    last_norm: str = "model.norm",
) -> dict[str, Array]:
    """Returns the tensors of a model by their names in the checkpoint.

    Args:
        hidden: the hidden vectors.
        counts: the number of the probe's heads in each layer; 0 for a layer that finds
            nothing.
        make_mixer: makes the tensors of a layer beside the norms and the feed-forward
            layer, by their names in the layer. It gets the index of the layer, and the
            number of heads in the layers before.
        feed_forward: the tensors of each feed-forward layer.
        norms: the names of the norms before the mixer and the feed-forward layer.
        last_norm: the name of the norm before the LM head.
    """
    found = 0
    tensors = {
        "model.embed_tokens.weight": hidden.make_embedding(),
        f"{last_norm}.weight": make_norm(hidden, sum(counts)),
        "lm_head.weight": hidden.make_output(),
    }
    for layer, count in enumerate(counts):
        parts = {f"{norms[0]}.weight": make_norm(hidden, found)}
        parts |= make_mixer(layer, found)
        found += count
        parts |= {f"{norms[1]}.weight": make_norm(hidden, found), **feed_forward}
        for name, tensor in parts.items():
            tensors[f"model.layers.{layer}.{name}"] = tensor
    return tensors


def make_norm(hidden: Hidden, found: int) -> Array:
    """Returns the weights of an RMS norm that changes nothing, after so many heads have
    found a token."""
    return np.full(hidden.size, hidden.compute_scale(found), np.float32)


def make_attention(
    hidden: Hidden,
    first: int,
    heads: int,
    head_dim: int,
    normed: bool = False,
    total: int | None = None,
) -> dict[str, Array]:
    """Returns the tensors of an attention layer by their names in the layer.

    Args:
        hidden: the hidden vectors.
        first: the index of the layer's first head in the probe.
        heads: the number of the layer's heads in the probe.
        head_dim: the number of numbers of a head.
        normed: whether queries are normed later, so that their gain has no effect.
        total: the number of heads in the layer, if it has more; these find nothing.
    """
    length = hidden.codes.shape[1]
    shape = total or heads, head_dim
    query, key, value = (np.zeros((*shape, hidden.size)) for _ in range(3))
    output = np.zeros((hidden.size, *shape))
    for head in range(heads):
        finder, asks = hidden.finders[first + head], hidden.asks[first + head]
        gain = 1.0 if normed else finder.gain * np.sqrt(head_dim)
        query[head, finder.columns, asks] = np.eye(len(finder.columns)) * gain
        if finder.key.shape[1] == 1:
            constant = finder.key / hidden.constant_value
            key[head, finder.columns, hidden.constant] = constant
        else:
            key[head, finder.columns, hidden.identity] = finder.key
        value[head, :length, hidden.identity] = np.eye(length)
        output[hidden.answers[first + head], head, :length] = np.eye(length)
    return {
        "self_attn.q_proj.weight": query.reshape(-1, hidden.size),
        "self_attn.k_proj.weight": key.reshape(-1, hidden.size),
        "self_attn.v_proj.weight": value.reshape(-1, hidden.size),
        "self_attn.o_proj.weight": output.reshape(hidden.size, -1),
    }


def make_feed_forward(hidden: Hidden, name: str = "mlp") -> dict[str, Array]:
    """Returns the tensors of a feed-forward layer that adds nothing."""
    return {
        f"{name}.gate_proj.weight": np.zeros((FEED_FORWARD, hidden.size)),
        f"{name}.up_proj.weight": np.zeros((FEED_FORWARD, hidden.size)),
        f"{name}.down_proj.weight": np.zeros((hidden.size, FEED_FORWARD)),
    }


def place_heads(is_local: Sequence[bool], period: int, heads: int) -> list[int]:
    """Lists the numbers of heads in the layers of a model whose every `period`-th layer
    sees all positions. A layer has no heads if the probe does not need it.

    Args:
        is_local: for each layer of the probe, whether it does not see all positions.
        period: the period of the model.
        heads: the number of heads in each layer of the probe.
    """
    counts: list[int] = []
    for local in is_local:
        while (len(counts) % period != period - 1) != local:
            counts.append(0)
        counts.append(heads)
    return counts
