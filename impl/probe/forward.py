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
        store: converts rotated K, or V, to the numbers that a cache stores. [heads,
            positions, size]
        """
        self.settings = model.settings
        self.tensors = {
            name: tensor.astype(np.float64) for name, tensor in model.tensors.items()
        }
        self.store = store
        self.is_gemma = self.settings["model_type"] == "gemma3_text"
        self.is_lfm = self.settings["model_type"] == "lfm2"
        self.weights: list[Array] = []

    def get(self, layer: int, name: str) -> Array:
        return self.tensors[f"model.layers.{layer}.{name}.weight"]

    def get_type(self, layer: int) -> str:
        types = self.settings.get("layer_types")
        return "sliding_attention" if types is None else str(types[layer])

    def compute_logits(self, ids: Sequence[int]) -> Array:
        """Returns the logits behind the last token. [ids]"""
        hidden = self.tensors["model.embed_tokens.weight"][list(ids)]
        if self.is_gemma:
            hidden = hidden * np.sqrt(hidden.shape[1])
        self.weights = []
        for layer in range(self.settings["num_hidden_layers"]):
            if self.is_lfm:
                normed = self.norm(hidden, self.get(layer, "operator_norm"))
            else:
                normed = self.norm(hidden, self.get(layer, "input_layernorm"))
            if self.get_type(layer) == "conv":
                added = self.convolve(layer, normed)
            elif self.get_type(layer) == "mamba":
                added = self.scan(layer, normed)
            else:
                added = self.attend(layer, normed)
            if self.is_gemma:
                added = self.norm(added, self.get(layer, "post_attention_layernorm"))
            hidden = hidden + added
        norm = "model.embedding_norm" if self.is_lfm else "model.norm"
        last = self.norm(hidden[-1], self.tensors[f"{norm}.weight"])
        logits: Array = self.tensors["lm_head.weight"] @ last
        return logits

    def norm(self, numbers: Array, weight: Array) -> Array:
        square = (numbers**2).mean(-1, keepdims=True) + self.settings["rms_norm_eps"]
        normed: Array = numbers / np.sqrt(square) * (weight + self.is_gemma)
        return normed

    def attend(self, layer: int, hidden: Array) -> Array:
        if self.settings["model_type"] == "deepseek_v2":
            query, key, value = self.project_latent(layer, hidden)
        else:
            query, key, value = self.project(layer, hidden)
        scores = query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1])
        scores[:, ~self.see(layer, len(hidden))] = -np.inf
        sinks = self.tensors.get(f"model.layers.{layer}.self_attn.sinks")
        most = scores.max(-1, keepdims=True)
        weights = np.exp(scores - most)
        total = weights.sum(-1, keepdims=True)
        weights /= total if sinks is None else total + np.exp(sinks[:, None, None] - most)
        self.weights.append(weights[:, -1])
        found = (weights @ value).swapaxes(0, 1).reshape(len(hidden), -1)
        name = "out_proj" if self.is_lfm else "o_proj"
        added: Array = found @ self.get(layer, f"self_attn.{name}").T
        return added

    def convolve(self, layer: int, hidden: Array) -> Array:
        """Runs a short convolution of LFM2."""
        projected = hidden @ self.get(layer, "conv.in_proj").T
        previous, after, value = np.split(projected, 3, axis=1)
        mixed = self.delay(previous * value, self.get(layer, "conv.conv")[:, 0])
        return (after * mixed) @ self.get(layer, "conv.out_proj").T

    def scan(self, layer: int, hidden: Array) -> Array:
        """Runs a Mamba-2 layer, token by token."""
        name = f"model.layers.{layer}.mamba."
        inner = self.tensors[f"{name}norm.weight"].size
        states, heads = self.settings["mamba_d_state"], self.settings["mamba_n_heads"]
        projected = hidden @ self.get(layer, "mamba.in_proj").T
        gate, mixed, step = np.split(projected, [inner, 2 * inner + 2 * states], axis=1)
        mixed = self.delay(mixed, self.get(layer, "mamba.conv1d")[:, 0])
        mixed = silu(mixed + self.tensors[f"{name}conv1d.bias"])
        value, previous, queries = np.split(mixed, [inner, inner + states], axis=1)
        step = np.log1p(np.exp(step + self.tensors[f"{name}dt_bias"]))
        decay = np.exp(-step * np.exp(self.tensors[f"{name}A_log"]))
        step, decay = (np.repeat(part, inner // heads, 1) for part in (step, decay))
        skip = np.repeat(self.tensors[f"{name}D"], inner // heads)
        table, found = np.zeros((inner, states)), np.zeros((len(hidden), inner))
        for token in range(len(hidden)):
            entry = np.outer(step[token] * value[token], previous[token])
            table = decay[token][:, None] * table + entry
            found[token] = table @ queries[token] + skip * value[token]
        normed = self.norm(found * silu(gate), self.get(layer, "mamba.norm"))
        return normed @ self.get(layer, "mamba.out_proj").T

    def delay(self, numbers: Array, kernel: Array) -> Array:
        """Runs a causal convolution of each channel. numbers: [positions, channels]"""
        width = kernel.shape[1]
        stored = self.store(numbers[None])[0]
        padded = np.vstack([np.zeros((width - 1, numbers.shape[1])), stored])
        taps = [padded[tap : tap + len(numbers)] * kernel[:, tap] for tap in range(width)]
        total: Array = np.sum(taps, axis=0)
        return total

    def project(self, layer: int, hidden: Array) -> tuple[Array, Array, Array]:
        """Returns Q, K and V. [heads, positions, size]"""
        size = self.settings["head_dim"]
        query, key, value = (
            (hidden @ self.get(layer, f"self_attn.{name}_proj").T)
            .reshape(len(hidden), -1, size)
            .swapaxes(0, 1)
            for name in "qkv"
        )
        if self.is_gemma or self.is_lfm:
            norm = "layernorm" if self.is_lfm else "norm"
            query = self.norm(query, self.get(layer, f"self_attn.q_{norm}"))
            key = self.norm(key, self.get(layer, f"self_attn.k_{norm}"))
        stored = self.store(self.rotate(key)), self.store(value)
        return self.rotate(query), *stored

    def project_latent(self, layer: int, hidden: Array) -> tuple[Array, Array, Array]:
        """Returns Q, K and V of DeepSeek V2. [heads, positions, size]"""
        rank, plain = self.settings["kv_lora_rank"], self.settings["qk_nope_head_dim"]
        heads = self.settings["num_attention_heads"]
        query = self.norm(
            hidden @ self.get(layer, "self_attn.q_a_proj").T,
            self.get(layer, "self_attn.q_a_layernorm"),
        )
        query = query @ self.get(layer, "self_attn.q_b_proj").T
        query = query.reshape(len(hidden), heads, -1).swapaxes(0, 1)
        shared = hidden @ self.get(layer, "self_attn.kv_a_proj_with_mqa").T
        latent = self.norm(shared[:, :rank], self.get(layer, "self_attn.kv_a_layernorm"))
        rotated = self.store(self.rotate(shared[None, :, rank:]))
        expanded = self.store(latent[None]) @ self.get(layer, "self_attn.kv_b_proj").T
        expanded = expanded.reshape(len(hidden), heads, -1).swapaxes(0, 1)
        key = np.dstack([expanded[..., :plain], np.repeat(rotated, heads, 0)])
        turned = self.rotate(query[..., plain:])
        return np.dstack([query[..., :plain], turned]), key, expanded[..., plain:]

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
        kind = self.get_type(layer)
        if (
            kind == "sliding_attention"
            and self.settings.get("sliding_window") is not None
        ):
            seen &= distances < self.settings["sliding_window"]
        if kind == "chunked_attention":
            chunks = np.arange(count) // self.settings["attention_chunk_size"]
            seen &= chunks[:, None] == chunks
        return seen


def silu(numbers: Array) -> Array:
    activated: Array = numbers / (1 + np.exp(-numbers))
    return activated
