"""The coverage of the programs of one kind, the gaps, and their reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.types import Cell
from lockstep.harness.programs.vectors.levels import get_whole, list_levels
from lockstep.harness.programs.vectors.selection import ERROR, Selection


def describe(selection: Selection) -> dict[str, Any]:
    """Describes the programs of one kind: what they cover, what not, and why."""
    contract, kind, counted = selection.contract, selection.kind, selection.counted
    rules = CONTRACTS[contract]
    reachable = rules.list_cells(kind, get_whole(contract, kind))
    levels = Counter(level for level, _ in selection.chosen)
    others = [cell for cell in counted if cell[0] not in rules.states and cell[0]]
    errors = [(name.removeprefix(ERROR), op) for name, op in others if ERROR in name]
    settings = [cell for cell in others if ERROR not in cell[0] and cell[1]]
    return {
        "contract": contract,
        "kind": kind,
        "programs": len(selection.chosen),
        "operations": selection.steps,
        "levels": {
            level.name: levels[level.name] for level in list_levels(contract, kind)
        },
        "drawn": selection.drawn,
        "reachable": len(reachable),
        "covered": group(cell for cell in reachable if counted[cell]),
        "errors": group(errors),
        "settings": group(settings),
        "not_covered": [
            {"why": why, "cells": group(cells)}
            for why, cells in explain_rest(selection).items()
        ],
    }


def group(cells: Iterable[Cell]) -> dict[str, list[str]]:
    """state → the operations that find it."""
    grouped: dict[str, list[str]] = {}
    for state, operation in sorted(cells):
        grouped.setdefault(state, []).append(operation)
    return grouped


def explain_rest(selection: Selection) -> dict[str, list[Cell]]:
    """Why → the cells of the contract that no program of the selection reaches."""
    contract, kind = selection.contract, selection.kind
    rules, whole = CONTRACTS[contract], get_whole(contract, kind)
    states = rules.list_states(kind, whole)
    unreachable = rules.list_unreachable(kind, whole)
    rest: dict[str, list[Cell]] = {}
    for state in rules.states:
        for operation in rules.list_operations(kind):
            cell = state, operation
            if selection.counted[cell]:
                continue
            why = next((rule.why for rule in unreachable if rule.holds(cell)), None)
            if state not in states:
                why = f"a {kind} cache has no such state"
            elif why is None and not selection.size.cells:
                why = "a set of this size covers operations, not states"
            elif why is None:
                why = f"none of {selection.drawn} programs that were drawn reaches it"
            rest.setdefault(why, []).append(cell)
    return rest
