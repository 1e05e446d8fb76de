"""Checks the invariants of a block manager after every operation, if it reports them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lockstep.harness.backends.paged import Entry, Pool, Ring, Table, Tables
from lockstep.harness.contracts.answers import read_index
from lockstep.harness.contracts.paged.base import list_tokens, uncover
from lockstep.harness.contracts.paged.contents import (
    Held,
    Memory,
    Need,
    Slot,
    Transfer,
    list_slots,
    locate,
    name_rank,
)
from lockstep.harness.contracts.paged.model import PagedModel, name_group
from lockstep.harness.core.errors import Broken
from lockstep.reference.paged import Content, Request, Space, Weights, cover

TAKEN = "; if `schedule` took them for another request, declare `preempts`, and name it"
"""The end of a message about slots that are missing."""

# --- tables -----------------------------------------------------------------------------


def list_blocks(table: Table) -> list[int]:
    """Lists the blocks in the table of one group of a request."""
    entries = table.blocks if isinstance(table, Ring) else table
    return [block for block in entries if block is not None]


def check_tables(model: PagedModel, tables: Mapping[str, Tables]) -> None:
    """Raises Broken if a table lists a block twice, or a shared slot has two contents."""
    users: dict[Slot, tuple[str, Need]] = {}
    for name, request in model.cache.requests.items():
        if not request.is_held:
            continue
        for group, table in enumerate(tables[name]):
            for block, times in Counter(list_blocks(table)).items():
                if times > 1:
                    raise Broken(
                        "table",
                        f"the table of request {name}, group {group}, has block {block}"
                        f" {times} times: {list(table)}",
                    )
        for slot, need in list_slots(model, name, tables[name], request.end):
            if slot is None:
                continue
            sharer, noted = users.setdefault(slot, (name, need))
            if noted != need:
                raise Broken(
                    "table",
                    f"block {slot[0]} is position {need.position} of request {name}"
                    f" (group {need.group}), but also position {noted.position} of"
                    f" {sharer} (group {noted.group}), with other contents",
                )


def check_contents(model: PagedModel, name: str, tables: Tables, memory: Memory) -> None:
    """Raises Broken if content is missing that the next token of a request needs.

    Args:
        model: the reference.
        name: the name of the request.
        tables: the tables of the request.
        memory: the contents of device blocks, once the launched steps have finished.
    """
    begun = model.cache.requests[name].begun
    for slot, need in list_slots(model, name, tables, begun):
        content = memory.get(slot) if slot else None
        if content != need.held:
            rank = name_rank(model.config, slot) if slot else ""
            named = f"is {name_content(content, need.weights)}{rank}"
            text = named if slot else "has no slot"
            hint = "" if any(map(list_blocks, tables)) else TAKEN
            raise Broken(
                "contents",
                f"position {need.position} of request {name}, group {need.group},"
                f" {text}, not token {need.tag}{hint}",
            )


def name_content(content: Held | None, weights: Weights) -> str:
    """Describes the content of a slot, and whether it depends on other weights than
    `weights`."""
    if content is None:
        return "nothing"
    return f"token {content[1]}{' of other weights' * (content[2] != weights)}"


def check_complete(
    name: str,
    slots: Iterable[tuple[Slot | None, Need]],
    blocks: Collection[int],
    had: Collection[Need],
) -> None:
    """Raises Broken if another cache does not get a content that it needs.

    Args:
        name: the name of the request.
        slots: the slot of each content that the other cache needs.
        blocks: the blocks that are sent.
        had: the contents that have been sent before.
    """
    for slot, need in slots:
        if (slot is None or slot[0] not in blocks) and need not in had:
            where = "it has no slot" if slot is None else f"it is in block {slot[0]}"
            raise Broken(
                "transfer",
                f"send lists the blocks {list(blocks)}, but position {need.position} of"
                f" request {name}, group {need.group}, is not sent: {where}",
            )


def check_sent(
    name: str, transfer: Transfer, contents: Iterable[tuple[Slot, Need]]
) -> None:
    """Raises Broken if another cache got a wrong content in the transfer `name`.

    `contents` has each content that was to be sent, and its slot.
    """
    assert transfer.remote is not None
    for slot, need in contents:
        got = transfer.remote.get(slot)
        if got != need.held:
            content = name_content(got, need.weights)
            raise Broken(
                "transfer",
                f"transfer {name} sent {content} as position {need.position} of group"
                f" {need.group} (block {slot[0]}), not token {need.tag}",
            )


# --- references -------------------------------------------------------------------------


def check_pool(tables: Mapping[str, Tables], pool: Pool, capacity: int) -> None:
    """Raises Broken if reference counts do not match the tables, or if blocks are lost.

    Args:
        tables: request → its tables, for requests that hold slots.
        pool: the pool that the backend reports.
        capacity: the initial number of blocks.
    """
    holders_of = Counter(
        block
        for groups in tables.values()
        for table in groups
        for block in list_blocks(table)
    )
    holders_of.update(pool.pinned)
    holders = "tables and copies" if pool.pinned else "tables"
    for block in sorted({*holders_of, *pool.references}):
        if pool.references.get(block, 0) != holders_of[block]:
            raise Broken(
                "references",
                f"block {block} has {pool.references.get(block, 0)} references, but"
                f" {holders_of[block]} {holders} hold it",
            )
    for block, times in Counter([*pool.free, *pool.cached]).items():
        if times > 1:
            raise Broken("references", f"block {block} is free {times} times")
        if block in holders_of:
            raise Broken("references", f"block {block} is free, but a table holds it")
    total = len(holders_of) + len(pool.free) + len(pool.cached)
    if total != capacity:
        raise Broken(
            "references",
            f"{len(holders_of)} blocks are held, {len(pool.free)} are free and"
            f" {len(pool.cached)} can be hit: {total} in total, but there are"
            f" {capacity}",
        )


def check_host(idle: Sequence[int], busy: Mapping[int, str], capacity: int) -> None:
    """Raises Broken if blocks of other memory are lost, or free while in use.

    Args:
        idle: the blocks of other memory that the backend reports as idle.
        busy: block of other memory → the name of the transfer that uses it.
        capacity: the initial number of idle blocks; 0 if they are not reported.
    """
    check_busy(idle, busy, " of other memory")
    total = len(idle) + len(busy)
    if capacity and total != capacity:
        raise Broken(
            "references",
            f"{len(idle)} blocks of other memory are free or can be evicted, and"
            f" transfers use {len(busy)}: {total} in total, but there are {capacity}",
        )


def check_pinned(pinned: Iterable[int], needed: Collection[int]) -> None:
    """Raises Broken if a block is pinned that no running transfer needs.

    Args:
        pinned: the blocks that the backend reports as pinned while no step is planned or
            unfinished.
        needed: the blocks that a backend may pin for running transfers.
    """
    for block in pinned:
        if block not in needed:
            raise Broken(
                "references",
                f"block {block} is pinned, but no running transfer or step needs it",
            )


def check_busy(blocks: Iterable[int], busy: Mapping[int, str], memory: str) -> None:
    """Raises Broken if a free block is still read or written by a transfer.

    Args:
        blocks: the blocks that the backend may give out.
        busy: block → the name of the transfer that uses it.
        memory: the name of the memory that contains the blocks.
    """
    for block in blocks:
        if block in busy:
            raise Broken(
                "references",
                f"block {block}{memory} is available, but transfer {busy[block]} still"
                " needs it",
            )


# --- room -------------------------------------------------------------------------------


def check_refusal(
    model: PagedModel,
    name: str,
    end: int,
    tables: Tables | None,
    pool: Pool,
    reserved: int = 0,
    got: str = "got no slots",
) -> None:
    """Raises Broken if a request got no slots, or took those of other requests, although
    there were enough blocks.

    Nothing is checked with several groups, because a block of one group may be unusable
    for another group. Nothing is checked either if the requests of a step read more
    tokens in total than fit into all blocks, because a step may limit the number of
    reads. A shared token counts once for each request.

    Args:
        model: the reference.
        name: the name of the request.
        end: the largest position at which its step may end.
        tables: the tables of the request, if it holds slots.
        pool: the pool before the operation.
        reserved: the number of blocks, in addition to the config's blocks, that the
            backend may keep for drafts.
        got: what the request got, for the message.
    """
    if len(model.cache.groups) > 1:
        return
    request, [settings] = model.cache.requests[name], model.config["groups"]
    reads = end + sum(model.cache.requests[other].end for other in model.cache.step)
    if reads > model.config["blocks"] * settings["block"]:
        return
    start = request.begun
    needed = model.count_blocks(name, start, end)
    if tables and settings["type"] != "state" and not isinstance(tables[0], Ring):
        first = model.cache.groups[0].first(start) // settings["block"]
        written = start // settings["block"]
        needed -= sum(
            block is not None and (index < written or pool.references[block] == 1)
            for index, block in enumerate(tables[0])
            if index >= first  # a block with other holders is copied before the write
        )
    idle = len(pool.free) + len(pool.cached)
    if needed <= idle - reserved:
        hint = "; if it takes blocks for the whole prompt or the output, declare `admits`"
        hint = hint if model.config["admits"] == "chunk" else ""
        raise Broken(
            "result",
            f"request {name} {got}, although it needs at most {needed} blocks,"
            f" and {idle} were held by no request{hint}",
        )


# --- entries ----------------------------------------------------------------------------


Prefix = tuple[int, Content]
"""The group and the content of an entry."""


def get_prefix(entry: Entry) -> Prefix:
    """Returns the prefix of an entry. Raises ValueError for extras that are not valid."""
    inputs = tuple(cover(entry.tokens, entry.extras))
    return entry.group, (Space(entry.namespace, entry.adapter), inputs)


def describe_prefix(prefix: Prefix) -> str:
    """Formats a prefix: "the tokens [1, 2] (namespace None, group 0)"."""
    group, (space, inputs) = prefix
    adapter = f", adapter {space.adapter}" if space.adapter else ""
    extras = uncover(inputs)
    covered = f", extras {extras}" if extras else ""
    return (
        f"the tokens {list_tokens(inputs)} (namespace {space.namespace}{adapter}"
        f"{covered}, group {group})"
    )


def check_entries(
    model: PagedModel,
    entries: Sequence[Entry],
    memory: Memory,
    tables: Mapping[str, Tables],
) -> None:
    """Raises Broken if an entry names a block with other content than the entry's tokens.

    Content that the current step is about to write counts as present.

    Args:
        model: the reference.
        entries: the entries that the backend reports.
        memory: the contents of the blocks; on the device, once the launched steps have
            finished.
        tables: request → its tables, for requests that hold slots in this memory.
    """
    coming = {
        (slot, need.held)
        for name, request in model.cache.requests.items()
        if name in tables and name in model.cache.step
        for slot, need in list_slots(model, name, tables[name], request.end)
        if need.position >= request.begun
    }
    weights = (0,) * model.cache.changes  # of content that may be hit
    for entry in entries:
        settings = model.config["groups"][entry.group]
        prefix = get_prefix(entry)
        block, (space, inputs) = settings["block"], prefix[1]
        end = len(inputs)
        is_state = settings["type"] == "state"
        first = end - 1 if is_state else (end - 1) // block * block
        table = [entry.block] * -(-end // block)
        for position in range(first, end):
            wanted = entry.group, model.tags.get((space, inputs[: position + 1])), weights
            for slot in locate(model.config, table, entry.group, position, end):
                content = memory.get(slot)
                if content != wanted and (slot, wanted) not in coming:
                    raise Broken(
                        "hash",
                        f"the entry of {describe_prefix(prefix)} names block"
                        f" {entry.block}, which holds {name_content(content, weights)} in"
                        f" place of token {wanted[1]} at position {position}"
                        f"{name_rank(model.config, slot)}",
                    )


def follow_events(
    counted: Counter[Prefix], events: Iterable[tuple[str, Entry | None]]
) -> None:
    """Updates `counted`, the number of entries of each prefix, by these events."""
    for name, entry in events:
        if entry is None:
            counted.clear()
        else:
            counted[get_prefix(entry)] += 1 if name == "stored" else -1


def check_events(events: Counter[Prefix], entries: Sequence[Entry]) -> None:
    """Raises Broken if the reported entries differ from the events' entries.

    Args:
        events: the number of entries of each prefix that result from all events so far.
        entries: the entries that the backend reports.
    """
    listed = Counter(map(get_prefix, entries))
    for prefix in {*events, *listed}:
        if events[prefix] != listed[prefix]:
            raise Broken(
                "events",
                f"according to the events, {events[prefix]} blocks can be hit for"
                f" {describe_prefix(prefix)}, but there are {listed[prefix]}",
            )


# --- reuse ------------------------------------------------------------------------------


def find_longest(model: PagedModel, request: Request, entries: Sequence[Entry]) -> int:
    """Returns the longest hit that these entries allow for a waiting request."""
    if not model.cache.prefix_cache:
        return 0
    prefixes = set(map(get_prefix, entries))
    most = len(request.tokens) - 1
    hits = range(most - most % model.unit, 0, -model.unit)
    covered = [hit for hit in hits if covers(model, request, hit, prefixes)]
    last = covered[0] - model.cache.dropped if covered else 0
    return max((hit for hit in covered if hit <= last), default=0)


def covers(model: PagedModel, request: Request, hit: int, prefixes: set[Prefix]) -> bool:
    """Tells whether each block that a request holds after a hit has an entry.

    For a block that the hit fills partly, the entry must cover the filled tokens.
    """
    for number, group in enumerate(model.cache.groups):
        block = model.config["groups"][number]["block"]
        first = max(0, hit - 1) if group.type == "state" else group.first(hit)
        for begin in range(first // block * block, hit, block):
            end = min(hit, begin + block)
            if (number, request.get_content(end - 1)) not in prefixes:
                return False
    return True


def check_longest(answer: Mapping[str, Any], name: str, longest: int) -> None:
    """Raises Broken if a request's hit is shorter than the longest possible hit."""
    hit = read_index(answer.get("start", answer.get("hit")))
    if hit is not None and hit < longest:
        raise Broken(
            "reuse",
            f"request {name} reuses only {hit} tokens, although there are entries for"
            f" {longest}",
        )


