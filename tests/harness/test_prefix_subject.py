"""What the harness notices of a prefix cache beside its answers: each snapshot is closed
once, all that is stored is counted, layers hold what they should. Each is planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Program, parse_program
from lockstep.harness.workers.registry import load

Change = Callable[[Any], None]

TALK = [
    {"op": "begin", "tokens": [1, 2, 3]},
    {"op": "feed", "count": 3},
    {"op": "close"},
]
OTHER = [
    {"op": "begin", "tokens": [1, 2, 4]},
    {"op": "feed", "count": 3},
    {"op": "close"},
]


def make(ops: list[dict[str, Any]], **config: Any) -> Program:
    document = {"format": "lockstep/1", "contract": "prefix", "ops": ops}
    return parse_program({**document, "config": {"kind": "trie", **config}}, "here")


def plant(change: Change, name: str = "torch-cpu") -> Backend:
    """A backend whose prefix caches were changed."""
    backend = load(name)

    def open_cache(config: Any) -> Any:
        cache = backend.open(config)
        if config["kind"] in ("session", "trie"):
            change(cache)
        return cache

    return replace(backend, open=open_cache)


def find(change: Change, ops: list[dict[str, Any]], **config: Any) -> tuple[str, str]:
    """The operation and what differs, and in which words."""
    program = make(ops, **config)
    assert run(program, load("torch-cpu"), every=True).divergence is None
    divergence = run(program, plant(change), every=True).divergence
    assert divergence is not None
    return f"{divergence.operation} {divergence.what}", divergence.message


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
        snapshot = node.snapshots[number]
        drop(node, number, layer)
        if snapshot is not None:
            layer.close(snapshot)

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


def test_a_snapshot_that_is_never_closed_is_missed_after_free() -> None:
    where, words = find(forget_to_close, [*TALK, {"op": "free"}])
    assert where == "free snapshots"
    assert (
        words == "the open snapshots of layer 0 take 96 bytes, but what is stored takes 0"
    )


def test_or_at_the_end_where_nothing_was_freed() -> None:
    where, words = find(forget_to_close, TALK)
    assert (where, words) == ("free snapshots", "1 snapshots are open after free")


def test_a_snapshot_that_is_closed_twice_is_noticed() -> None:
    where, words = find(close_twice, [*TALK, {"op": "free"}])
    assert where == "free snapshots"
    assert "close was given a snapshot of [0, 3) that was closed or used up" in words


def test_so_is_one_that_is_closed_too_early() -> None:
    where, words = find(close_early, TALK)
    assert where == "close snapshots"
    assert (
        words == "the open snapshots of layer 0 take 0 bytes, but what is stored takes 96"
    )


def test_so_is_one_of_another_layer() -> None:
    def swap(trie: Any) -> None:
        weigh = trie.tree.weigh

        def weigh_and_swap(node: Any) -> None:
            weigh(node)
            node.snapshots.reverse()

        trie.tree.weigh = weigh_and_swap

    where, words = find(swap, [*TALK, *OTHER], layers=["kv", "kv"])
    assert where.endswith("snapshots")
    assert "or is of another layer" in words


def test_a_wrong_byte_counter_is_noticed() -> None:
    def count_one_more(trie: Any) -> None:
        trie.count_bytes = lambda: trie.tree.size + 1

    where, words = find(count_one_more, [*TALK, {"op": "count"}])
    assert (where, words) == ("count size", "bytes is 97, not 96")


def test_a_layer_that_holds_another_history_is_noticed() -> None:
    def stay(trie: Any) -> None:
        """Layers with the right offset are left as they are."""
        move = trie.move
        trie.move = lambda target, common, restore: move(target, target, restore)

    again = [{"op": "begin", "tokens": [2, 2, 3, 1]}, {"op": "feed", "count": 2}]
    ops = [*TALK, *again, {"op": "close"}, {"op": "begin", "tokens": [1, 2, 4]}]
    where, words = find(stay, ops)
    assert where == "begin contents"
    assert words.startswith("cache 0: holds tokens 3, 4, but should hold tokens 0, 1")


def test_a_rejected_request_that_opens_one_all_the_same_is_noticed() -> None:
    def accept(trie: Any) -> None:
        check = trie.check_begin
        trie.check_begin = lambda tokens: check(tokens or [0])

    where, _ = find(accept, [{"op": "begin", "tokens": []}])
    assert where == "begin result" or where == "begin error"


def test_a_refusing_layer_that_is_believed_is_noticed() -> None:
    """The layer did not move; who ignores that reads another history."""

    def believe(session: Any) -> None:
        move = session.move

        def ignore(target: int, common: int, restore: Any) -> Any:
            move(target, common, restore)

        session.move = ignore

    ops = [*TALK, {"op": "refuse", "layers": [0]}, OTHER[0]]
    where, _ = find(believe, ops, kind="session")
    assert where == "begin result"


@pytest.mark.parametrize("kind", ["session", "trie", "slots"])
def test_a_backend_that_answers_nonsense_is_told_so(kind: str) -> None:
    backend = load("torch-cpu")

    def open_cache(config: Any) -> Any:
        cache = backend.open(config)
        if config["kind"] == kind:
            cache.begin = lambda *arguments: None
        return cache

    layers = ["causal"] if kind == "slots" else ["kv"]
    program = make(TALK, kind=kind, layers=layers)
    divergence = run(program, replace(backend, open=open_cache)).divergence
    assert divergence is not None
    assert divergence.what == "malformed"
    assert divergence.message.startswith("begin returned None, not")
