"""The paged cache of transformers: mistakes that are made in the library are found."""

from __future__ import annotations

from tests.impl.released import Mistake, check, each, edit, list_mistakes

NAME, PACKAGE = "transformers-paged", "transformers.generation.continuous_batching"
HALF = "self._copy_view[:, : self.bytes_per_block // self.pages_per_block // 2]"
PUBLISH = """for one in self.cache_allocators.values():
        tokens = state.initial_tokens + state.generated_tokens
        pages = (state.position_offset + request_len) // one.tokens_per_page
        one.mark_complete_blocks(state.request_id, tokens, pages)
    return True"""

MISTAKES = [
    *list_mistakes(f"{PACKAGE}.cache_allocators.cache_allocator", NAME, [
        # an evicted block can still be hit
        ("", "paged-full", "BlockLedger.evict_cached_blocks",
         edit("self.hash_to_block.pop(block_hash)", "pass")),
        # a hit does not raise the references of a block that another request holds
        ("", "paged-full", "BlockLedger.acquire",
         edit("self.shared_ref_counts.get(block_id, 1) + 1", "1")),
        # a request that is rolled back leaves hashes of blocks that go to the pool
        ("", "paged-full", "BlockLedger.release",
         edit("self.hash_to_block.pop(block_hash)", "pass")),
        # the blocks of a request that none may reuse are cached
        ("", "paged-full", "BlockLedger.release", edit("if no_cache:", "if False:")),
        # the last block of a request that ends is free twice, or is lost
        ("", "paged-full", "CacheAllocator.free_blocks",
         edit("freed_blocks)", "freed_blocks + freed_blocks[-1:])")),
        ("", "paged-sliding", "CacheAllocator.free_blocks",
         edit("freed_blocks)", "freed_blocks + freed_blocks[-1:])")),
        ("", "paged-hybrid", "CacheAllocator.free_blocks", edit(", [])", ", [])[:-1]")),
        # a hit may leave no token to compute
        ("", "paged-full", "CacheAllocator.match_prefix_blocks",
         edit("len(prompt_ids) - 1", "len(prompt_ids)")),
        # the hash of a block knows its own tokens alone
        ("", "paged-full", "compute_block_hash",
         edit("parent_hash is not None", "False")),
        # a fork copies K of the first layer only
        ("", "paged-full", "CacheAllocator.copy_blocks", edit("self._copy_view", HALF)),
        ("", "paged-hybrid", "CacheAllocator.copy_blocks", edit("self._copy_view", HALF)),
        # after a fork both write into the block that is not full
        ("", "paged-full", "CacheAllocator.count_shareable_blocks",
         edit("past_length // self.tokens_per_page", "past_length")),
        # a fork does not raise the references of the blocks that it shares
        ("", "paged-hybrid", "CacheAllocator.fork_blocks",
         edit("self.ledger.acquire(block_id)", "pass")),
    ]),
    *list_mistakes(f"{PACKAGE}.cache", NAME, [
        # a block counts as written one token early
        ("", "paged-full", "PagedAttentionCache.count_new_complete_blocks",
         edit("+ request_len", "+ request_len + 1")),
        # hashes are published when slots are given, and stay if the step is not run
        ("", "paged-full", "PagedAttentionCache.can_store_request_tokens",
         edit("return True", PUBLISH)),
    ]),
    *list_mistakes(f"{PACKAGE}.cache_allocators.cache_pool", NAME, [
        # a sector goes back to the pool when one of its blocks is free
        ("", "paged-full", "RegularTrees.delete_full_trees",
         edit("len(tree) == self.elems_per_tree", "tree")),
    ]),
    *list_mistakes(f"{PACKAGE}.cache_allocators.sliding_attention", NAME, [
        # a ring is read as if it began one token later
        ("", "paged-sliding", "SlidingAttentionCacheAllocator.get_read_indices",
         edit("past_length + 1", "past_length + 2")),
        # a chunk that is longer than the window goes to the slots of its first tokens
        ("", "paged-sliding", "SlidingAttentionCacheAllocator.get_write_indices",
         edit("(past_length + padding_length)", "past_length")),
        # a ring has one block less than its window needs
        ("", "paged-sliding", "SlidingAttentionCacheAllocator._compute_blocks_needed",
         edit("self.sliding_window)", "self.sliding_window - 1)")),
    ]),
    *list_mistakes(f"{PACKAGE}.input_outputs", NAME, [
        # the indices of the last step stay where the next one is padded
        ("-padded", "paged-hybrid", "ContinuousBatchingIOs._reset_read_and_write_indices",
         edit("in enumerate(", "in () if self.num_q_tokens else enumerate(")),
    ]),
    *list_mistakes(f"{PACKAGE}.cache_allocators.full_attention", NAME, [
        # a table of blocks counts blocks where it should count pages of a layer
        ("-decode", "paged-full", "FullAttentionCacheAllocator.fill_block_table",
         edit("* pages_stride", "* pages_stride // 2")),
    ]),
]  # fmt: skip


@each(MISTAKES)
def test_a_mistake_in_the_library_is_found(mistake: Mistake) -> None:
    check(mistake)
