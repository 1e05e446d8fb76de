"""Programs that are drawn for a released cache until one shows a planted mistake."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.sources import RandomSource
from lockstep.harness.programs.ledger import load_ledger
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import load

MOST = 400
"""Programs that are tried for a mistake."""


@cache
def begin(name: str, kind: str) -> tuple[Drawer, RandomSource, list[Program]]:
    """What draws programs that no entry of the ledger describes, and those drawn so far:
    the tests of one process share them."""
    backend = load(name)
    (contract,) = (one for one in backend.contracts if kind in backend.contracts[one])
    declared = backend.contracts[contract][kind]
    avoid = load_ledger(backend.ledger, name, kind)
    drawer = Drawer(contract, kind, declared, backend.dtypes, avoid)
    return drawer, RandomSource(5), []


def draw(name: str, kind: str) -> Iterator[Program]:
    """Draws no more programs than are asked for."""
    drawer, source, drawn = begin(name, kind)
    for number in range(MOST):
        if number == len(drawn):
            drawn.append(drawer.draw(source))
        yield drawn[number]


def find_program(name: str, kind: str) -> Program | None:
    """The first program that diverges."""
    backend = load(name)
    return next((one for one in draw(name, kind) if run(one, backend).divergence), None)


def shows_mistake(name: str, kind: str, owner: Any, attribute: str, changed: Any) -> bool:
    """Whether a program diverges with an attribute changed, and agrees without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, attribute, changed)
        program = find_program(name, kind)
    return program is not None and run(program, load(name)).divergence is None
