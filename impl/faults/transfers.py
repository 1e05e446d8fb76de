"""Mistakes of block managers that copy blocks to other memory, and that save them."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.fault import mistake
from lockstep.impl.faults.paged import keep_keys
from lockstep.impl.shared.paged import find
from lockstep.impl.shared.paged_groups import StateGroup
from lockstep.impl.shared.prefix_hash import PrefixHash


def leave_out(cache: Any, name: str, leaves: bool) -> None:
    """Lets transfers in one direction hold no blocks of the device, or the host."""
    for method in (f"hold_{name}", f"release_{name}"):
        right = getattr(cache, method)

        def skip(one: Any, right: Any = right) -> None:
            if one.leaves != leaves:
                right(one)

        setattr(cache, method, skip)


@mistake("paged-full", 10)
def paged_load_frees_targets(cache: Any) -> None:
    """A request that ends gives its blocks back while they are still being loaded."""
    leave_out(cache, "device", False)


@mistake("paged-full", 5)
def paged_offload_reads_late(cache: Any) -> None:
    """An offload reads blocks that were evicted and written over meanwhile."""
    leave_out(cache, "device", True)


@mistake("paged-full", 9)
def paged_load_loses_sources(cache: Any) -> None:
    """Blocks of the host are given out while a load reads them."""
    leave_out(cache, "host", False)


@mistake("paged-full", 9)
def paged_hit_before_landed(cache: Any) -> None:
    """What is being loaded can be hit before it is there."""
    load = cache.load

    def load_early(request: str, transfer: str) -> Any:
        begun = load(request, transfer)
        if begun is not None:
            one = cache.requests[request]
            for group, table in zip(cache.groups, one.tables, strict=True):
                group.publish(one.hash.keys, table, 0, one.awaited)
        return begun

    cache.load = load_early


@mistake("paged-full", 5)
def paged_failed_load_kept(cache: Any) -> None:
    """A load that failed counts as one that has landed."""

    def end_well(name: str, arrived: int) -> int:
        kept: int = cache.end(name, None)
        return kept

    cache.failed = end_well


@mistake("paged-full", 5)
def paged_failed_offload_kept(cache: Any) -> None:
    """Of an offload that failed, blocks that were never written can be loaded."""
    publish = cache.publish
    cache.publish = lambda over, pairs: publish(over, over.pairs)


@mistake("paged-full", 9)
def paged_host_entry_kept(cache: Any) -> None:
    """A block of the host that is used for something else keeps its keys."""
    keep_keys(cache.host)


@mistake("paged-full", 8)
def paged_withdrawn_on_host(cache: Any) -> None:
    """What nobody may reuse is loaded from the host."""
    withdraw, forget = cache.withdraw, cache.host.forget

    def withdraw_here(one: Any) -> None:
        cache.host.forget = lambda block: None
        withdraw(one)
        cache.host.forget = forget

    cache.withdraw = withdraw_here


@mistake("paged-state", 3, "vLLM#53505")
def paged_connector_boundary(cache: Any) -> None:
    """A load that finds nothing moves the hit to where a block ends, state or not."""
    load, find_hit = cache.load, cache.find_hit
    asked: list[Any] = []

    def note(request: str, transfer: str) -> Any:
        begun = load(request, transfer)
        if begun is None:
            asked.append(cache.requests[request])
        return begun

    def find_beyond(groups: Any, one: Any) -> int:
        hit: int = find_hit(groups, one)
        if not any(one is other for other in asked):
            return hit
        others = [group for group in groups if not isinstance(group, StateGroup)]
        most = (len(one.tokens) - 1) // cache.unit * cache.unit
        return find(others, one.hash.keys, most)

    cache.load, cache.find_hit = note, find_beyond


@mistake("paged-full", 6)
def paged_restore_namespace(cache: Any) -> None:
    """What is restored can be hit in any namespace."""
    restore = cache.restore

    def restore_for_all(saved: Any) -> None:
        restore(saved)
        for pool in (cache.blocks, cache.host):
            for group, entries in enumerate(pool.entries):
                for key, block in list(entries.items()):
                    tokens = cache.prefixes[key][1]
                    other = PrefixHash(cache.unit, None).extend(tokens)[-1]
                    cache.prefixes[other] = None, tokens
                    pool.publish(group, other, block, pool.filled[block])

    cache.restore = restore_for_all
