"""What is drawn for prefix caches: every abstract state is reached often, conversations
collide, usage is broken only where that is asked for."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.prefix import PREFIX
from lockstep.harness.programs.generate.drawer import Drawer, RandomSource
from lockstep.harness.programs.program import Program, parse_program, trace, walk

KINDS = PREFIX.kinds
PROGRAMS, LEAST = 400, 10


def declare(kind: str, refuses: bool = False) -> Kind:
    operations = frozenset(PREFIX.list_operations(kind))
    return Kind(operations, {"interval": (None, 1, 2, 3)}, refuses=refuses)


@cache
def draw(kind: str, refuses: bool = False) -> list[Program]:
    drawer = Drawer("prefix", kind, declare(kind, refuses), ("float32",), misuse=1)
    source = RandomSource(5)
    return [drawer.draw(source) for _ in range(PROGRAMS)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_state_is_reached_often(kind: str) -> None:
    reached: Counter[str] = Counter()
    for program in draw(kind):
        for step in walk(program, rows=False):
            reached.update(PREFIX.get_states(step.op, step.model))
    wanted = PREFIX.list_states(kind, declare(kind))
    assert {state: reached[state] for state in wanted if reached[state] < LEAST} == {}


@pytest.mark.parametrize("kind", KINDS)
def test_programs_are_various(kind: str) -> None:
    """Every operation is drawn, and many models. Tokens are not all alike: some might be
    taken for padding, or for each other in 16 bits. Checkpoints come in any order."""
    programs = draw(kind)
    ops = [op for program in programs for op in program.ops]
    drawn = Counter(op["op"] for op in ops)
    names = {name for _, name in PREFIX.list_cells(kind, declare(kind))}
    assert {name: drawn[name] for name in names if drawn[name] < 5 * LEAST} == {}
    assert 20 < len(ops) / len(programs) < 36
    models = {str(program.config["layers"]) for program in programs}
    assert len(models) >= 8
    assert any("," in layers for layers in models)
    assert {token for op in ops for token in op.get("tokens", ())} >= {0, 1, 65_537}
    given = [op["offsets"] for op in ops if op["op"] == "checkpoint"]
    assert kind != "trie" or any(offsets != sorted(offsets) for offsets in given)


@pytest.mark.parametrize("kind", KINDS)
def test_many_requests_can_reuse_something(kind: str) -> None:
    """Else nothing is shown of what is stored. And no rule of usage is broken."""
    requests = reused = 0
    for program in draw(kind)[:200]:
        for op, answer in zip(program.ops, trace(program), strict=True):
            assert answer != {"error": "usage"}
            if op["op"] == "begin" and "remaining" in answer:
                requests += 1
                reused += len(answer["remaining"]) < len(op["tokens"])
    assert reused > 0.2 * requests


def test_captures_where_conversations_part_go() -> None:
    """Only once all that lies behind was used later, and the layers stand elsewhere; then
    only a capture goes, and the point stays."""
    let_go = 0
    for program in draw("trie"):
        for step in walk(program, rows=False):
            before = step.model.list_points()
            step.expect()
            after = step.model.list_points()
            let_go += any(
                was and not after.get(path, True) for path, was in before.items()
            )
    assert let_go >= 3


@pytest.mark.parametrize("kind", KINDS)
def test_where_usage_is_broken_many_operations_are_refused(kind: str) -> None:
    refused: Counter[str] = Counter()
    steps = 0
    for program in draw(kind, refuses=True)[:100]:
        steps += len(program.ops)
        for op, answer in zip(program.ops, trace(program), strict=True):
            refused[op["op"]] += answer == {"error": "usage"}
    assert 0.08 < refused.total() / steps < 0.45
    free = {"begin", "close", "cancel", "free"}
    least = {
        "session": free,
        "trie": {*free, "limit", "open"},
        "slots": {"begin", "open", "reserve", "commit"},
    }
    assert {name for name, times in refused.items() if times > 5} >= least[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_programs_are_total(kind: str) -> None:
    """Whatever is left out, the rest can be traced, and is the same after a detour
    through JSON."""
    random = Random(3)
    for program in draw(kind, refuses=True)[:40]:
        document = program.to_json()
        document["ops"] = [op for op in document["ops"] if random.random() < 0.5]
        left = parse_program(document, "here")
        assert len(trace(left)) == len(left.ops)
        assert parse_program(left.to_json(), "here") == left
