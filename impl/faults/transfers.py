"""Mistakes of block managers that copy blocks to other memory, and that save them."""

from __future__ import annotations

from typing import Any

from lockstep.impl.faults.fault import edit, mistake
from lockstep.impl.faults.paged import keep_keys
from lockstep.impl.shared.paged import find
from lockstep.impl.shared.paged_groups import StateGroup
from lockstep.impl.shared.prefix_hash import PrefixHash


@mistake("paged-full", 10)
def paged_load_frees_targets(cache: Any) -> None:
    """A request that ends frees its blocks while they are still being loaded."""
    for method in ("hold_device", "release_device"):
        correct = getattr(cache, method)

        def skip(transfer: Any, correct: Any = correct) -> None:
            if transfer.leaves:
                correct(transfer)

        setattr(cache, method, skip)


@mistake("paged-full", 10, "vLLM#46283")
def paged_failed_load_lost(cache: Any) -> None:
    """A load that fails after its request has ended never gives its blocks back."""
    failed, release = cache.failed, cache.release_device

    def fail(transfer: str, arrived: int) -> int:
        over = cache.transfers.get(transfer)
        if over and not over.leaves and over.request.transfer != transfer:
            cache.release_device = lambda over: None
        kept: int = failed(transfer, arrived)
        cache.release_device = release
        return kept

    cache.failed = fail


@mistake("paged-full", 9)
def paged_host_entry_kept(cache: Any) -> None:
    """A block of the host that is reused keeps its old keys."""
    keep_keys(cache.host)


@mistake("paged-full", 8)
def paged_withdrawn_on_host(cache: Any) -> None:
    """Blocks that may not be reused are loaded from the host."""
    withdraw, forget = cache.withdraw, cache.host.forget

    def withdraw_here(request: Any) -> None:
        cache.host.forget = lambda block: None
        withdraw(request)
        cache.host.forget = forget

    cache.withdraw = withdraw_here


@mistake("paged-full", 6)
def paged_older_on_host(cache: Any) -> None:
    """When the weights change, the host keeps older prefixes."""
    cache.host.forget_all = lambda: None


@mistake("paged-full", 6)
def paged_older_lands(cache: Any) -> None:
    """Blocks that land on the host after a change of the weights can be hit, although
    they were computed with older weights."""
    edit(cache, "update_weights", "under_way.end = 0", "pass")


@mistake("paged-state", 3, "vLLM#53505")
def paged_connector_boundary(cache: Any) -> None:
    """After a `load` that finds nothing to copy, the hit of the request may end where no
    state is stored."""
    load, find_hit = cache.load, cache.find_hit
    requests: list[Any] = []

    def note(name: str, transfer: str) -> Any:
        begun = load(name, transfer)
        if begun is None:
            requests.append(cache.requests[name])
        return begun

    def find_beyond(groups: Any, request: Any) -> int:
        hit: int = find_hit(groups, request)
        if not any(request is waiting for waiting in requests):
            return hit
        groups_with_tokens = [
            group for group in groups if not isinstance(group, StateGroup)
        ]
        most = (len(request.tokens) - 1) // cache.unit * cache.unit
        return find(groups_with_tokens, request.hash.keys, most)

    cache.load, cache.find_hit = note, find_beyond


@mistake("paged-full", 6)
def paged_restore_namespace(cache: Any) -> None:
    """Restored prefixes can be hit in every namespace."""
    restore = cache.restore

    def restore_for_all(saved: Any) -> None:
        restore(saved)
        for pool in (cache.blocks, cache.host):
            for group, entries in enumerate(pool.entries):
                for key, block in list(entries.items()):
                    entry = cache.prefixes[key]._replace(namespace=None)
                    names = None, entry.adapter
                    prefix_hash = PrefixHash(cache.unit, names, entry.extras)
                    open_key = prefix_hash.extend(entry.tokens)[-1]
                    cache.prefixes[open_key] = entry
                    pool.publish(group, open_key, block, pool.filled[block])

    cache.restore = restore_for_all


# --- other caches -----------------------------------------------------------------------


@mistake("paged-full", 7, "SGLang PR#33309")
def paged_rest_never_sent(cache: Any) -> None:
    """Once a request has sent a part of its tokens, the other tokens count as sent."""
    send = cache.send

    def send_once(request: str, transfer: str) -> Any:
        has_sent = request in cache.requests and cache.requests[request].sent
        blocks = send(request, transfer)
        return [] if has_sent else blocks

    cache.send = send_once


@mistake("paged-full", 7)
def paged_failed_send_forgotten(cache: Any) -> None:
    """Blocks that were lost in a failed transfer to another cache are never sent
    again."""
    end = cache.end

    def end_and_keep(name: str, arrived: Any) -> Any:
        request = cache.transfers[name].request if name in cache.transfers else None
        sent = 0 if request is None else request.sent
        kept = end(name, arrived)
        if request is not None:
            request.sent = sent
        return kept

    cache.end = end_and_keep


@mistake("paged-full", 5)
def paged_sender_frees(cache: Any) -> None:
    """A request that ends frees its blocks while another cache still reads them."""
    for method in ("hold_device", "release_device"):
        correct = getattr(cache, method)

        def skip(transfer: Any, correct: Any = correct) -> None:
            if not (transfer.is_remote and transfer.leaves):
                correct(transfer)

        setattr(cache, method, skip)


@mistake("paged-full", 4)
def paged_received_early(cache: Any) -> None:
    """What another cache sends can be hit before it has arrived."""
    receive = cache.receive

    def publish(request: str, transfer: str, end: int) -> Any:
        received = receive(request, transfer, end)
        waiting = cache.requests[request]
        if received is not None:
            waiting.set_computed(end)
            cache.settle(waiting)
            waiting.set_computed(0)
        return received

    cache.receive = publish
