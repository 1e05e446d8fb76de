"""The ledger of the peers: all operations that an entry describes diverge as it says."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.sources import RandomSource
from lockstep.harness.programs.ledger import (
    KnownProgram,
    list_known,
    load_entry,
    load_ledger,
)
from tests.impl.released import load

MOST, EACH = 1200, 8
"""Programs that are drawn at most for each kind, until each entry has some."""

LEDGER = Path(__file__).parents[2] / "impl" / "peers" / "ledger"
PEERS = sorted({load_entry(path).document.backend for path in LEDGER.glob("*.json")})


@pytest.mark.parametrize("name", PEERS)
def test_all_that_an_entry_describes_diverges_as_it_says(name: str) -> None:
    backend = load(name)
    known: dict[str, list[KnownProgram]] = {}
    for entry in load_ledger(backend.ledger, name):
        assert backend.contracts[entry.program.contract][entry.program.kind]
        known[entry.id] = []
    for contract, kinds in backend.contracts.items():
        for kind, declared in kinds.items():
            avoid = load_ledger(backend.ledger, name, kind)
            drawer = Drawer(contract, kind, declared, backend.dtypes, avoid)
            source = RandomSource(3)
            own = [known[entry.id] for entry in avoid]
            for _ in range(MOST):
                if all(len(programs) >= EACH for programs in own):
                    break
                program, found = drawer.draw(source), list(drawer.known)
                if drawer.rules.leaves_choices:
                    found += list_known(
                        program, run(program, backend, avoid=avoid).left_out
                    )
                for each in found:
                    known[each.entry.id].append(each)
    for id, programs in known.items():
        seen = Counter[str | None]()
        for each in islice(programs, EACH):
            divergence = run(each.program, backend).divergence
            shown = divergence and divergence.get_signature(each.program)
            seen[shown] += 1
            assert divergence is None or divergence.step == len(each.program.ops) - 1
        if programs[0].program.rules.leaves_choices:
            assert seen.pop(None, 0) <= EACH / 2
        assert seen.keys() == {programs[0].entry.signature}, id
        assert seen.total() > EACH / 4
