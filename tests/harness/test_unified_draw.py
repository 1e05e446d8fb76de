"""What is drawn for the unified family: every abstract state is reached often, usage is
broken only where that is asked for."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product
from random import Random

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.unified import UNIFIED
from lockstep.harness.contracts.unified.states import PASS
from lockstep.harness.programs.generate.drawer import Drawer, RandomSource
from lockstep.harness.programs.program import Program, parse_program, trace
from tests.harness.counting import count_cells

every_kind = pytest.mark.parametrize("kind", UNIFIED.kinds)
PROGRAMS, LEAST, LEAST_OF_EACH = 400, 10, 3
OPT_IN = dict.fromkeys(("layers", "cache_padding", "mask_padding"), (1, 2, 4))


def declare(kind: str, refuses: bool = False) -> Kind:
    operations = frozenset(UNIFIED.list_operations(kind))
    return Kind(operations, OPT_IN, refuses=refuses)


@cache
def draw(kind: str, refuses: bool = False) -> list[Program]:
    drawer = Drawer("unified", kind, declare(kind, refuses), ("float32",), misuse=1)
    source = RandomSource(5)
    return [drawer.draw(source) for _ in range(PROGRAMS)]


@every_kind
def test_every_state_is_reached_often_and_by_every_operation(kind: str) -> None:
    """Only passes find the states of a pass itself. `get` reads an open pass, so it never
    comes after what ends one."""
    counted, reached = count_cells(draw(kind)), Counter[str]()
    for (state, _), times in counted.items():
        reached[state] += times
    states = UNIFIED.list_states(kind, declare(kind))
    assert {state: reached[state] for state in states if reached[state] < LEAST} == {}
    own = {*PASS, "image-in-batch", "several-images", "uneven-batch"}
    cells = product(set(states) - own, ("forward", "remove", "copy_prefix", "can_resume"))
    rare = {cell: counted[cell] for cell in cells if counted[cell] < LEAST_OF_EACH}
    assert rare == {}


@every_kind
def test_programs_vary_in_what_matters(kind: str) -> None:
    programs = draw(kind)
    for name, least in (("sequences", 4), ("capacity", 5), ("batch", 4), ("dtype", 1)):
        assert len({program.config[name] for program in programs}) >= least, name
    assert {1, 2, 4} == {program.config["layers"] for program in programs}
    lengths = [len(program.ops) for program in programs]
    assert 20 < sum(lengths) / len(lengths) < 36


@every_kind
def test_usage_is_broken_often_but_only_where_that_is_asked_for(kind: str) -> None:
    for program in draw(kind)[:100]:
        assert {"error": "usage"} not in trace(program)
    refused: Counter[str] = Counter()
    steps = 0
    for program in draw(kind, refuses=True)[:100]:
        steps += len(program.ops)
        for op, answer in zip(program.ops, trace(program), strict=True):
            refused[op["op"]] += answer == {"error": "usage"}
    assert 0.15 < refused.total() / steps < 0.65
    wanted = {"forward", "remove", "copy_prefix", "can_resume"}
    wanted |= {"get", "put"} if kind != "encoder" else set()
    wanted |= {"open"} if kind == "swa-memory" else set()
    assert {name for name, times in refused.items() if times > 5} >= wanted


@every_kind
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
