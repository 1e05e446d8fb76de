"""Session, trie and slots on our caches, where no generated program looks: what moves and
is copied, what the statistics say, and what an engine may do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from frameworks import Framework

from lockstep.impl.prefix.node import Node
from lockstep.impl.prefix.session import Session
from lockstep.impl.prefix.slots import Slots
from lockstep.impl.prefix.trie import Trie

Move = tuple[str, int]
"""A kind of layer, and the offset that it was brought to."""


class Engine:
    """Layers of a model, whose K and V are of no interest, under a session or a trie."""

    def __init__(
        self, on: Framework, make: Callable[..., Any], kinds: str, **options: Any
    ) -> None:
        self.on, self.moves = on, list[Move]()
        self.layers = [on.layer(kind) for kind in kinds.split()]
        for kind, layer in zip(kinds.split(), self.layers, strict=True):
            self.spy(kind, layer)
        self.cache = make([*self.layers, None], **options)

    def spy(self, kind: str, layer: Any) -> None:
        restore = layer.restore

        def restore_and_note(snapshot: Any, target: int) -> bool:
            self.moves.append((kind, target))
            return bool(restore(snapshot, target))

        layer.restore = restore_and_note

    def feed(self, count: int) -> None:
        for layer in self.layers:
            self.on.append(layer, range(count))

    def run(self, tokens: Sequence[int]) -> int:
        """A whole request; returns how much was reused, and forgets the moves before."""
        self.moves.clear()
        left = self.cache.begin(tokens)
        self.feed(len(left))
        assert self.cache.close() == len(tokens)
        return len(tokens) - len(left)

    def get_reason(self) -> str | None:
        reason: str | None = self.cache.get_statistics().reason
        return reason


every_store = pytest.mark.parametrize("make", [Session, Trie])


# --- sessions and tries -----------------------------------------------------------------


@every_store
def test_statistics_say_why_no_more_was_reused(
    on: Framework, make: Callable[..., Any]
) -> None:
    engine = Engine(on, make, "kv state")
    assert engine.get_reason() is None
    for tokens, reason in (
        ([1, 2, 3], "nothing is stored"),
        ([4, 5, 6], "no common prefix"),
        ([4, 5, 6, 7], "only the first 3 of 4 tokens are stored"),
        ([4, 5, 6, 7, 8], "only the first 4 of 5 tokens are stored"),
        ([4, 5], "layer 1 cannot go (back )?to offset 1"),
    ):
        engine.run(tokens)
        with pytest.raises(ValueError, match=f"^{reason}$"):
            raise ValueError(engine.get_reason())
    found = engine.cache.get_statistics()
    assert (found.requests, found.hits, found.asked, found.reused) == (5, 2, 17, 7)
    assert found.tokens == engine.cache.count_tokens()
    assert found.bytes == engine.cache.count_bytes()
    other = Engine(on, make, "kv")
    assert [other.run([1, 2]), other.run([1, 2])] == [0, 1]
    assert other.get_reason() == "the last token is always computed"


@every_store
@pytest.mark.parametrize("failing", [False, True])
def test_a_layer_that_refuses_costs_everything_once(
    on: Framework,
    make: Callable[..., Any],
    failing: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(on, make, "kv kv")
    engine.run([1, 2, 3, 4])

    def refuse(snapshot: Any, target: int) -> bool:
        if failing:
            raise RuntimeError("no memory is left")
        return False

    with monkeypatch.context() as patch:
        patch.setattr(engine.layers[1], "restore", refuse)
        assert engine.run([1, 2, 3, 4, 5]) == 4  # nothing had to move
        assert engine.cache.begin([1, 2, 9]) == [1, 2, 9]
    verb = "failed" if failing else "refused"
    assert str(engine.get_reason()).startswith(f"layer 1 {verb} to go to offset 2")
    engine.feed(3)
    engine.cache.close()
    assert engine.run([1, 2, 9, 8]) == 3


def test_all_layers_are_asked_before_one_moves(on: Framework) -> None:
    engine = Engine(on, Session, "kv state")
    engine.run([1, 2, 3, 4])
    assert engine.run([1, 2, 5]) == 0
    assert engine.moves == []


def test_a_layer_moves_only_as_far_as_it_must(on: Framework) -> None:
    """From where the paths part, edge by edge; a state at once."""
    engine = Engine(on, Trie, "kv state", interval=2)
    engine.run([1, 2, 3, 4, 5, 6])
    engine.run([1, 2, 7, 8])
    assert engine.run([1, 2, 3, 4, 5, 6, 9]) == 6
    assert engine.moves == [("kv", 4), ("kv", 6), ("state", 6)]
    assert engine.run([1, 2, 3, 4, 5, 6, 9, 8]) == 7
    assert engine.moves == []


def list_copied(engine: Engine) -> dict[tuple[int, ...], bool]:
    """Of each path that ends at a node, whether its last K and V were copied."""

    def get_path(node: Node) -> tuple[int, ...]:
        return (*(get_path(node.parent) if node.parent else ()), *node.tokens)

    nodes = engine.cache.tree.list_nodes()
    return {get_path(node): node.snapshots[0].memory is None for node in nodes}


def test_leaving_a_path_copies_only_what_is_written_over(on: Framework) -> None:
    engine = Engine(on, Trie, "kv")
    engine.run([1, 2, 3, 4, 5])
    engine.run([1, 2, 3, 6])
    own = {(1, 2, 3): False, (1, 2, 3, 4, 5): True, (1, 2, 3, 6): False}
    assert list_copied(engine) == own


@pytest.mark.parametrize("length", [3, 5])
def test_asking_again_copies_nothing_for_good(on: Framework, length: int) -> None:
    engine = Engine(on, Trie, "kv")
    engine.run([1, 2, 3, 4, 5])
    for _ in range(2):
        assert engine.run([1, 2, 3, 4, 5][:length]) == length - 1
        assert engine.cache.tree.cut is None  # the edge is whole again
    assert not list_copied(engine)[(1, 2, 3, 4, 5)[:length]]


def test_whoever_interrupts_a_begin_leaves_nothing_wrong(
    on: Framework, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(on, Trie, "kv kv")
    engine.run([1, 2, 3, 4])
    engine.run([1, 2, 5, 6])

    def interrupt(snapshot: Any, target: int) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.layers[1], "restore", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.cache.begin([1, 2, 3, 4, 7])
    assert engine.cache.begin([1, 2, 5, 6, 7]) == [7]
    assert [layer.offset for layer in engine.layers] == [4, 4]


def test_an_engine_may_start_again_in_the_middle(on: Framework) -> None:
    """After a failed pass, say: it frees the layers and computes from the first token."""
    engine = Engine(on, Trie, "kv kv")
    engine.run([1, 2, 3, 4, 5])
    assert engine.cache.begin([1, 2, 3, 4, 7]) == [7]
    for layer in engine.layers:
        layer.free()
    engine.feed(2)
    assert engine.cache.close() == 2
    assert engine.cache.begin([1, 2, 3, 4, 5, 6]) == [6]
    assert [layer.offset for layer in engine.layers] == [5, 5]


# --- slots ------------------------------------------------------------------------------


class Foreign:
    """A cache of somebody else that can cut nothing, and says so by an exception of its
    own; without one it can do all."""

    class RefusedError(Exception):
        pass

    def __init__(self, resumes: bool = True, cuts: bool = False) -> None:
        self.resumes, self.cuts = resumes, cuts

    def copy_prefix(self, source: int, target: int, length: int) -> None: ...

    def can_resume(self, sequence: int, position: int) -> bool:
        return self.resumes

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        if begin > 0 and not self.cuts:
            raise self.RefusedError


def ask(slots: Slots, tokens: Sequence[int]) -> tuple[int, int]:
    """A whole request: its slot, and how much was reused."""
    slot = slots.begin(tokens)
    left = len(slots.get_remaining(slot))
    slots.commit(slot, len(slots.reserve(slot, left)))
    slots.close(slot)
    return slot, len(tokens) - left


def test_which_exceptions_refuse_is_a_parameter() -> None:
    slots = Slots(Foreign(), 1, 8, refusals=(Foreign.RefusedError,))
    slots.begin([1, 2, 3])
    slots.commit(0, len(slots.reserve(0, 3)))
    assert slots.close(0) == 0
    with pytest.raises(Foreign.RefusedError):
        ask(Slots(Foreign(), 1, 8), [1, 2, 3])


def test_statistics_of_slots_count_requests_and_tokens() -> None:
    slots = Slots(Foreign(cuts=True), 2, 16, several_users=True)
    assert slots.get_statistics().reason is None
    for tokens, expected, reason in (
        ([1, 2, 3], (0, 0), "nothing is stored"),
        ([1, 2, 4], (1, 2), "only the first 2 of 3 tokens are stored"),
        ([1, 2, 4], (1, 2), "the last token is always computed"),
    ):
        assert (ask(slots, tokens), slots.get_statistics().reason) == (expected, reason)
    found = slots.get_statistics()
    assert (found.requests, found.hits, found.asked, found.reused) == (3, 2, 9, 4)
    assert found.tokens == 6
    for cache, why in (
        (Foreign(resumes=False, cuts=True), "resume"),
        (Foreign(cuts=False), "cut the sequence"),
    ):
        slots = Slots(cache, 1, 16, refusals=(Foreign.RefusedError,))
        slots.slots[0].tokens = [1, 2, 3, 4]
        slots.begin([1, 2, 7])
        assert slots.get_statistics().reason == f"the cache cannot {why} at position 2"


def test_there_is_at_least_one_slot() -> None:
    with pytest.raises(ValueError, match="count must be at least 1 slot, not 0"):
        Slots(Foreign(), 0, 8)
