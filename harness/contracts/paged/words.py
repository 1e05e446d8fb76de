"""Formats the tables of a paged cache for reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.harness.backends.paged import Ring, Tables
from lockstep.harness.contracts.operation import Config
from lockstep.harness.contracts.paged.checks import list_blocks
from lockstep.harness.contracts.paged.model import name_group

Facts = dict[str, list[tuple[str, str]]]
"""Title of a request or of one of its groups → pairs of a name and a description."""


def tell_tables(
    tables_told: Mapping[str, Tables], busy: Mapping[int, str], config: Config
) -> Facts:
    """Lists the blocks of each request, with the requests that share each block.

    Args:
        tables_told: request → its tables.
        busy: block → the name of the transfer that reads or writes it.
        config: the config of the program.
    """
    users: dict[int, list[str]] = {}
    for name, tables in tables_told.items():
        for block in {block for table in tables for block in list_blocks(table)}:
            users.setdefault(block, []).append(name)
    for block, transfer in busy.items():
        users.setdefault(block, []).append(f"transfer {transfer}")
    facts: Facts = {}
    for name, tables in tables_told.items():
        for number, table in enumerate(tables):
            title = f"request {name}", name_group(config, number)
            entries = table.blocks if isinstance(table, Ring) else table
            text = ", ".join(name_block(block, name, users) for block in entries)
            text = f"ring of {text}" if isinstance(table, Ring) else text
            facts.setdefault(title[0], []).append((f"table of {title[1]}", text))
            facts[", ".join(title)] = [("table", text)]
    return facts


def name_block(block: int | None, name: str, users: Mapping[int, Sequence[str]]) -> str:
    """Formats a block in a request's table: its number, and the other holders."""
    if block is None:
        return "–"
    sharers = [sharer for sharer in users[block] if sharer != name]
    return f"{block} (also {', '.join(sharers)})" if sharers else str(block)
