"""The harness notices more of a prefix cache than its answers: each snapshot is closed
once, all that is stored is counted, layers hold what they should. Each is planted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import load
from tests.harness.building import make as make_program
from tests.harness.changing import change_caches

Change = Callable[[Any], None]
Ops = list[dict[str, Any]]

FED = [{"op": "feed", "count": 3}, {"op": "close"}]
TALK = [{"op": "begin", "tokens": [1, 2, 3]}, *FED]
OTHER = [{"op": "begin", "tokens": [1, 2, 4]}, *FED]


def make(ops: Ops, **config: Any) -> Program:
    return make_program(*ops, contract="prefix", **{"kind": "trie", **config})


def plant(change: Change) -> Backend:
    """A backend whose prefix caches were changed."""
    return change_caches(load("torch-cpu"), change, *CONTRACTS["prefix"].kinds)


def forget_to_close(trie: Any) -> None:
    drop = trie.tree.drop

    def lose(node: Any, number: int, layer: Any) -> None:
        if number:
            drop(node, number, layer)
        else:
            node.snapshots[number] = None

    trie.tree.drop = lose


def close_twice(trie: Any) -> None:
    drop = trie.tree.drop

    def close(node: Any, number: int, layer: Any) -> None:
        if node.snapshots[number] is not None:
            layer.close(node.snapshots[number])
        drop(node, number, layer)

    trie.tree.drop = close


def close_early(trie: Any) -> None:
    """Closes what it will restore from."""
    insert = trie.tree.insert

    def insert_and_close(path: Any, ends: Any) -> Any:
        nodes = insert(path, ends)
        for number, layer in trie.cached:
            layer.close(nodes[-1].snapshots[number])
        return nodes

    trie.tree.insert = insert_and_close


def swap(trie: Any) -> None:
    """Snapshots of one layer are taken for those of the other."""
    weigh = trie.tree.weigh

    def weigh_and_swap(node: Any) -> None:
        weigh(node)
        node.snapshots.reverse()

    trie.tree.weigh = weigh_and_swap


def count_one_more(trie: Any) -> None:
    trie.count_bytes = lambda: trie.tree.size + 1


def stay(trie: Any) -> None:
    """Layers with the right offset are left as they are."""
    move = trie.move
    trie.move = lambda target, common, restore: move(target, target, restore)


def accept(trie: Any) -> None:
    """A rejected request is open all the same."""
    check = trie.check_begin
    trie.check_begin = lambda tokens: check(tokens or [0])


def believe(session: Any) -> None:
    """A layer that refuses did not move; who ignores that reads another history."""
    move = session.move

    def ignore(target: int, common: int, restore: Any) -> Any:
        move(target, common, restore)

    session.move = ignore


FREE, COUNT = {"op": "free"}, {"op": "count"}
AGAIN = [
    {"op": "begin", "tokens": [2, 2, 3, 1]},
    {"op": "feed", "count": 2},
    {"op": "close"},
    OTHER[0],
]
REFUSED = [{"op": "refuse", "layers": [0]}, OTHER[0]]
CONFIGS: dict[Change, dict[str, Any]] = {
    swap: {"layers": ["kv", "kv"]},
    believe: {"kind": "session"},
}
SHORT = "snapshots: layer 0 has open snapshots of {} bytes, but the stored tokens take"
TWICE = r"close was given a snapshot of \[0, 3\) that was closed or used up.*"
OTHERS = "cache 0: holds tokens 3, 4, but should hold tokens 0, 1.*"


@pytest.mark.parametrize(
    ("change", "ops", "said"),
    [
        (forget_to_close, [*TALK, FREE], f"free {SHORT.format(96)} 0"),
        (forget_to_close, TALK, "free snapshots: 1 snapshots are open after free"),
        (close_twice, [*TALK, FREE], f"free snapshots: {TWICE}"),
        (close_early, TALK, f"close {SHORT.format(0)} 96"),
        (swap, [*TALK, *OTHER], ".* snapshots: .*or is of another layer"),
        (count_one_more, [*TALK, COUNT], "count size: bytes is 97, not 96"),
        (stay, [*TALK, *AGAIN], f"begin contents: {OTHERS}"),
        (accept, [{"op": "begin", "tokens": []}], "begin (result|error): .*"),
        (believe, [*TALK, *REFUSED], "begin result: .*"),
    ],
)
def test_a_planted_mistake_is_noticed(change: Change, ops: Ops, said: str) -> None:
    """By an operation, in a certain way, which is said."""
    program = make(ops, **CONFIGS.get(change, {}))
    assert run(program, load("torch-cpu"), every=True).divergence is None
    found = run(program, plant(change), every=True).divergence
    assert found is not None
    assert re.fullmatch(said, f"{found.operation} {found.what}: {found.message}")


@pytest.mark.parametrize("kind", ["session", "trie", "slots"])
def test_a_backend_that_answers_nonsense_is_told_so(kind: str) -> None:
    def answer_none(cache: Any) -> None:
        cache.begin = lambda *arguments: None

    layers = ["causal"] if kind == "slots" else ["kv"]
    program = make(TALK, kind=kind, layers=layers)
    divergence = run(program, plant(answer_none)).divergence
    assert divergence is not None
    assert divergence.what == "malformed"
    assert divergence.message.startswith("begin returned None, not")


def test_a_begin_in_vain_uses_up_a_refusal() -> None:
    """A session refuses checkpoints before it looks at its layers."""
    vain = {"op": "begin", "tokens": [], "checkpoints": [1]}
    ops = [
        *TALK,
        {"op": "refuse", "layers": [0]},
        vain,
        {"op": "begin", "tokens": [1, 2]},
    ]
    assert run(make(ops, kind="session"), load("torch-cpu")).divergence is None
