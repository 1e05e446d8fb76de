"""Programs that break rules of usage are made simpler, as any others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.execution.shrink import (
    get_domain_steps,
    get_merged,
    get_simpler_configs,
    get_simpler_fields,
    rename,
)
from lockstep.harness.programs.generate.drawer import Drawer, RandomSource

KINDS = [(name, kind) for name, rules in CONTRACTS.items() for kind in rules.kinds]
PROGRAMS = 12
PASSES = (get_simpler_configs, get_merged, get_domain_steps, get_simpler_fields)


@pytest.mark.parametrize(("contract", "kind"), KINDS)
def test_whatever_is_left_of_one_can_be_made_simpler(contract: str, kind: str) -> None:
    """Most of what is proposed is illegal; but it is a program, or is left out before it
    runs."""
    rules = CONTRACTS[contract]
    declared = Kind(frozenset(rules.list_operations(kind)), refuses=True)
    drawer = Drawer(contract, kind, declared, ("float32",), misuse=1)
    source = RandomSource(11)
    for _ in range(PROGRAMS):
        whole = drawer.draw(source)
        for ops in [[op] for op in whole.ops]:
            program = replace(whole, ops=ops)
            candidates = [one for propose in PASSES for one in propose(program)]
            for candidate in [rename(program), *candidates]:
                assert rules.why_illegal(candidate.config) is None
                assert len(candidate.ops) <= len(ops)
