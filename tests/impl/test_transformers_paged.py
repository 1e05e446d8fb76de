"""The paged cache of transformers: what its adapter declares can be opened, agrees, and
tells; mistakes that are made in the library are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.sources import RandomSource
from tests.harness.building import make

pytest.importorskip(
    "transformers.generation.continuous_batching.cache_allocators",
    reason="pip install 'kv-lockstep[transformers-paged]'",
)

from transformers.generation.continuous_batching import cache as caches
from transformers.generation.continuous_batching import input_outputs
from transformers.generation.continuous_batching.cache_allocators import (
    cache_allocator,
    cache_pool,
    full_attention,
    sliding_attention,
)

from lockstep.impl.peers import transformers_paged as peers

BACKENDS: Mapping[str, Callable[[], Backend]] = {
    "plain": peers.transformers_paged,
    "padded": peers.transformers_paged_padded,
    "decode": peers.transformers_paged_decode,
}
MOST = 100
"""Programs in which a mistake is found."""


def count_programs(backend: Backend, kind: str, most: int) -> int | None:
    """Returns the number of programs until one diverges; None if none does."""
    declared = backend.contracts["paged"][kind]
    drawer, source = Drawer("paged", kind, declared, backend.dtypes), RandomSource(5)
    for number in range(1, most + 1):
        if run(drawer.draw(source), backend).divergence is not None:
            return number
    return None


@pytest.mark.parametrize("name", BACKENDS)
def test_programs_agree(name: str) -> None:
    backend = BACKENDS[name]()
    for kind in backend.contracts["paged"]:
        assert count_programs(backend, kind, 25) is None


CHANGE = {"tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9]}
PROGRAM = (
    {"op": "open", "request": "a", **CHANGE},
    {"op": "schedule", "request": "a", "count": 3},
    {"op": "run"},
    {"op": "schedule", "request": "a", "count": 9},
    {"op": "run"},
    {"op": "fork", "source": "a", "target": "b", "tokens": [3, 2]},
    {"op": "open", "request": "c", **CHANGE},
    {"op": "schedule", "request": "b", "count": 2},
    {"op": "schedule", "request": "c", "count": 9},
    {"op": "run"},
    {"op": "accept", "request": "a", "sampled": 4},
    {"op": "free", "request": "b"},
    {"op": "preempt", "request": "c"},
    {"op": "schedule", "request": "a", "count": 1},
    {"op": "schedule", "request": "c", "count": 9},
    {"op": "run"},
    {"op": "free", "request": "a", "reuse": False},
    {"op": "free", "request": "c"},
    {"op": "evict", "count": 256},
    {"op": "reset"},
)


@pytest.mark.parametrize("name", BACKENDS)
def test_all_that_is_declared_runs(name: str) -> None:
    """Each model with each dtype: a declared config opens and does every operation."""
    backend, opened = BACKENDS[name](), 0
    for kind, declared in backend.contracts["paged"].items():
        for groups in declared.config["groups"]:
            for number, dtype in enumerate(backend.dtypes):
                options = declared.config
                more = {
                    "data": options["data"][number % len(options["data"])],
                    "prefix_cache": options.get("prefix_cache", (True,))[0],
                }
                dims = {"key_dim": 4, "value_dim": 4, "heads": 1 + number % 2}
                program = make(
                    *PROGRAM, contract="paged", kind=kind, groups=groups, dtype=dtype,
                    blocks=40, **dims, **more,
                )  # fmt: skip
                result = run(program, backend)
                assert (result.divergence, result.skipped) == (None, 0)
                opened += 1
    assert opened >= (18 if name == "decode" else 60)


def test_programs_hit_and_evict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would be learned of a cache that reuses nothing."""
    backend, hits, evicted = peers.transformers_paged(), [], []
    search = caches.PagedAttentionCache.search_prefix_match
    evict = cache_allocator.BlockLedger.evict_cached_blocks
    monkeypatch.setattr(
        caches.PagedAttentionCache,
        "search_prefix_match",
        lambda *args: hits.append(search(*args)) or hits[-1],
    )
    monkeypatch.setattr(
        cache_allocator.BlockLedger,
        "evict_cached_blocks",
        lambda *args: evicted.append(evict(*args)) or evicted[-1],
    )
    assert count_programs(backend, "paged-full", 160) is None
    assert sum(hit > 0 for hit in hits) > 20
    assert sum(map(bool, evicted)) > 3


