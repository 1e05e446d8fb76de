"""The adapter to mlx-lm's `LRUPromptCache`, which makes the same calls as
`mlx_lm.server`.

The server fetches the nearest cache and the remaining tokens of the prompt, and computes
on a copy. When the answer is complete, the server inserts the copy under all tokens that
the copy has read.

`LRUPromptCache` has no captures, no tree of shared tokens and no user checkpoints. If a
cache cannot be trimmed, only a request that begins with all of its tokens can reuse it.
Therefore the backend declares only models whose layers keep all tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlx_lm.models.cache import KVCache, LRUPromptCache

from lockstep.harness.backends import Backend, Kind
from lockstep.impl.peers.mlx_lm import declare
from lockstep.impl.peers.mlx_lm_layers import Layer

MODEL = "model"
ENTRIES = 1 << 20
"""More entries than programs store, since the contract has no limit on entries."""


class PromptCache:
    """The prompt cache of a server with one model."""

    def __init__(self, layers: int, step: int) -> None:
        self.count, self.step = layers, step
        self.stored = LRUPromptCache(max_size=ENTRIES)
        self.caches = self.make_caches()
        self.tokens: list[int] = []

    @property
    def layers(self) -> Sequence[Layer]:
        return [Layer(cache) for cache in self.caches]

    def make_caches(self) -> list[Any]:
        caches = [KVCache() for _ in range(self.count)]
        for cache in caches:
            cache.step = self.step
        return caches

    def begin(self, tokens: Sequence[int], checkpoints: Sequence[int]) -> Sequence[int]:
        caches, remaining = self.stored.fetch_nearest_cache(MODEL, list(tokens))
        self.caches = self.make_caches() if caches is None else caches
        self.tokens = list(tokens)
        return list(remaining)

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens

    def close(self) -> int:
        """Inserts the caches under the tokens that they have read."""
        read = min(int(cache.offset) for cache in self.caches)
        self.stored.insert_cache(MODEL, self.tokens[:read], self.caches)
        return read


def mlx_lm_prompt_cache() -> Backend:
    """Declares `LRUPromptCache` with caches of the class `KVCache`, without a limit."""
    operations = frozenset({"begin", "feed", "close"})
    config: Mapping[str, tuple[Any, ...]] = {"layers": (["kv"], ["kv", "kv"])}
    kinds = {"trie": Kind(operations, config)}
    return declare("mlx-lm-prompt-cache", kinds, _open, contract="prefix")


def _open(config: Mapping[str, Any]) -> PromptCache:
    return PromptCache(len(config["layers"]), config["step"])
