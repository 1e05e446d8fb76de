"""Computes the logits of a probe model by plain attention in double precision.

The computation follows the definition of each architecture and shares nothing with the
code that makes the weights, so it checks this code without an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lockstep.impl.probe.arrays import Array
from lockstep.impl.probe.model import Model

ADJACENT = ("llama4_text", "deepseek_v2")
"""The architectures whose RoPE turns adjacent numbers; others turn numbers that are half
a head apart."""


class Forward:
    """Runs a model on a prompt.

    Attributes:
        weights: the attention weights of the last token, of each layer with attention.
            [heads, positions]
    """

    def __init__(
        self, model: Model, store: Callable[[Array], Array] = lambda array: array
    ) -> None:
        """Args:
        model: the model.
        store: what a cache stores of rotated K and of V. [heads, positions, size]
        """
        self.settings = model.settings
        self.tensors = {
            name: tensor.astype(np.float64) for name, tensor in model.tensors.items()
        }
        self.store = store
        self.is_gemma = self.settings["model_type"] == "gemma3_text"
        self.weights: list[Array] = []

    def get(self, layer: int, name: str) -> Array:
        return self.tensors[f"model.layers.{layer}.{name}.weight"]

    def compute_logits(self, ids: Sequence[int]) -> Array:
        """Returns the logits behind the last token. [ids]"""
        hidden = self.tensors["model.embed_tokens.weight"][list(ids)]
        if self.is_gemma:
            hidden = hidden * np.sqrt(hidden.shape[1])
        self.weights = []
        for layer in range(self.settings["num_hidden_layers"]):
            normed = self.norm(hidden, self.get(layer, "input_layernorm"))
            added = self.attend(layer, normed)
            if self.is_gemma:
                added = self.norm(added, self.get(layer, "post_attention_layernorm"))
            hidden = hidden + added
        last = self.norm(hidden[-1], self.tensors["model.norm.weight"])
        return self.tensors["lm_head.weight"] @ last

    def norm(self, numbers: Array, weight: Array) -> Array:
        square = (numbers**2).mean(-1, keepdims=True) + self.settings["rms_norm_eps"]
        return numbers / np.sqrt(square) * (weight + self.is_gemma)

    def attend(self, layer: int, hidden: Array) -> Array:
        size = self.settings["head_dim"]
        query, key, value = (
            (hidden @ self.get(layer, f"self_attn.{name}_proj").T)
            .reshape(len(hidden), -1, size)
            .swapaxes(0, 1)
            for name in "qkv"
        )
        if self.is_gemma:
            query = self.norm(query, self.get(layer, "self_attn.q_norm"))
            key = self.norm(key, self.get(layer, "self_attn.k_norm"))
        query, key, value = (
            self.rotate(query),
            self.store(self.rotate(key)),
            self.store(value),
        )
        scores = query @ key.swapaxes(1, 2) / np.sqrt(size)
        scores[:, ~self.see(layer, len(hidden))] = -np.inf
        sinks = self.tensors.get(f"model.layers.{layer}.self_attn.sinks")
        most = scores.max(-1, keepdims=True)
        weights = np.exp(scores - most)
        total = weights.sum(-1, keepdims=True)
        weights /= total if sinks is None else total + np.exp(sinks[:, None, None] - most)
        self.weights.append(weights[:, -1])
        found = (weights @ value).swapaxes(0, 1).reshape(len(hidden), -1)
        return found @ self.get(layer, "self_attn.o_proj").T

    def rotate(self, numbers: Array) -> Array:
        """Turns pairs of [heads, positions, size] by their positions."""
        size = numbers.shape[-1]
        base = self.settings["rope_theta"]
        angles = np.outer(
            np.arange(numbers.shape[1]), base ** (-np.arange(0, size, 2) / size)
        )
        adjacent = self.settings["model_type"] in ADJACENT
        first = numbers[..., ::2] if adjacent else numbers[..., : size // 2]
        second = numbers[..., 1::2] if adjacent else numbers[..., size // 2 :]
        cos, sin = np.cos(angles), np.sin(angles)
        turned = first * cos - second * sin, first * sin + second * cos
        if adjacent:
            return np.stack(turned, -1).reshape(numbers.shape)
        return np.concatenate(turned, -1)

    def see(self, layer: int, count: int) -> Array:
        """Returns which positions each position sees. [count, count]"""
        distances = np.arange(count)[:, None] - np.arange(count)
        seen = distances >= 0
        types = self.settings.get("layer_types")
        slides = types is None or types[layer] == "sliding_attention"
        if slides and self.settings.get("sliding_window") is not None:
            seen &= distances < self.settings["sliding_window"]
        if types is not None and types[layer] == "chunked_attention":
            chunks = np.arange(count) // self.settings["attention_chunk_size"]
            seen &= chunks[:, None] == chunks
        return seen