# --- mistakes ---------------------------------------------------------------------------


Change = Callable[[Any], Any]
LEDGER, ALLOCATOR = cache_allocator.BlockLedger, cache_allocator.CacheAllocator
FULL = full_attention.FullAttentionCacheAllocator
SLIDING = sliding_attention.SlidingAttentionCacheAllocator
CACHE, INPUTS = caches.PagedAttentionCache, input_outputs.ContinuousBatchingIOs


def keep_hashes(evict: Any) -> Any:
    """An evicted block can still be hit."""

    def change(self: Any) -> list[int]:
        evicted = list(self.cached_blocks)
        self.cached_blocks.clear()
        return evicted

    return change


def raise_nothing(acquire: Any) -> Any:
    """A hit does not raise the references of a block that another request holds."""
    return lambda self, block: self.cached_blocks.pop(block, None)


def free_twice(free: Any) -> Any:
    """The last block of a request that ends is free twice."""

    def change(self: Any, request: str, no_cache: bool = False) -> None:
        last = self.block_table.get(request, [])[-1:]
        free(self, request, no_cache)
        free_now = {one for tree in self.pool._free_blocks[self.index].trees.values()
                    for one in tree}  # fmt: skip
        self.pool.free_blocks(self.index, [one for one in last if one in free_now])

    return change


def lose_last(free: Any) -> Any:
    """The last block of a request that ends is lost."""

    def change(self: Any, request: str, no_cache: bool = False) -> None:
        self.block_table.get(request, [])[-1:] = []
        free(self, request, no_cache)

    return change


def hit_all(match: Any) -> Any:
    """A hit may leave no token to compute."""
    return lambda self, tokens: match(self, [*tokens, 0])


def leave_hash(release: Any) -> Any:
    """A request that is rolled back leaves hashes of blocks that go to the pool."""

    def change(self: Any, block: int, no_cache: bool = False) -> bool:
        held = self.block_to_hash.get(block)
        freed = release(self, block, no_cache)
        if no_cache and freed and held is not None:
            self.hash_to_block[held], self.block_to_hash[block] = block, held
        return bool(freed)

    return change


def keep_cached(release: Any) -> Any:
    """The blocks of a request that none may reuse are cached."""
    return lambda self, block, no_cache=False: release(self, block)


def forget_parent(compute: Any) -> Any:
    """The hash of a block knows its own tokens alone."""
    return lambda parent, tokens: compute(None, tokens)


def complete_early(count: Any) -> Any:
    """A block counts as written one token early."""
    return lambda self, state, length: count(self, state, length + 1)


def publish_early(search: Any) -> Any:
    """Hashes are published when slots are given, and stay if the step is not run."""

    def change(self: Any, state: Any, length: int, dry_run: bool = False) -> bool:
        done = search(self, state, length, dry_run)
        if done:
            tokens = state.initial_tokens + state.generated_tokens
            end = state.position_offset + length
            for allocator in self.cache_allocators.values():
                pages = end // allocator.tokens_per_page
                allocator.mark_complete_blocks(state.request_id, tokens, pages)
        return bool(done)

    return change


def copy_half(copy: Any) -> Any:
    """A fork copies K of the first layer only."""

    def change(self: Any, sources: list[int], targets: list[int]) -> None:
        size = self.bytes_per_block // (2 * self.pages_per_block)
        for source, target in zip(sources, targets, strict=True):
            self._copy_view[target, :size] = self._copy_view[source, :size]

    return change


def share_last(count: Any) -> Any:
    """After a fork both write into the block that is not full."""
    return lambda self, request, past: len(self.block_table[request])


