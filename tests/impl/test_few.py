"""Our pools do the same for few numbers as for many: drawn programs, which have
few, go the way of many."""

from __future__ import annotations

from importlib import import_module

import pytest

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate import GENERATORS
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.program import Divergence, Program
from lockstep.impl.shared import batch, mask_line
from tests.impl.frameworks import INSTALLED

PROGRAMS = 40


def find_divergences(name: str, kind: str) -> list[Divergence]:
    """Of drawn programs."""
    backend = import_module(f"lockstep.impl.{name}.backend").cpu()
    drawer = Drawer("unified", kind, backend.contracts["unified"][kind], backend.dtypes)
    found: list[Divergence] = []

    def check(program: Program) -> None:
        divergence = run(program, backend).divergence
        if divergence:
            found.append(divergence)

    GENERATORS["plain"](PROGRAMS, 1, drawer.draw, check)
    return found


@pytest.fixture
def as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in INSTALLED:
        monkeypatch.setattr(f"lockstep.impl.{name}.causal.SMALL", 0)
    monkeypatch.setattr(batch, "FEW", 0)


@pytest.mark.usefixtures("as_many")
@pytest.mark.parametrize("kind", CONTRACTS["unified"].kinds)
@pytest.mark.parametrize("name", INSTALLED)
def test_few_go_the_way_of_many(name: str, kind: str) -> None:
    assert not find_divergences(name, kind)


@pytest.mark.usefixtures("as_many")
@pytest.mark.parametrize("name", INSTALLED)
def test_they_do_go_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake there is found."""
    right = mask_line.find_seen
    monkeypatch.setattr(mask_line, "find_seen", lambda *given: ~right(*given))
    assert "mask" in {divergence.what for divergence in find_divergences(name, "causal")}
