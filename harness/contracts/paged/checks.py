"""Checks the invariants of a block manager after every operation, if it reports them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lockstep.harness.backends.paged import Entry, Pool, Ring, Table, Tables
from lockstep.harness.contracts.operation import Config
from lockstep.harness.contracts.paged.model import PagedModel
from lockstep.harness.core.errors import Broken
from lockstep.reference.paged import Request

Slot = tuple[int, int]
"""(block, index in the block). A state takes the whole block, with index 0."""


class Place(NamedTuple):
    """The content that a slot must hold.

    Attributes:
        group: the number of the group.
        position: the position, or for a state the position of the last token it has read.
        tag: the tag of the content.
    """

    group: int
    position: int
    tag: int


def locate(config: Config, table: Table, group: int, position: int) -> Slot | None:
    """Returns the slot of a position in a group's table; None if missing or unknown."""
    if isinstance(table, Ring):
        return None
    settings = config["groups"][group]
    number = position // settings["block"]
    block = table[number] if number < len(table) else None
    if block is None:
        return None
    return block, 0 if settings["type"] == "state" else position % settings["block"]


def list_places(model: PagedModel, request: Request, end: int) -> Iterator[Place]:
    """Lists what the slots of a request hold that its next token needs, and behind that
    all up to `end`: what is computed, or the end of the step."""
    for number, group in enumerate(model.cache.groups):
        block = model.config["groups"][number]["block"]
        if group.type == "state":
            ends = list_ends(request.computed, end, block)
            positions = [stop - 1 for stop in ends]
        else:
            positions = list(range(group.first(request.computed), end))
        for position in positions:
            yield Place(number, position, model.get_tag(request, position))