def share_unreferenced(fork: Any) -> Any:
    """A fork does not raise the references of the blocks that it shares."""

    def change(self: Any, *args: Any) -> Any:
        self.ledger.acquire = lambda block: None
        answer = fork(self, *args)
        del self.ledger.acquire
        return answer

    return change


def release_used(free: Any) -> Any:
    """A sector goes back to the pool when one of its blocks is free."""

    def change(self: Any) -> list[int]:
        roots = [root for root, tree in self.trees.items() if tree]
        self._length -= sum(len(self.trees.pop(root)) for root in roots)
        return roots

    return change


def read_one_less(read: Any) -> Any:
    """A ring is read as if it began one token later."""
    return lambda self, request, past, length: read(
        self, request, past + (past >= self.sliding_window), length
    )


def write_later(write: Any) -> Any:
    """A chunk that is longer than the window goes to the slots of its first tokens."""
    return lambda self, request, past, length: write(
        self, request, past - max(0, length - self.sliding_window), length
    )


def shorten_ring(count: Any) -> Any:
    """A ring has one block less than its window needs."""
    return lambda self, allocated, past, length: count(
        self, allocated, min(past, self.sliding_window - length - 1), length
    )


def skip_reset(reset: Any) -> Any:
    """The indices of the last step stay where the next one is padded."""
    return lambda self, *sizes: None if self.num_q_tokens else reset(self, *sizes)


def shift_pages(fill: Any) -> Any:
    """A table of blocks counts blocks where it should count pages of a layer."""

    def change(self: Any, request: str, past: int, length: int, table: Any) -> None:
        fill(self, request, past, length, table)
        table[: len(self.block_table[request])] //= 2

    return change


MISTAKES: list[tuple[str, str, Any, str, Change]] = [
    ("plain", "paged-full", LEDGER, "evict_cached_blocks", keep_hashes),
    ("plain", "paged-full", LEDGER, "acquire", raise_nothing),
    ("plain", "paged-full", ALLOCATOR, "free_blocks", free_twice),
    ("plain", "paged-sliding", ALLOCATOR, "free_blocks", free_twice),
    ("plain", "paged-hybrid", ALLOCATOR, "free_blocks", lose_last),
    ("plain", "paged-full", ALLOCATOR, "match_prefix_blocks", hit_all),
    ("plain", "paged-full", LEDGER, "release", leave_hash),
    ("plain", "paged-full", LEDGER, "release", keep_cached),
    ("plain", "paged-full", cache_allocator, "compute_block_hash", forget_parent),
    ("plain", "paged-full", CACHE, "count_new_complete_blocks", complete_early),
    ("plain", "paged-full", CACHE, "can_store_request_tokens", publish_early),
    ("plain", "paged-full", ALLOCATOR, "copy_blocks", copy_half),
    ("plain", "paged-hybrid", ALLOCATOR, "copy_blocks", copy_half),
    ("plain", "paged-full", ALLOCATOR, "count_shareable_blocks", share_last),
    ("plain", "paged-hybrid", ALLOCATOR, "fork_blocks", share_unreferenced),
    ("plain", "paged-full", cache_pool.RegularTrees, "delete_full_trees", release_used),
    ("plain", "paged-sliding", SLIDING, "get_read_indices", read_one_less),
    ("plain", "paged-sliding", SLIDING, "get_write_indices", write_later),
    ("plain", "paged-sliding", SLIDING, "_compute_blocks_needed", shorten_ring),
    ("padded", "paged-hybrid", INPUTS, "_reset_read_and_write_indices", skip_reset),
    ("decode", "paged-full", FULL, "fill_block_table", shift_pages),
]
"""(backend, kind, class or module, attribute, how it is changed)."""


@pytest.mark.parametrize(
    ("name", "kind", "owner", "attribute", "change"),
    MISTAKES,
    ids=[f"{name}-{kind}-{change.__name__}" for name, kind, _, _, change in MISTAKES],
)
def test_a_mistake_in_the_library_is_found(
    name: str,
    kind: str,
    owner: Any,
    attribute: str,
    change: Change,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))
    found = count_programs(BACKENDS[name](), kind, MOST)
    print("programs until found:", found)
    assert found is not None
