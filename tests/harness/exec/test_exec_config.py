"""The table of config fields that makers of drivers read: complete, and true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

import lockstep.harness.backends.driver
from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.programs.generate.sources import RandomSource

README = Path(lockstep.harness.backends.driver.__file__).parent / "README.md"

DRAWN = 60
"""Configs of each kind."""


class Row(NamedTuple):
    """What the table says about a field of one contract."""

    default: str
    drawn: str


DRIVEN = [name for name, rules in CONTRACTS.items() if rules.has_arrays]


def read_table() -> dict[tuple[str, str], Row]:
    """Reads (contract, field) → what stands there; no field twice."""
    section = README.read_text().split("### The config\n")[1].split("\n### ")[0]
    table: dict[tuple[str, str], Row] = {}
    for line in section.splitlines():
        if not line.startswith("| `"):
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        field, contracts, _, default, drawn, _ = cells
        for contract in DRIVEN if contracts == "all" else contracts.split(", "):
            key = contract, field.strip("`")
            assert key not in table, key
            table[key] = Row(default, drawn)
    return table


def test_every_field_of_every_contract_stands_in_the_table() -> None:
    fields = {(name, field) for name in DRIVEN for field in CONTRACTS[name].config}
    assert set(read_table()) == fields


@pytest.mark.parametrize("contract", DRIVEN)
def test_the_table_names_defaults_and_what_is_drawn(contract: str) -> None:
    rules = CONTRACTS[contract]
    # Without K and V of a backend, no numbers are drawn.
    stores = {"data": ("backend",)} if "data" in rules.config else {}
    drawn = [
        rules.draw_config(RandomSource(number), kind, Kind(frozenset(), stores))
        for kind in rules.kinds
        for number in range(DRAWN)
    ]
    for field, schema in rules.config.items():
        row = read_table()[contract, field]
        if field == "kind":
            continue
        assert json.loads(row.default) == schema["default"], field
        assert (row.drawn == "declared") == (field in rules.opt_in), field
        varies = any(each[field] != schema["default"] for each in drawn)
        assert varies == (row.drawn == "yes" or field in stores), field