def check_published(
    model: PagedModel, settled: Sequence[tuple[str, int, int]], entries: Sequence[Entry]
) -> None:
    """Raises Broken if tokens that have just become known and computed cannot be hit.

    Args:
        model: the reference, after the operation.
        settled: (request, begin, end) of these tokens. Drafts of the step are excluded,
            because it is not yet known whether they are kept.
        entries: the entries after the operation.
    """
    prefixes = set(map(get_prefix, entries))
    for name, begin, end in settled if model.cache.prefix_cache else ():
        request = model.cache.requests[name]
        for group, stop in list_published(model, request, begin, end):
            if (group, request.get_content(stop - 1)) not in prefixes:
                raise Broken(
                    "reuse",
                    f"request {name} has computed {end} tokens, but there is no entry"
                    f" for its first {stop} in {name_group(model.config, group)}",
                )


def may_publish(model: PagedModel, settled: Sequence[tuple[str, int, int]]) -> bool:
    """Returns whether tokens that have just become known and computed can be hit; see
    `check_published`."""
    requests = model.cache.requests
    return model.cache.prefix_cache and any(
        any(list_published(model, requests[name], begin, end))
        for name, begin, end in settled
    )


def list_published(
    model: PagedModel, request: Request, begin: int, end: int
) -> Iterator[tuple[int, int]]:
    """Yields (group, end) of each prefix that can be hit when [begin, end) are computed,
    without drafts; none if the request is stale.

    For a group with K and V, a prefix ends after each unit that the group still needs.
    For a state group, it ends at the last end of a block.
    """
    end = min(end, len(request.tokens)) if not request.is_stale else 0
    for number, group in enumerate(model.cache.groups):
        block = model.config["groups"][number]["block"]
        if group.type == "state":
            last = end - end % block
            yield from [(number, last)] if last > begin else []
        else:
            valid = request.count_valid(group, end)
            for stop in range(begin - begin % model.unit, valid + 1, model.unit):
                if stop > max(begin, group.first(end)):
                    yield number, stop


