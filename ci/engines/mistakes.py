"""Runs vLLM's server with a planted mistake in its own KV-cache manager.

`serve.py --mistake NAME` starts this script in place of vLLM's module. The processes that
vLLM starts run this file, too, so the mistake reaches the scheduler.
"""

from __future__ import annotations

import os
import runpy
from typing import Any

from vllm.utils import cpu_triton_utils
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager

touch, free = BlockPool.touch, BlockPool.free_blocks
remove = SlidingWindowManager.remove_skipped_blocks
hash_block = kv_cache_utils.hash_block_tokens
allocate, release = KVCacheManager.allocate_slots, KVCacheManager.free


def evict_block(self: Any, block: Any) -> bool:
    """Forgets the hash in the block, but not in the map."""
    block.reset_hash()
    return False


def touch_free(self: Any, blocks: Any) -> None:
    """Raises the references of free blocks alone."""
    touch(self, [block for block in blocks if not block.ref_cnt])


def free_twice(self: Any, blocks: Any) -> None:
    """Frees the first block of a request again if another request has it."""
    listed = [*blocks]
    free(self, listed + [block for block in listed[-1:] if block.ref_cnt > 1])


def remove_early(self: Any, name: str, computed: int, *more: Any) -> None:
    """Frees blocks as soon as the window begins in them."""
    remove(self, name, computed + self.block_size - 1, *more)


def hash_short(function: Any, parent: Any, tokens: Any, extra: Any = None) -> Any:
    """Leaves the last token out of the hash, so that a hit is a token too long."""
    return hash_block(function, parent, tokens[:-1], extra)


def cache_drafts(self: Any, request: Any, count: int, *more: Any, **rest: Any) -> Any:
    """Caches blocks that end with drafts."""
    blocks = allocate(self, request, count, *more, **rest)
    if blocks is not None and request.spec_token_ids:
        self.cache_blocks(request, request.num_computed_tokens + count)
    return blocks


def cache_unwritten(self: Any, request: Any) -> None:
    """Caches all blocks of a request that ends or is preempted, as if full."""
    held = len(self.get_block_ids(request.request_id)[0])
    self.cache_blocks(request, min(32 * held, request.num_tokens))
    release(self, request)


MISTAKES: dict[str, tuple[Any, str, Any]] = {
    "evicted-hash": (BlockPool, "_maybe_evict_cached_block", evict_block),
    "missing-touch": (BlockPool, "touch", touch_free),
    "freed-twice": (BlockPool, "free_blocks", free_twice),
    "early-free": (SlidingWindowManager, "remove_skipped_blocks", remove_early),
    "long-hit": (kv_cache_utils, "hash_block_tokens", hash_short),
    "drafted-hash": (KVCacheManager, "allocate_slots", cache_drafts),
    "unwritten-hash": (KVCacheManager, "free", cache_unwritten),
}
"""Name → (owner, attribute, what takes its place)."""


def expand(output: Any, value: Any, ends: Any, old: int, new: int, *_: Any) -> None:
    """Mends vLLM's sampling with drafts on the CPU, so that only the mistake shows."""
    lengths = ends.diff(prepend=ends.new_zeros(1))
    output.copy_(value.masked_fill(value == old, new).repeat_interleave(lengths))


if __name__ in ("__main__", "__mp_main__"):
    cpu_triton_utils._expand_kernel_impl = expand
    mistake = os.environ["MISTAKE"]
    if mistake != "none":
        setattr(*MISTAKES[mistake])
if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
