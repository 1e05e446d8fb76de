"""Validates the reports of a paged cache and converts them to the harness's types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from lockstep.harness.backends.paged import EVENTS, Entry, Pool, Ring, Table, Tables
from lockstep.harness.contracts.answers import read_list, read_object
from lockstep.harness.core.errors import Broken, format_plain


def read_tables(answer: Any, name: str, groups: int, stores: bool) -> Tables:
    """Returns the tables of a request, one table for each group.

    Args:
        answer: the backend's report.
        name: the name of the request.
        groups: the number of groups.
        stores: whether the backend stores K and V; otherwise the content of a ring is
            unknown.
    """
    return [
        read_table(item, name, stores) for item in read_list(answer, "tables", groups)
    ]


def read_table(answer: Any, name: str, stores: bool) -> Table:
    if isinstance(answer, Ring):
        if not stores:
            message = f'tables({name}) has a ring; that needs data "backend"'
            raise Broken("malformed", message)
        blocks = read_list(answer.blocks, "tables")
        require_blocks(f"tables({name})", blocks)
        return Ring(blocks)
    table = read_list(answer, "tables")
    for block in table:
        if block is not None and not isinstance(block, int):
            reject(f"tables({name})", block, "a block or None")
    return table


def read_copies(answer: Any, name: str) -> list[tuple[int, int]]:
    """Returns the (source, target) blocks to copy that the method `name` returned."""
    pairs = [read_list(item, name, 2) for item in read_list(answer, name)]
    for pair in pairs:
        require_blocks(name, pair)
    return [(source, target) for source, target in pairs]


def read_pool(answer: Any) -> Pool:
    """Returns the pool, without reference counts of blocks that no request holds."""
    read_object(answer, ("references", "free", "cached"), "pool", "a pool")
    if not isinstance(answer.references, Mapping):
        reject("the references of pool", answer.references, "counts by block")
    free, cached = (
        read_list(getattr(answer, item), "pool") for item in ("free", "cached")
    )
    pinned, idle = (
        tuple(read_list(getattr(answer, item, ()), "pool")) for item in ("pinned", "idle")
    )
    for blocks in (answer.references, free, cached, pinned, idle):
        require_blocks("pool", blocks)
    for count in answer.references.values():
        if not isinstance(count, int):
            reject("the references of pool", count, "a count")
    references = {block: count for block, count in answer.references.items() if count}
    return Pool(references, free, cached, pinned, idle)


def read_entries(answer: Any, groups: int, name: str = "entries") -> list[Entry]:
    return [read_entry(item, name, groups) for item in read_list(answer, name)]


def read_events(answer: Any, groups: int) -> list[tuple[str, Entry | None]]:
    events: list[tuple[str, Entry | None]] = []
    for name, answer_entry in (
        read_list(item, "events", 2) for item in read_list(answer, "events")
    ):
        if name not in EVENTS:
            reject("events", name, f"one of {', '.join(EVENTS)}")
        cleared = name == "cleared"
        if cleared and answer_entry is not None:
            reject('the event "cleared"', answer_entry, "None")
        events.append(
            (name, None if cleared else read_entry(answer_entry, "events", groups))
        )
    return events


def read_entry(answer: Any, name: str, groups: int) -> Entry:
    """Returns an entry with its tokens as a tuple; `groups` is the number of groups."""
    group, namespace, listed, block = read_list(answer, name, len(Entry._fields))
    tokens = tuple(read_list(listed, name))
    if not (isinstance(group, int) and 0 <= group < groups):
        reject(name, group, f"a group below {groups}")
    if not (namespace is None or isinstance(namespace, str)):
        reject(name, namespace, "a namespace or None")
    if {*map(type, tokens)} != {int}:
        reject(name, listed, "at least one token")
    if not isinstance(block, int):
        reject(name, block, "a block")
    return Entry(group, namespace, tokens, block)


def require_blocks(location: str, blocks: Iterable[Any]) -> None:
    for block in blocks:
        if not isinstance(block, int):
            reject(location, block, "a block")


def reject(location: str, value: Any, wanted: str) -> NoReturn:
    raise Broken("malformed", f"{location} has {format_plain(value)}, not {wanted}")
