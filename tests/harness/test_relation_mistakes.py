"""The relations alone find mistakes that are planted in the reference: nothing here knows
what is right."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache

import pytest

from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.execution.metamorphic.reference import (
    REFERENCE,
    execute,
    find_contradiction,
)
from lockstep.harness.programs.program import Program
from tests.harness.building import KINDS, draw_some
from tests.harness.commands import Run
from tests.harness.mistaken import MISTAKES

PROGRAMS = 150
"""Of each kind; the ci profile has 250 for the reference. Half of the mistakes are found
by the second, and with nine seeds none needed more than 51."""

APPLIED = 60
"""Of these, those that all relations are counted on."""

GENERIC = ("cut", "mask", "recompute", "rename", "return")
OFTEN = {
    **dict.fromkeys(CONTRACTS["layer"].kinds, GENERIC),
    **dict.fromkeys(("causal", "chunked"), GENERIC),
    **dict.fromkeys(CONTRACTS["batched"].kinds, ("cut", "mask", "recompute", "rename")),
    **dict.fromkeys(CONTRACTS["paged"].kinds, ("mask", "rename", "return")),
    **dict.fromkeys(("swa", "swa-memory", "recurrent"), ("mask", "rename", "return")),
    "encoder": ("cut", "mask", "rename"),
    "wrapper": GENERIC,
    "session": ("cut", "mask", "recompute", "rename"),
    "trie": ("cut", "mask", "rename", "keep"),
    "slots": ("mask", "rename"),
}
"""Kind → the relations that apply to one program in twenty at least."""


@cache
def get_programs(kind: str) -> list[Program]:
    """Drawn while the reference is right: what they are must not depend on a mistake."""
    (contract,) = [contract for contract, name in KINDS if name == kind]
    declared = REFERENCE.contracts[contract][kind]
    return draw_some(PROGRAMS, contract, kind, declared, 0, REFERENCE.dtypes)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found_by_its_relation(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake = MISTAKES[name]
    programs = get_programs(mistake.kind)
    mistake.plant(monkeypatch.setattr)
    found = (execute(program).divergence for program in programs)
    assert any(each and each.what == mistake.relation for each in found)


def test_there_are_two_mistakes_for_every_kind_and_one_for_every_relation() -> None:
    planted = Counter(mistake.kind for mistake in MISTAKES.values())
    assert min(planted[kind] for _, kind in KINDS) >= 2
    relations = {name for _, kind in KINDS for name in OFTEN[kind]}
    assert {mistake.relation for mistake in MISTAKES.values()} == relations


@pytest.mark.parametrize(("contract", "kind"), KINDS)
def test_every_relation_often_applies(contract: str, kind: str) -> None:
    """And without a mistake none is contradicted."""
    applied: Counter[str] = Counter()
    for program in get_programs(kind)[:APPLIED]:
        assert find_contradiction(program, every=False, applied=applied) is None
    rare = [name for name in OFTEN[kind] if applied[name] < APPLIED // 20]
    assert not rare, applied


@pytest.mark.parametrize("name", ["clone-is-the-cache", "restore-goes-on-top"])
def test_a_contradiction_is_an_ordinary_failure(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Found, shrunk, saved, printed and replayed like that of any backend, each as it was
    first seen."""
    backend = ("--backend", "reference")
    with monkeypatch.context() as planted:
        MISTAKES[name].plant(planted.setattr)
        ended = run("check", *backend, "--kind", "kv", "--programs", 96, "--json")
        failed = run("replay", "failures", *backend)
    assert ended.status == 1, ended.words
    (pair,) = json.loads(ended.out)["pairs"]
    assert pair["failures"]
    for failure in pair["failures"]:
        assert failure["signature"].startswith("layer-kv-")
        assert failure["operations"] <= 6, failure["signature"]
    assert failed.status == 1
    assert failed.out.count("FAILED") == len(pair["failures"])
    assert "in another way than before" not in failed.words
    fixed = run("replay", "failures", *backend)
    assert fixed.status == 0, fixed.words
    assert fixed.out.count("FIXED") == len(pair["failures"])
