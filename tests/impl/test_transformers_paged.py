"""The paged cache of transformers: mistakes that are made in the library are found."""

from __future__ import annotations

from typing import Any

from tests.impl.released import Mistake, check, each, list_mistakes

NAME, PACKAGE = "transformers-paged", "transformers.generation.continuous_batching"


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


MISTAKES = [
    *list_mistakes(f"{PACKAGE}.cache_allocators.cache_allocator", NAME, [
        ("", "paged-full", "BlockLedger.evict_cached_blocks", keep_hashes),
        ("", "paged-full", "BlockLedger.acquire", raise_nothing),
        ("", "paged-full", "CacheAllocator.free_blocks", free_twice),
        ("", "paged-sliding", "CacheAllocator.free_blocks", free_twice),
        ("", "paged-hybrid", "CacheAllocator.free_blocks", lose_last),
        ("", "paged-full", "CacheAllocator.match_prefix_blocks", hit_all),
        ("", "paged-full", "BlockLedger.release", leave_hash),
        ("", "paged-full", "BlockLedger.release", keep_cached),
        ("", "paged-full", "compute_block_hash", forget_parent),
        ("", "paged-full", "CacheAllocator.copy_blocks", copy_half),
        ("", "paged-hybrid", "CacheAllocator.copy_blocks", copy_half),
        ("", "paged-full", "CacheAllocator.count_shareable_blocks", share_last),
        ("", "paged-hybrid", "CacheAllocator.fork_blocks", share_unreferenced),
    ]),
    *list_mistakes(f"{PACKAGE}.cache", NAME, [
        ("", "paged-full",
         "PagedAttentionCache.count_new_complete_blocks", complete_early),
        ("", "paged-full", "PagedAttentionCache.can_store_request_tokens", publish_early),
    ]),
    *list_mistakes(f"{PACKAGE}.cache_allocators.cache_pool", NAME, [
        ("", "paged-full", "RegularTrees.delete_full_trees", release_used),
    ]),
    *list_mistakes(f"{PACKAGE}.cache_allocators.sliding_attention", NAME, [
        ("", "paged-sliding",
         "SlidingAttentionCacheAllocator.get_read_indices", read_one_less),
        ("", "paged-sliding",
         "SlidingAttentionCacheAllocator.get_write_indices", write_later),
        ("", "paged-sliding",
         "SlidingAttentionCacheAllocator._compute_blocks_needed", shorten_ring),
    ]),
    *list_mistakes(f"{PACKAGE}.input_outputs", NAME, [
        ("-padded", "paged-hybrid",
         "ContinuousBatchingIOs._reset_read_and_write_indices", skip_reset),
    ]),
    *list_mistakes(f"{PACKAGE}.cache_allocators.full_attention", NAME, [
        ("-decode", "paged-full",
         "FullAttentionCacheAllocator.fill_block_table", shift_pages),
    ]),
]  # fmt: skip


@each(MISTAKES)
def test_a_mistake_in_the_library_is_found(mistake: Mistake) -> None:
    check(mistake)
