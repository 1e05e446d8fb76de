"""vLLM's block manager: mistakes that are made in it are found, and its divergences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.impl.released import (
    Mistake,
    check,
    each,
    get_signature,
    list_mistakes,
    load,
)


def keep_hash(evict: Any) -> Any:
    """A block that is taken for something else keeps its hash."""
    return lambda self, block: False


def raise_once(touch: Any) -> Any:
    """A hit does not raise the references of a block that somebody holds."""

    def change(self: Any, blocks: Iterable[Any]) -> None:
        touch(self, [block for block in blocks if block.ref_cnt == 0])

    return change


def free_twice(free: Any) -> Any:
    """The last block that is freed is freed twice, if another request holds it."""

    def change(self: Any, blocks: Iterable[Any]) -> None:
        listed = list(blocks)
        free(self, listed)
        free(self, [block for block in listed[-1:] if block.ref_cnt > 0])

    return change


def skip_one_more(skipped: Any) -> Any:
    """What a layer attends to begins one token later, so a block is freed early."""
    return lambda self, computed: skipped(self, computed) + 1


def leave_no_token(match: Any) -> Any:
    """A hit may have all tokens of a request."""
    return lambda self, request, most=None: match(self, request, request.num_tokens)


def find_one_more(find: Any) -> Any:
    """A hit ends with a block of something else."""

    def change(cls: Any, hashes: Any, max_length: int, **fields: Any) -> Any:
        blocks, hit = find(hashes, max_length, **fields)
        size = fields["kv_cache_spec"].block_size
        other = fields["block_pool"].blocks[-1]
        if hit + size > max_length or hit % size:
            return blocks, hit
        return tuple([*each, other] for each in blocks), hit + size

    return classmethod(change)


def hash_behind(cache_blocks: Any) -> Any:
    """A block counts as written up to the sampled token, in whose slot there may be a
    draft that was rejected."""
    return lambda self, request, computed: cache_blocks(self, request, computed + 1)


def lose_copies(take: Any) -> Any:
    """A block that is hit in part is not copied."""

    def change(self: Any) -> Any:
        _, retained = take(self)
        return [], retained

    return change


def allow_states_of_step(new_step: Any) -> Any:
    """A state is hit before it is computed."""

    def change(self: Any, *fields: Any, **more: Any) -> Any:
        self.cached_blocks_this_step.clear()
        return new_step(self, *fields, **more)

    return change


def say_nothing(emit: Any) -> Any:
    """No event tells of a block that is taken."""
    return lambda self, hashes: None


def hash_other(hide: Callable[[Any], dict[str, Any]]) -> Any:
    """Hashes a request that has these attributes instead of its own."""

    def change(make: Any) -> Any:
        def make_other(*options: Any) -> Any:
            hasher = make(*options)

            def hash_request(request: Any) -> Any:
                other = hide(request)
                kept = {name: getattr(request, name) for name in other}
                vars(request).update(other)
                hashes = hasher(request)
                vars(request).update(kept)
                return hashes

            return hash_request

        return make_other

    return change


def join_names(request: Any) -> dict[str, Any]:
    """A salt and an adapter of the same letters are the same."""
    lora = request.lora_request
    joined = (request.cache_salt or "") + (lora.name if lora else "")
    return {"cache_salt": joined, "lora_request": None}


def leave_out_images(request: Any) -> dict[str, Any]:
    """Images are not hashed, only their tokens."""
    return {"mm_features": []}


def publish_early(allocate: Any) -> Any:
    """What is still being received can be hit."""

    def change(self: Any, *fields: Any, **more: Any) -> Any:
        return allocate(self, *fields, **{**more, "delay_cache_blocks": False})

    return change


def free_at_once(finished: Any) -> Any:
    """A request that has ended frees its blocks although they are still being sent."""
    return lambda self, request: (False, finished(self, request)[1])


def allow_at_once(can_be_freed: Any) -> Any:
    """Blocks are received into that an unfinished step still writes."""
    return lambda self, request: True


def keep_all(update: Any) -> Any:
    """A load that fails counts as complete."""
    return lambda self, requests, *fields, **more: (set(), 0, set())


def ignore_ranks(find: Any) -> Any:
    """A block counts as full when one rank has filled its part."""
    return classmethod(
        lambda cls, *args, **more: find(*args, **{**more, "dcp_world_size": 1})
    )


MISTAKES = [
    ("", "paged-full", "BlockPool._maybe_evict_cached_block", keep_hash),
    ("", "paged-full", "BlockPool.touch", raise_once),
    ("", "paged-full", "BlockPool.free_blocks", free_twice),
    ("", "paged-full", "KVCacheManager.get_computed_blocks", leave_no_token),
    ("", "paged-full", "KVCacheManager.cache_blocks", hash_behind),
    ("", "paged-full", "get_request_block_hasher", hash_other(join_names)),
    ("", "paged-hybrid", "get_request_block_hasher", hash_other(leave_out_images)),
    ("", "paged-full", "BlockPool._emit_block_removed_events", say_nothing),
    ("", "paged-full", "FullAttentionManager.find_longest_cache_hit", find_one_more),
    ("", "paged-sliding", "SlidingWindowManager.get_num_skipped_tokens", skip_one_more),
    ("", "paged-sliding", "SlidingWindowManager.find_longest_cache_hit", find_one_more),
    ("-ngram", "paged-chunked", "ChunkedLocalAttentionManager.get_num_skipped_tokens",
     skip_one_more),
    ("", "paged-hybrid", "SlidingWindowManager.get_num_skipped_tokens", skip_one_more),
    ("-ngram", "paged-hybrid", "KVCacheManager.cache_blocks", hash_behind),
    ("-eagle", "paged-full", "BlockPool.touch", raise_once),
    ("-eagle-drop", "paged-full", "BlockPool.free_blocks", free_twice),
    ("-sparse", "paged-sliding", "BlockPool.free_blocks", free_twice),
    ("-interval", "paged-hybrid", "BlockPool.touch", raise_once),
    ("-states", "paged-hybrid", "KVCacheManager.take_kv_cache_block_copies", lose_copies),
    ("-states", "paged-state", "MambaManager.get_num_blocks_to_allocate",
     allow_states_of_step),
    ("", "paged-full", "KVCacheManager.allocate_slots", publish_early),
    ("-states", "paged-state", "KVCacheManager.allocate_slots", publish_early),
    ("", "paged-full", "Scheduler._connector_finished", free_at_once),
    ("", "paged-hybrid", "Scheduler._connector_finished", free_at_once),
    ("", "paged-full", "Scheduler._request_blocks_can_be_freed", allow_at_once),
    ("", "paged-full", "Scheduler._update_requests_with_invalid_blocks", keep_all),
    ("", "paged-full", "FullAttentionManager.find_longest_cache_hit", ignore_ranks),
]  # fmt: skip


@each(list_mistakes("vllm", "vllm", MISTAKES))
def test_a_mistake_is_found(mistake: Mistake) -> None:
    check(mistake)


# --- divergences ------------------------------------------------------------------------


def ask(op: str, **fields: Any) -> dict[str, Any]:
    return {"op": op, "request": "a", **fields}


def test_a_request_of_the_step_that_is_preempted_leaves_its_hash() -> None:
    """By the policy priority; by fcfs it is not preempted."""
    ops = ask("open", tokens=[1, 1, 1]), ask("schedule", count=3), ask("preempt")
    config = {"kind": "paged-full"}
    assert get_signature(load("vllm"), config, *ops) is None
    signature = "paged-paged-full-preempt-hash"
    assert get_signature(load("vllm-priority"), config, *ops) == signature
    count = ask("schedule", count=1)  # no block is full
    assert get_signature(load("vllm-priority"), config, ops[0], count, ops[2]) is None


def test_an_empty_cache_is_hit_where_a_chunk_begins_inside_a_block() -> None:
    """Not where one block, or several, are a chunk."""
    ops = ask("open", tokens=[1, 1, 1, 1]), ask("schedule", count=1)
    signature = "paged-paged-chunked-schedule-result"
    for block, width, found in ((2, 3, signature), (2, 4, None), (3, 3, None)):
        groups = [{"type": "chunked", "block": block, "width": width, "layers": 1}]
        config = {"kind": "paged-chunked", "groups": groups}
        assert get_signature(load("vllm"), config, *ops) == found