def check_kept(lost: Collection[Prefix], pool: Pool) -> None:
    """Raises Broken if prefixes can no longer be hit although blocks are free.

    Args:
        lost: the prefixes that had entries before an operation, and have none after it.
        pool: the pool after the operation.
    """
    if lost and pool.free:
        shortest = min(lost, key=lambda prefix: len(prefix[1][1]))
        raise Broken(
            "reuse",
            f"the entry of {describe_prefix(shortest)} is gone, and {len(pool.free)}"
            " blocks are still free; an entry may go only if no block is free",
        )


def check_empty(entries: Sequence[Entry], memory: str = "") -> None:
    """Raises Broken if there are entries after a reset."""
    if entries:
        raise Broken(
            "hash",
            f"after the reset there are {len(entries)} entries{memory}, the first of the"
            f" tokens {list(entries[0].tokens)}",
        )


def check_landed(
    model: PagedModel, blocks: Sequence[int], memory: Memory, entries: Sequence[Entry]
) -> None:
    """Raises Broken if content has landed in host memory but cannot be loaded.

    Args:
        model: the reference, after the operation.
        blocks: the host blocks that the transfer has written; they are full.
        memory: the contents of host blocks.
        entries: the host entries after the operation.
    """
    prefixes = map(get_prefix, entries)
    listed = {(group, model.tags.get(content)) for group, content in prefixes}
    for block in blocks:
        if (block, 0) not in memory:  # the source was empty
            continue
        group = memory[block, 0][0]
        size = model.config["groups"][group]["block"]
        [slot, *_] = locate(model.config, [block], group, size - 1, size)
        last = memory.get(slot)
        if last is not None and last[:2] not in listed:
            raise Broken(
                "reuse",
                f"block {block} of other memory has landed, with token {last[1]} of"
                f" {name_group(model.config, group)} at its end, but no entry names it",
            )
