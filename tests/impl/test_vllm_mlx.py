"""The prefix caches of vllm-mlx: mistakes that are made in them are found, and their
divergences."""

from __future__ import annotations

from typing import Any

from lockstep.harness.execution.executor import run
from tests.harness.building import make
from tests.impl.released import Mistake, check, each, list_mistakes, load


def trim_less(trim: Any) -> Any:
    """A cache of a longer conversation keeps a token too many."""
    return lambda cache, count: trim(cache, count - 1)


def store_shorter(store: Any) -> Any:
    """A cache is stored under too few tokens."""
    return lambda self, tokens, cache, **fields: store(self, tokens[1:], cache, **fields)


def share(detach: Any) -> Any:
    """A trimmed copy of an entry has the cache of the entry."""

    def change(cache: Any, count: int) -> Any:
        for layer, trimmed in zip(cache, detach(cache, count), strict=True):
            vars(layer).update(vars(trimmed))
        return cache

    return change


ROWS = [
    ("", "trie", "_trim_cache_offset", trim_less),
    ("", "trie", "_trim_cache_offset", share),
    ("", "trie", "MemoryAwarePrefixCache.store", store_shorter),
]
ENTRIES = [("-entries", "trie", "PrefixCacheManager.store_cache", store_shorter)]


@each(
    [
        *list_mistakes("vllm_mlx.memory_cache", "vllm-mlx", ROWS),
        *list_mistakes("vllm_mlx.prefix_cache", "vllm-mlx", ENTRIES),
    ]
)
def test_a_mistake_is_found(mistake: Mistake) -> None:
    check(mistake)


def test_a_block_is_reused_behind_other_tokens() -> None:
    load("vllm-mlx")  # skips without it
    conversation = [
        {"op": "begin", "tokens": [1, 2]}, {"op": "feed", "count": 2}, {"op": "close"},
        {"op": "begin", "tokens": [2, 2]},
    ]  # fmt: skip
    program = make(*conversation, contract="prefix", kind="trie")
    divergence = run(program, load("lockstep.impl.peers.vllm_mlx:paged")).divergence
    assert divergence is not None
    assert divergence.get_signature(program) == "prefix-trie-begin-result"
    assert run(program, load("vllm-mlx")).divergence is None
