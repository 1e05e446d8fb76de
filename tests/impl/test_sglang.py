"""SGLang's prefix caches: mistakes that are made in them are found, and divergences."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from tests.impl.released import (
    Mistake,
    check,
    each,
    get_signature,
    list_mistakes,
    load,
)


def lock_once(lock: Any) -> Any:
    """A hit does not raise the locks of what somebody holds."""

    def change(self: Any, node: Any, *fields: Any) -> Any:
        receipt = lock(self, node, *fields)
        told = node if hasattr(node, "lock_ref") else self.node_by_id(node)
        for one in [told] if hasattr(told, "lock_ref") else told.component_data:
            one.lock_ref -= one.lock_ref > 1
        return receipt

    return change


def unlock_nothing(unlock: Any) -> Any:
    """A request that is ended or retracted keeps its locks."""
    return lambda self, node, *fields, **more: None


def stay_in_tree(delete: Any) -> Any:
    """A node that is evicted stays in the tree."""

    def change(self: Any, node: Any) -> None:
        delete(self, node)
        node.parent.children[node.key.child_key(self.page_size)] = node

    return change


def free_twice(free: Any) -> Any:
    """What a tree has already, and a request has, too, is freed twice."""

    def change(self: Any, places: Any, *, start_pos: int) -> None:
        free(self, places, start_pos=start_pos)
        free(self, places[: len(places) * (start_pos > 0)], start_pos=start_pos)

    return change


def free_one_early(free: Any) -> Any:
    """A sliding token is freed one early."""
    return lambda req, pre_len, **fields: free(req, pre_len + 1, **fields)


def leave_no_token(limit: Any) -> Any:
    """A hit may have all tokens of a request."""
    return lambda self, length: length


def find_one_more(match: Any) -> Any:
    """A hit ends with a page of something else."""

    def change(self: Any, other: Any, page_size: int = 1) -> int:
        found = int(match(self, other, page_size))
        rest = min(len(self), len(other)) - found
        return found + page_size * (found > 0 and page_size <= rest)

    return change


def keep_own_row(write: Any) -> Any:
    """A request goes on with pages of its own, which are freed since the tree has them
    already."""
    return lambda self, indices, values: (
        None if len(values) > 2 else write(self, indices, values)
    )


def ignore_window(validator: Any) -> Any:
    """A hit does not need the window before it."""
    return lambda self, match_device_only=False: lambda node: True


def lose_state(copy: Any) -> Any:
    """A state that is hit is not copied."""
    return lambda self, params, result: result


def say_nothing(record: Any) -> Any:
    """No event tells of a node that is evicted."""
    return lambda self, node, medium=None: None


def publish_behind(owned: Any) -> Any:
    """The sampled token counts as written, in whose slot there may be a draft that was
    rejected."""
    return lambda self: owned(self) + 1


def match_less(match: Any) -> Any:
    """A hit is a token shorter than it could be, which is allowed."""

    def change(self: Any, params: Any) -> Any:
        params.key.limit = max(0, len(params.key) - 1)
        return match(self, params)

    return change


MEM, TREE = "sglang.srt.mem_cache", "sglang.srt.mem_cache.unified_cache"
MISTAKES = [
    *list_mistakes(f"{MEM}.radix_cache", "sglang-", [
        ("radix", "paged-full", "RadixCache.inc_lock_ref", lock_once),
        ("radix", "paged-full", "RadixCache.dec_lock_ref", unlock_nothing),
        ("radix", "paged-full", "RadixCache._delete_leaf", stay_in_tree),
        ("radix", "paged-full", "RadixKey.match", find_one_more),
    ]),
    *list_mistakes(f"{MEM}.allocator.paged", "sglang-", [
        ("radix", "paged-full", "PagedTokenToKVPoolAllocator.free_segment", free_twice),
        ("unified", "paged-hybrid",
         "PagedTokenToKVPoolAllocator.free_segment", free_twice),
        ("unified-rust", "paged-full",
         "PagedTokenToKVPoolAllocator.free_segment", free_twice),
    ]),
    *list_mistakes("sglang.srt.managers.schedule_batch", "sglang-", [
        ("radix", "paged-full", "Req._compute_max_prefix_len", leave_no_token),
        ("unified-ngram", "paged-full", "Req.owned_kv_len", publish_behind),
    ]),
    *list_mistakes(f"{MEM}.events", "sglang-", [
        ("radix", "paged-full", "KVCacheEventRecorder.record_remove", say_nothing),
    ]),
    *list_mistakes(f"{MEM}.memory_pool", "sglang-", [
        ("radix", "paged-full", "ReqToTokenPool.write", keep_own_row),
    ]),
    *list_mistakes(f"{MEM}.common", "sglang-", [
        ("radix", "paged-sliding", "free_swa_out_of_window_slots", free_one_early),
        ("unified", "paged-hybrid", "free_swa_out_of_window_slots", free_one_early),
        ("unified-rust", "paged-hybrid", "free_swa_out_of_window_slots", free_one_early),
        ("unified-eagle", "paged-hybrid", "free_swa_out_of_window_slots", free_one_early),
    ]),
    *list_mistakes(f"{TREE}.unified_tree_core", "sglang-", [
        ("unified", "paged-full", "UnifiedTreeCore.inc_lock_ref", lock_once),
        ("unified-states", "paged-hybrid", "UnifiedTreeCore.inc_lock_ref", lock_once),
        ("unified-twins", "paged-full", "UnifiedTreeCore.match_prefix", match_less),
    ]),
    *list_mistakes(f"{MEM}.unified_radix_cache", "sglang-", [
        ("unified", "paged-full", "UnifiedRadixCache.dec_lock_ref", unlock_nothing),
    ]),
    *list_mistakes(f"{TREE}.components.swa", "sglang-", [
        ("unified", "paged-hybrid", "SWAComponent.create_match_validator", ignore_window),
    ]),
    *list_mistakes(f"{TREE}.components.mamba", "sglang-", [
        ("unified-states", "paged-hybrid",
         "MambaComponent.finalize_match_result_in_cache", lose_state),
    ]),
]  # fmt: skip


@each(MISTAKES)
def test_a_mistake_is_found(mistake: Mistake) -> None:
    """Only twins find a hit that is shorter than it could be."""
    check(mistake)


# --- divergences ------------------------------------------------------------------------


def ask(op: str, request: str = "a", **fields: Any) -> dict[str, Any]:
    return {"op": op, "request": request, **fields}


RUN = {"op": "run"}
DECODE = ask("schedule"), RUN, ask("accept", sampled=1)
WINDOW = {"type": "sliding", "block": 1, "width": 2, "layers": 1}
CONFIG = {"kind": "paged-sliding", "groups": [WINDOW]}


def test_a_window_that_slid_is_published_without_full_layers() -> None:
    """Not before it has slid, nor where the model keeps the prompt."""
    begun = ask("open", tokens=[1]), *DECODE, *DECODE, ask("schedule"), RUN
    slid = *begun, ask("accept", sampled=1), ask("schedule"), RUN, ask("free")
    radix, default = load("sglang-radix"), load("sglang-radix-default")
    assert get_signature(radix, CONFIG, *slid) is None
    assert get_signature(default, CONFIG, *begun, ask("free")) is None
    assert get_signature(default, CONFIG, *slid) == "paged-paged-sliding-free-references"
    assert get_signature(default, {**CONFIG, "prefix_cache": False}, *slid) is None


def test_its_slots_are_then_written_by_another_and_hit() -> None:
    """As is seen where the pool is not told."""
    default = load("sglang-radix-default")
    kinds = {"paged-sliding": default.contracts["paged"]["paged-sliding"]}
    peers = import_module("lockstep.impl.peers.sglang")
    untold = replace(default, contracts={"paged": peers.declare_untold(kinds)})
    slid = ask("open", tokens=[1]), *DECODE, *DECODE, *DECODE, *DECODE[:2], ask("free")
    other = ask("open", "b", tokens=[2, 2, 2]), ask("schedule", "b"), RUN
    again = ask("open", "c", tokens=[1, 1, 2]), ask("schedule", "c"), RUN
    config = {**CONFIG, "blocks": 3, "max_length": 4}  # six slots
    found = "paged-paged-sliding-run-contents"
    assert get_signature(untold, config, *slid, *other, ask("free", "b"), *again) == found
    assert get_signature(untold, config, *slid, *again) is None


def test_events_do_not_tell_an_extra_key() -> None:
    """So they are told of requests with a salt, and with another key not compared."""
    ops = ask("open", tokens=[1, 1], namespace="x"), ask("schedule", count=2), RUN
    declared = load("sglang-radix").contracts["paged"]["paged-full"]
    peers = import_module("lockstep.impl.peers.sglang")
    options = peers.Options(core=None)
    for salts, tells, found in (
        (True, declared.tells, None),
        (False, declared.tells, "paged-paged-full-accept-events"),
        (False, declared.tells - {"events"}, None),
    ):
        kinds = {"paged-full": replace(declared, tells=tells)}
        backend = peers._backend("radix", kinds, options._replace(salts=salts))
        done = get_signature(
            backend, {"kind": "paged-full"}, *ops, ask("accept", sampled=1)
        )
        assert done == found