def list_ends(start: int, end: int, block: int) -> list[int]:
    """Lists after how many tokens there may be a state: at the end of a step, and inside
    of it where a block ends. Without a step, after those that are computed."""
    inside = range(start // block * block + block, end, block)
    return [*inside, end] if end else []


# --- tables -----------------------------------------------------------------------------


def list_blocks(table: Table) -> list[int]:
    """Lists the blocks in the table of one group of a request."""
    entries = table.blocks if isinstance(table, Ring) else table
    return [block for block in entries if block is not None]


def check_tables(model: PagedModel, tables: Mapping[str, Tables]) -> None:
    """Raises Broken if a table lists a block twice, or a shared slot has two contents."""
    users: dict[Slot, tuple[str, Place]] = {}
    for name, request in model.cache.requests.items():
        if not request.is_held:
            continue
        for number, table in enumerate(tables[name]):
            check_twice(name, number, table)
        for need in list_places(model, request, request.end):
            table = tables[name][need.group]
            slot = locate(model.config, table, need.group, need.position)
            if slot is None:
                continue
            sharer, noted = users.setdefault(slot, (name, need))
            if noted != need:
                raise Broken(
                    "table",
                    f"block {slot[0]} is position {need.position} of request {name}"
                    f" (group {need.group}), and at once position {noted.position} of"
                    f" {sharer} (group {noted.group}), with other contents",
                )


def check_twice(name: str, group: int, table: Table) -> None:
    counted = Counter(list_blocks(table))
    for block, times in counted.items():
        if times > 1:
            raise Broken(
                "table",
                f"the table of request {name}, group {group}, has block {block}"
                f" {times} times: {list(table)}",
            )


def check_contents(
    model: PagedModel, name: str, tables: Tables, memory: Mapping[Slot, Any]
) -> None:
    """Raises Broken if content is missing that the next token of a request needs.

    Args:
        model: the reference.
        name: the name of the request.
        tables: the tables of the request.
        memory: slot → (group, tag).
    """
    request = model.cache.requests[name]
    for need in list_places(model, request, request.computed):
        table = tables[need.group]
        if isinstance(table, Ring):
            continue
        slot = locate(model.config, table, need.group, need.position)
        content = None if slot is None else memory.get(slot)
        if content != (need.group, need.tag):
            text = "has no slot" if slot is None else f"is {name_content(content)}"
            raise Broken(
                "contents",
                f"position {need.position} of request {name}, group {need.group},"
                f" {text}, not token {need.tag}",
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
                f"block {block} has {pool.references.get(block, 0)} references, and"
                f" {holders_of[block]} {holders} hold it",
            )
    for block, times in Counter([*pool.free, *pool.cached]).items():
        if times > 1:
            raise Broken("references", f"block {block} is free {times} times")
        if block in holders_of:
            raise Broken("references", f"block {block} is free, and a table holds it")
    total = len(holders_of) + len(pool.free) + len(pool.cached)
    if total != capacity:
        raise Broken(
            "references",
            f"{len(holders_of)} blocks are held, {len(pool.free)} are free and"
            f" {len(pool.cached)} can be hit: {total} of {capacity}",
        )


# --- room -------------------------------------------------------------------------------


def check_evicted(evicted: Any, pool: Pool) -> None:
    """Raises Broken if more blocks were evicted than could be evicted.

    Args:
        evicted: the backend's answer.
        pool: the pool before the operation.
    """
    if isinstance(evicted, int) and evicted > len(pool.cached):
        message = (
            f"evicted {evicted} blocks, but {len(pool.cached)} could be hit, and were"
        )
        raise Broken("result", f"{message} held by no request")


def check_refusal(
    model: PagedModel,
    name: str,
    end: int,
    tables: Tables | None,
    pool: Pool,
    reserved: int = 0,
) -> None:
    """Raises Broken if a request got no slots although there were enough blocks.

    Nothing is checked with several groups, because a block of one group may be unusable
    for another group. Nothing is checked either if the requests of a step together read
    more tokens than all blocks hold, where a shared token counts once per request: a step
    may limit the number of reads.

    Args:
        model: the reference.
        name: the name of the request.
        end: the largest position at which its step may end.
        tables: the tables of the request, if it holds slots.
        pool: the pool before the operation.
        reserved: the number of blocks, in addition to the config's blocks, that the
            backend may keep for drafts.
    """
    if len(model.cache.groups) > 1:
        return
    request, [group] = model.cache.requests[name], model.config["groups"]
    start = request.computed if request.is_held else 0
    needed = model.count_blocks(name, start, end)
    reads = end + sum(
        model.cache.requests[scheduled].end for scheduled in model.cache.step
    )
    if reads > model.config["blocks"] * group["block"]:
        return
    if (
        tables is not None
        and group["type"] != "state"
        and not isinstance(tables[0], Ring)
    ):
        first = model.cache.groups[0].first(start) // group["block"]
        written = start // group["block"]
        needed -= sum(
            block is not None and (index < written or pool.references[block] == 1)
            for index, block in enumerate(tables[0])
            if index >= first  # what others hold as well is copied before it is written
        )
    idle = len(pool.free) + len(pool.cached)
    if needed <= idle - reserved:
        raise Broken(
            "result",
            f"request {name} got no slots: it needs {needed} blocks at most, and {idle}"
            " were held by no request",
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
                f"block {block}{memory} may be given out, and transfer {busy[block]}"
                " still needs it",
            )


# --- entries ----------------------------------------------------------------------------


def check_entries(
    model: PagedModel,
    entries: Sequence[Entry],
    memory: Mapping[Slot, Any],
    tables: Mapping[str, Tables] | None = None,
) -> None:
    """Raises Broken if an entry names a block with other content than the entry's tokens.

    Content that the current step is about to write counts as present.

    Args:
        model: the reference.
        entries: the entries that the backend reports.
        memory: slot → (group, tag).
        tables: request → its tables, for requests that hold slots in this memory.
    """
    coming = set(list_coming(model, tables)) if tables else set()
    for entry in entries:
        settings = model.config["groups"][entry.group]
        block, tokens = settings["block"], tuple(entry.tokens)
        end = len(tokens)
        is_state = settings["type"] == "state"
        first = end - 1 if is_state else (end - 1) // block * block
        for position in range(first, end):
            content = entry.namespace, tokens[: position + 1]
            tag = model.tags.get(content)
            slot = entry.block, 0 if is_state else position % block
            counted = entry.group, tag
            if memory.get(slot) == counted or (slot, counted) in coming:
                continue
            raise Broken(
                "hash",
                f"the entry of {end} tokens {list(tokens)} (namespace {entry.namespace},"
                f" group {entry.group}) names block {entry.block}, which holds"
                f" {name_content(memory.get(slot))} in place of token {tag} at position"
                f" {position}",
            )


def list_coming(
    model: PagedModel, tables: Mapping[str, Tables]
) -> Iterator[tuple[Slot, tuple[int, int]]]:
    """Yields (slot, (group, tag)) for each slot that the current step writes."""
    for name in model.cache.step:
        request = model.cache.requests[name]
        for need in list_places(model, request, request.end):
            table = tables[name][need.group]
            slot = locate(model.config, table, need.group, need.position)
            if slot is not None and need.position >= request.computed:
                yield slot, (need.group, need.tag)


def name_content(content: Any) -> str:
    """Describes the content of a slot."""
    if content is None:
        return "nothing"
    return str(content) if isinstance(content, str) else f"token {content[1]}"


# --- events -----------------------------------------------------------------------------


class EventBook:
    """The entries that result from all events so far."""

    def __init__(self) -> None:
        self.entries: Counter[tuple[int, str | None, tuple[int, ...]]] = Counter()

    def follow(self, events: Sequence[tuple[str, Entry | None]]) -> None:
        for name, entry in events:
            if entry is None:
                self.entries.clear()
                continue
            key = entry.group, entry.namespace, tuple(entry.tokens)
            self.entries[key] += 1 if name == "stored" else -1

    def check(self, entries: Sequence[Entry]) -> None:
        """Raises Broken if the reported entries differ from the events' entries."""
        real = Counter(
            (entry.group, entry.namespace, tuple(entry.tokens)) for entry in entries
        )
        counted = Counter({key: count for key, count in self.entries.items() if count})
        if counted == real:
            return
        [key, *_] = [
            entry for entry in {*counted, *real} if counted[entry] != real[entry]
        ]
        raise Broken(
            "events",
            f"by its events {counted[key]} blocks can be hit for the tokens"
            f" {list(key[2])} (namespace {key[1]}, group {key[0]}), but there are"
            f" {real[key]}",
        )
