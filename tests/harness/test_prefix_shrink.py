"""Shrinking of prefix programs: it reaches what a person would write."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.prefix import PREFIX
from lockstep.harness.execution.shrink import Shrinker
from lockstep.harness.programs.generate.drawer import Drawer, RandomSource
from lockstep.harness.programs.program import Program, parse_program, trace, walk

Fails = Callable[[Program], bool]


def shrink(kind: str, fails: Fails, seed: int) -> Program:
    declared = Kind(frozenset(PREFIX.list_operations(kind)), {"interval": (None, 2)})
    drawer = Drawer("prefix", kind, declared, ("float32", "bfloat16"))
    source = RandomSource(seed)
    program = drawer.draw(source)
    while not fails(program):
        program = drawer.draw(source)
    small = Shrinker(program, fails, 20).shrink()
    assert fails(small)
    assert parse_program(small.to_json(), "here") == small
    return small


def reuses_two(program: Program) -> bool:
    """Some request reuses two tokens or more."""
    answers = zip(program.ops, trace(program), strict=True)
    return any(
        len(op["tokens"]) - len(answer["remaining"]) >= 2
        for op, answer in answers
        if op["op"] == "begin" and "remaining" in answer
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", PREFIX.kinds)
def test_a_reuse_needs_one_request_before(kind: str, seed: int) -> None:
    small = shrink(kind, reuses_two, seed)
    names = [op["op"] for op in small.ops]
    if kind == "slots" and small.config["several_users"]:  # a fork needs no close
        assert names == ["begin", "feed", "begin"]
    else:
        assert names == ["begin", "feed", "close", "begin"]
    assert [len(op["tokens"]) for op in small.ops if op["op"] == "begin"] == [2, 3]
    layers = ["causal"] if kind == "slots" else ["kv"]
    assert small.config["layers"] == layers
    assert {token for op in small.ops for token in op.get("tokens", ())} == {1}


def loses_something_to_a_limit(program: Program) -> bool:
    """Less is stored after a limit was set than before it."""
    for step in walk(program, rows=False):
        before = step.model.describe_store()["bytes"]
        step.finish()
        less = step.model.describe_store()["bytes"] < before
        if step.op["op"] == "limit" and less:
            return True
    return False


@pytest.mark.parametrize("seed", range(4))
def test_a_limit_needs_something_that_nobody_stands_on(seed: int) -> None:
    small = shrink("trie", loses_something_to_a_limit, seed)
    names = [op["op"] for op in small.ops]
    assert names == ["begin", "feed", "close", "begin", "limit"]
    assert small.config["layers"] == ["kv"]
    assert small.config["limit"] is None
