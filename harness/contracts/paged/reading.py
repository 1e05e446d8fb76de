"""Reads a paged cache's reports, rejects malformed reports, and formats its tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, NoReturn

from lockstep.harness.backends.paged import EVENTS, Entry, Pool, Ring, Table, Tables
from lockstep.harness.contracts.answers import read_index, read_list, read_object
from lockstep.harness.contracts.operation import Config
from lockstep.harness.contracts.paged.checks import TAKEN, list_blocks
from lockstep.harness.contracts.paged.contents import RANK, Slot
from lockstep.harness.contracts.paged.model import name_group
from lockstep.harness.core.errors import Broken, format_plain
from lockstep.reference.paged import Extra, cover


def read_tables(answer: Any, name: str, groups: int, stores: bool) -> Tables:
    """Returns the tables of a request, one table for each group.

    Args:
        answer: the backend's report.
        name: the name of the request.
        groups: the number of groups.
        stores: whether the backend stores K and V; otherwise the content of a ring is
            unknown.
    """
    tables = read_list(answer, "tables")
    if not tables:
        raise Broken("malformed", f"request {name} holds slots, but has no tables{TAKEN}")
    tables = read_list(tables, "tables", groups, ": one table for each group")
    return [read_table(table, f"tables({name})", stores) for table in tables]


def read_table(answer: Any, location: str, stores: bool) -> Table:
    if isinstance(answer, Ring):
        if not stores:
            raise Broken(
                "malformed",
                f'{location} has a Ring, but the config has data "tags"; give a list',
            )
        return Ring(read_blocks(location, read_list(answer.blocks, "tables")))
    table = read_list(answer, "tables")
    if {*map(type, table)} <= {int, NoneType}:  # the usual case, at once
        return table
    return [
        None if block is None else read_number(location, block, "a block or None")
        for block in table
    ]


def read_slots(answer: Any, config: Config, count: int) -> list[list[list[Slot]]]:
    """Returns for each group the slots of each of `count` positions, on all ranks; an
    empty list for a state group.

    Args:
        answer: for each rank and each group, the slot of each position, or None.
        config: the config of the program.
        count: the number of positions of the step.
    """
    told: list[list[list[Slot]]] = []
    groups, ranks = config["groups"], config["ranks"]
    parts = read_list(answer, "slots", ranks)
    parts = [read_list(part, "slots", len(groups)) for part in parts]
    for group, *lists in zip(groups, *parts, strict=True):
        size = group["block"] // (ranks if group["type"] == "full" else 1)
        length = 0 if group["type"] == "state" else count
        columns = zip(*(read_list(item, "slots", length) for item in lists), strict=True)
        told.append([read_places(column, size) for column in columns])
    return told


def read_places(slots: Sequence[Any], size: int) -> list[Slot]:
    """Returns the slots of one position; `slots` has its slot on each rank, or None."""
    pairs = [(rank, slot) for rank, slot in enumerate(slots) if slot is not None]
    wanted = "a slot or None"
    numbers = [
        (rank, *divmod(read_number("slots", slot, wanted), size)) for rank, slot in pairs
    ]
    return [(block, rank * RANK + index) for rank, block, index in numbers]


def read_copies(answer: Any, name: str) -> list[tuple[int, int]]:
    """Returns the (source, target) blocks to copy that the method `name` returned."""
    pairs = [read_list(item, name, 2) for item in read_list(answer, name)]
    blocks = (read_blocks(name, pair) for pair in pairs)
    return [(source, target) for source, target in blocks]


def read_pool(answer: Any) -> Pool:
    """Returns the pool; leaves out the reference counts of blocks that no request
    holds."""
    read_object(answer, ("references", "free", "cached"), "pool", "a pool")
    if not isinstance(answer.references, Mapping):
        reject("the references of pool", answer.references, "counts by block")
    held, free, cached, pinned, idle = (
        read_blocks("pool", read_list(blocks, "pool"))
        for blocks in (
            list(answer.references),
            *(getattr(answer, name, ()) for name in ("free", "cached", "pinned", "idle")),
        )
    )
    counts = (
        read_number("the references of pool", count, "a count")
        for count in answer.references.values()
    )
    pairs = zip(held, counts, strict=True)
    references = {block: count for block, count in pairs if count}
    return Pool(references, free, cached, tuple(pinned), tuple(idle))


def read_entries(answer: Any, groups: int, name: str = "entries") -> list[Entry]:
    return [read_entry(item, name, groups) for item in read_list(answer, name)]


def read_events(answer: Any, groups: int) -> list[tuple[str, Entry | None]]:
    return [read_event(event, groups) for event in read_list(answer, "events")]


def read_event(answer: Any, groups: int) -> tuple[str, Entry | None]:
    name, entry = read_list(answer, "events", 2)
    if name not in EVENTS:
        reject("events", name, f"one of {', '.join(EVENTS)}")
    if name != "cleared":
        return name, read_entry(entry, "events", groups)
    if entry is not None:
        reject('the event "cleared"', entry, "None")
    return name, None


def read_entry(answer: Any, name: str, groups: int) -> Entry:
    """Returns an entry with its tokens as a tuple; `groups` is the number of groups."""
    length = len(Entry._fields) - 2 if len(read_list(answer, name)) <= 4 else 6
    group, namespace, listed, block, *keys = read_list(answer, name, length)
    tokens = tuple(read_list(listed, name))
    if {*map(type, tokens)} != {int}:
        tokens = tuple(map(read_index, tokens))
    number = read_index(group)
    if number is None or not 0 <= number < groups:
        reject(name, group, f"a group below {groups}")
    if not (namespace is None or isinstance(namespace, str)):
        reject(name, namespace, "a namespace or None")
    adapter, extras = keys or (None, ())
    if not (adapter is None or isinstance(adapter, str)):
        reject(name, adapter, "an adapter or None")
    if not tokens or None in tokens:
        reject(name, listed, "at least one token")
    at = read_number(name, block, "a block")
    covered = [read_extra(extra, name) for extra in read_list(extras, name)]
    try:
        cover(tokens, covered)
    except ValueError as error:
        raise Broken("malformed", f"{name}: {error}") from None
    return Entry(number, namespace, tokens, at, adapter, covered)


def read_extra(answer: Any, name: str) -> Extra:
    *ends, key = read_list(answer, name, 3)
    if not isinstance(key, str):
        reject(name, key, "the key of an extra")
    first, end = read_blocks(name, ends)
    return first, end, key


def read_blocks(location: str, blocks: list[Any]) -> list[int]:
    if {*map(type, blocks)} <= {int}:  # the usual case, at once
        return blocks
    return [read_number(location, block, "a block") for block in blocks]


def read_number(location: str, value: Any, wanted: str) -> int:
    number = read_index(value)
    if number is None:
        reject(location, value, wanted)
    return number


def reject(location: str, value: Any, wanted: str) -> NoReturn:
    raise Broken("malformed", f"{location} has {format_plain(value)}, not {wanted}")


# --- for reports ------------------------------------------------------------------------


Facts = dict[str, list[tuple[str, str]]]
"""Title of a request or of one of its groups → pairs of a name and a description."""


def describe_tables(
    requests: Mapping[str, Tables], busy: Mapping[int, str], config: Config
) -> Facts:
    """Lists the blocks of each request, with the other holders of each block.

    Args:
        requests: request → its tables.
        busy: block → the name of the transfer that reads or writes it.
        config: the config of the program.
    """
    holders: dict[int, dict[str, None]] = defaultdict(dict)
    for name, tables in requests.items():
        for table in tables:
            for block in list_blocks(table):
                holders[block][name] = None
    for block, transfer in busy.items():
        holders[block][f"transfer {transfer}"] = None
    facts: Facts = defaultdict(list)
    for name, tables in requests.items():
        for number, table in enumerate(tables):
            request, group = f"request {name}", name_group(config, number)
            blocks = table.blocks if isinstance(table, Ring) else table
            text = ", ".join(format_block(block, name, holders) for block in blocks)
            text = f"ring of {text}" if isinstance(table, Ring) else text
            facts[request].append((f"table of {group}", text))
            facts[f"{request}, {group}"] = [("table", text)]
    return facts


def format_block(
    block: int | None, name: str, holders: Mapping[int, Iterable[str]]
) -> str:
    """Formats a block in a request's table: its number, and the other holders."""
    if block is None:
        return "–"
    others = ", ".join(holder for holder in holders[block] if holder != name)
    return f"{block} (also {others})" if others else str(block)
