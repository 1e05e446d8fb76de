"""What is drawn for unified and prefix caches: every abstract state is reached often,
conversations collide, usage is broken only where that is asked for."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.prefix import PREFIX
from lockstep.harness.contracts.unified import UNIFIED
from lockstep.harness.programs.program import Program, parse_program
from lockstep.harness.programs.walk import trace, walk
from tests.harness.building import KINDS, declare_all, draw_some

PROGRAMS, LEAST = 400, 10
OPT_IN = {
    "unified": dict.fromkeys(("layers", "cache_padding", "mask_padding"), (1, 2, 4)),
    "prefix": {"interval": (None, 1, 2, 3)},
}
every_kind = pytest.mark.parametrize(
    ("contract", "kind"), [(of, kind) for of, kind in KINDS if of in OPT_IN]
)
every_unified_kind = pytest.mark.parametrize("kind", UNIFIED.kinds)
every_prefix_kind = pytest.mark.parametrize("kind", PREFIX.kinds)


def declare(contract: str, kind: str, refuses: bool = False) -> Kind:
    return declare_all(contract, kind, config=OPT_IN[contract], refuses=refuses)


@cache
def draw(contract: str, kind: str, refuses: bool = False) -> list[Program]:
    declared = declare(contract, kind, refuses)
    return draw_some(PROGRAMS, contract, kind, declared, misuse=1)


@every_unified_kind
def test_programs_vary_in_what_matters(kind: str) -> None:
    programs = draw("unified", kind)
    for name, least in (("sequences", 4), ("capacity", 5), ("batch", 4), ("dtype", 1)):
        assert len({program.config[name] for program in programs}) >= least, name
    assert {1, 2, 4} == {program.config["layers"] for program in programs}
    assert 20 < sum(len(program.ops) for program in programs) / PROGRAMS < 36


@every_prefix_kind
def test_programs_are_various(kind: str) -> None:
    """Every operation is drawn, and many models. Tokens are not all alike: some might be
    taken for padding, or for each other in 16 bits. Checkpoints come in any order."""
    programs = draw("prefix", kind)
    ops = [op for program in programs for op in program.ops]
    drawn = Counter(op["op"] for op in ops)
    names = {name for _, name in PREFIX.list_cells(kind, declare("prefix", kind))}
    assert {name: drawn[name] for name in names if drawn[name] < 5 * LEAST} == {}
    assert 20 < len(ops) / PROGRAMS < 36
    models = {str(program.config["layers"]) for program in programs}
    assert len(models) >= 8
    assert any("," in layers for layers in models)
    assert {token for op in ops for token in op.get("tokens", ())} >= {0, 1, 65_537}
    given = [op["offsets"] for op in ops if op["op"] == "checkpoint"]
    assert kind != "trie" or any(offsets != sorted(offsets) for offsets in given)


@every_prefix_kind
def test_many_requests_can_reuse_something(kind: str) -> None:
    """Else nothing is shown of what is stored."""
    requests = reused = 0
    for program in draw("prefix", kind)[:200]:
        for op, answer in zip(program.ops, trace(program), strict=True):
            if op["op"] == "begin" and "remaining" in answer:
                requests += 1
                reused += len(answer["remaining"]) < len(op["tokens"])
    assert reused > 0.2 * requests


def test_captures_where_conversations_part_go() -> None:
    """Only once all that lies behind was used later, and the layers stand elsewhere; then
    only a capture goes, and the point stays."""
    let_go = 0
    for program in draw("prefix", "trie"):
        for step in walk(program, rows=False):
            before = step.model.list_points()
            step.expect()
            after = step.model.list_points()
            let_go += any(
                was and not after.get(path, True) for path, was in before.items()
            )
    assert let_go >= 3


CALLS = {"forward", "remove", "copy_prefix", "can_resume"}
REQUESTS = {"begin", "close", "cancel", "free"}
REFUSED = {
    "encoder": CALLS,
    "swa-memory": {*CALLS, "get", "put", "open"},
    "session": REQUESTS,
    "trie": {*REQUESTS, "limit", "open"},
    "slots": {"begin", "open", "reserve", "commit"},
}
"""Kind → operations that are often refused; of the others, those of causal caches."""


@every_kind
def test_usage_is_broken_often_but_only_where_that_is_asked_for(
    contract: str, kind: str
) -> None:
    for program in draw(contract, kind)[:100]:
        assert {"error": "usage"} not in trace(program)
    refused: Counter[str] = Counter()
    steps = 0
    for program in draw(contract, kind, refuses=True)[:100]:
        steps += len(program.ops)
        for op, answer in zip(program.ops, trace(program), strict=True):
            refused[op["op"]] += answer == {"error": "usage"}
    low, high = (0.15, 0.65) if contract == "unified" else (0.08, 0.45)
    assert low < refused.total() / steps < high
    wanted = REFUSED.get(kind, {*CALLS, "get", "put"})
    assert {name for name, times in refused.items() if times > 5} >= wanted


@every_kind
def test_programs_are_total(contract: str, kind: str) -> None:
    """Whatever is left out, the rest can be traced, and is the same after a detour
    through JSON."""
    random = Random(3)
    for program in draw(contract, kind, refuses=True)[:40]:
        document = program.to_json()
        document["ops"] = [op for op in document["ops"] if random.random() < 0.5]
        left = parse_program(document, "here")
        assert len(trace(left)) == len(left.ops)
        assert parse_program(left.to_json(), "here") == left
