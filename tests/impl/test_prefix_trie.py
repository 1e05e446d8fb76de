"""The trie on our layers, beside the reference, and what it promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from frameworks import INSTALLED, Framework
from prefix_layers import (
    SEEDS,
    STATE_BYTES,
    TOKEN_BYTES,
    Beside,
    Drawing,
    Spec,
    refuses,
)

from lockstep.impl.prefix.node import Node
from lockstep.impl.prefix.trie import Trie
from lockstep.reference import trie as reference


@pytest.fixture(scope="module", params=INSTALLED)
def on(request: pytest.FixtureRequest) -> Framework:
    return Framework(request.param)


def get_path(node: Node) -> tuple[int, ...]:
    before = get_path(node.parent) if node.parent else ()
    return (*before, *node.tokens)


class Pair(Beside):
    def __init__(
        self,
        on: Framework,
        specs: Sequence[Spec],
        limit: int | None = None,
        interval: int | None = None,
    ) -> None:
        super().__init__(on, specs)
        self.ours = Trie(self.world.layers, limit, interval)
        own, tags = self.world.make_reference(), self.world.tags
        self.right = reference.Trie(own, tags, limit, interval)

    def set_limit(self, limit: int | None) -> None:
        self.ours.set_limit(limit)
        self.right.set_limit(limit)
        self.check_tree()

    def disturb(self, draw: Drawing) -> None:
        if draw.chance(0.1):
            self.set_limit(draw_limit(draw))

    # --- checks -------------------------------------------------------------------------

    def check_stored(self) -> None:
        """Between requests: what is stored is open, and nothing is scheduled."""
        self.check()
        self.check_tree()
        assert self.ours.tree.cut is None
        nodes = list(self.ours.tree.list_nodes())
        held = [one for node in nodes for one in node.snapshots if one is not None]
        opened = [one for layer in self.world.cached for one in layer.open]
        assert {id(one) for one in held} == {id(one) for one in opened}
        assert len(held) == len(opened)
        for layer in self.world.cached:
            assert not layer.captures.boundaries
            assert not layer.captures.captured

    def check_tree(self) -> None:
        """The same points, captures, order of use and numbers; and true contents."""
        ours = {get_path(node): node for node in self.ours.tree.list_nodes()}
        assert ours.keys() == self.right.points.keys()
        for path, point in self.right.points.items():
            node = ours[path]
            captured = {n for n in self.ours.tree.whole if node.snapshots[n] is not None}
            assert (captured, node.used) == (point.captured, point.used), path
            self.check_node(node, path)
        assert self.ours.count_tokens() == self.right.count_tokens()
        assert self.ours.count_bytes() == self.right.count_bytes()
        assert self.ours.tree.compute_size() == self.right.count_bytes()

    def check_node(self, node: Node, path: tuple[int, ...]) -> None:
        assert (node.end, node.begin) == (len(path), len(path) - len(node.tokens))
        assert all(child.parent is node for child in node.children.values())
        cut = self.ours.tree.cut
        rest = cut.rest if cut and cut.node is node else {}
        for number, spec in enumerate(self.world.specs):
            parts = [node.snapshots[number], rest.get(number)]
            held: Any = [part for part in parts if part is not None]
            assert held or spec != "kv"
            assert spec != "kv" or held[0].begin == node.begin
            if held:
                assert held[-1].end == node.end
                due = self.world.list_due(spec, path, node.begin)
                assert [
                    tag for part in held for tag in self.world.see(part.read())
                ] == due


# --- beside the reference ---------------------------------------------------------------


def draw_limit(draw: Drawing) -> int | None:
    tokens = draw.random.choice((5, 20, 60))
    return draw.random.choice((None, 0, 1, STATE_BYTES, *[tokens * TOKEN_BYTES] * 3))


@pytest.mark.parametrize("seed", SEEDS)
def test_it_answers_what_the_reference_answers(on: Framework, seed: int) -> None:
    draw = Drawing(seed)
    limit = draw_limit(draw) if draw.chance(0.5) else None
    pair = Pair(on, draw.specs(), limit, draw.random.choice((None, None, 1, 2, 3, 5)))
    for _ in range(20):
        count = draw.random.choice((0, 0, 1, 3))
        pair.draw_request(draw, [draw.random.randint(1, 16) for _ in range(count)])
        if draw.chance(0.1):
            pair.set_limit(draw_limit(draw))
        if draw.chance(0.02):
            pair.free()
    pair.free()


# --- what it promises -------------------------------------------------------------------


def test_an_engine_may_leave_and_come_back(on: Framework) -> None:
    pair = Pair(on, ["kv", 3, "state"])
    assert pair.run([1, 2, 3, 4, 5, 6]) == 0
    # Nothing was captured where this one leaves: it is now, for the next one.
    assert pair.run([1, 2, 3, 7, 8]) == 0
    assert pair.run([1, 2, 3, 9]) == 3
    assert pair.run([1, 2, 3, 4, 5, 6, 7]) == 6


def test_checkpoints_and_multiples_are_captured_on_the_way(on: Framework) -> None:
    pair = Pair(on, ["kv", "state"], interval=4)
    pair.run(list(range(11)), [6])
    assert pair.run([*range(7), 99]) == 6
    assert pair.run([*range(6), 98]) == 6
    assert pair.run([*range(5), 97]) == 4


def test_what_a_model_generates_may_leave_a_path_too(on: Framework) -> None:
    pair = Pair(on, ["kv", "state"])
    pair.run([1, 2, 3, 4, 5])
    pair.begin([1, 2])
    pair.feed(2)
    pair.extend([3])
    pair.feed(1)
    pair.extend([9])
    pair.feed(1)
    pair.close()
    assert pair.run([1, 2, 3, 7]) == 3


def list_copied(pair: Pair) -> dict[tuple[int, ...], bool]:
    """Of each node, whether K and V were copied."""
    nodes = pair.ours.tree.list_nodes()
    return {get_path(node): node.snapshots[0].memory is None for node in nodes}


def test_leaving_a_path_copies_only_what_is_written_over(on: Framework) -> None:
    pair = Pair(on, ["kv"])
    pair.run([1, 2, 3, 4, 5])
    pair.run([1, 2, 3, 6])
    own = {(1, 2, 3): False, (1, 2, 3, 4, 5): True, (1, 2, 3, 6): False}
    assert list_copied(pair) == own


@pytest.mark.parametrize("length", [3, 5])
def test_asking_again_copies_nothing_for_good(on: Framework, length: int) -> None:
    pair = Pair(on, ["kv"])
    pair.run([1, 2, 3, 4, 5])
    for _ in range(2):
        assert pair.run([1, 2, 3, 4, 5][:length]) == length - 1
    assert not list_copied(pair)[(1, 2, 3, 4, 5)[:length]]


def test_a_layer_moves_only_as_far_as_it_must(on: Framework) -> None:
    pair = Pair(on, ["kv", "state"], interval=2)
    pair.run([1, 2, 3, 4, 5, 6])
    pair.run([1, 2, 7, 8])
    kv, state = pair.world.cached
    kv.restored, state.restored = [], []
    assert pair.run([1, 2, 3, 4, 5, 6, 9]) == 6
    # From where the paths part, edge by edge; a state at once.
    assert [target for _, target in kv.restored] == [4, 6]
    assert [target for _, target in state.restored] == [6]
    kv.restored, state.restored = [], []
    assert pair.run([1, 2, 3, 4, 5, 6, 9, 8]) == 7
    assert kv.restored == state.restored == []


@pytest.mark.parametrize("failing", [False, True])
def test_a_layer_that_refuses_costs_everything_once(on: Framework, failing: bool) -> None:
    pair = Pair(on, ["kv", 3, "kv"])
    pair.run([1, 2, 3, 4])
    left = pair.begin([1, 2, 3, 4, 5, 6], refusing=[0, 1, 2])
    assert left == [5, 6]  # nothing had to move
    pair.close()
    pair.run([7, 8])
    assert len(pair.begin([1, 2, 3, 4, 9], refusing=[2], failing=failing)) == 5
    verb = "failed" if failing else "refused"
    assert f"layer 2 {verb} to go to offset 4" in str(pair.ours.get_statistics().reason)
    pair.close(cancel=True)
    assert pair.run([1, 2, 3, 4, 9]) == 4


def test_whoever_interrupts_a_begin_leaves_nothing_wrong(
    on: Framework, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(on, ["kv", "kv"])
    pair.run([1, 2, 3, 4])
    pair.run([1, 2, 5, 6])

    def interrupt(snapshot: Any, target: int) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pair.world.cached[1], "restore", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pair.ours.begin([1, 2, 3, 4, 7])
    left = pair.ours.begin([1, 2, 5, 6, 7])
    assert left == [7]
    pair.world.check_layers([1, 2, 5, 6])


def test_an_engine_may_start_again_in_the_middle(on: Framework) -> None:
    """After a failed pass, say: it frees the layers and computes from the first token."""
    pair = Pair(on, ["kv", "kv"])
    pair.run([1, 2, 3, 4, 5])
    assert pair.ours.begin([1, 2, 3, 4, 7]) == [7]
    for layer in pair.world.cached:
        layer.free()
    pair.world.feed([1, 2], 0, 2)
    assert pair.ours.close() == 2
    for path, node in ((get_path(n), n) for n in pair.ours.tree.list_nodes()):
        pair.check_node(node, path)
    assert pair.ours.begin([1, 2, 3, 4, 5, 6]) == [6]
    pair.world.check_layers([1, 2, 3, 4, 5])


def test_the_limit_is_kept_and_the_live_path_too(on: Framework) -> None:
    pair = Pair(on, ["kv"], limit=6 * TOKEN_BYTES)
    pair.run([1, 2, 3, 4])
    pair.run([5, 6])
    assert pair.ours.count_bytes() == 6 * TOKEN_BYTES
    pair.run([7])
    assert pair.ours.count_tokens() == 3
    pair.run(list(range(10, 30)))
    assert pair.ours.count_tokens() == 20
    assert pair.run([7, 8]) == 0


def test_nothing_goes_of_the_edge_that_the_layers_stand_inside(on: Framework) -> None:
    pair = Pair(on, ["kv"])
    pair.run([1, 2, 3, 4, 5, 6])
    pair.begin([1, 2, 3, 9])
    pair.set_limit(0)
    assert pair.ours.count_tokens() == 6
    pair.close()
    assert pair.ours.count_tokens() == 3


def test_statistics_say_why_no_more_was_reused(on: Framework) -> None:
    pair = Pair(on, ["kv", "state"])

    def get_reason() -> str | None:
        reason: str | None = pair.ours.get_statistics().reason
        return reason

    assert get_reason() is None
    pair.run([1, 2, 3])
    assert get_reason() == "nothing is stored"
    pair.run([4, 5, 6])
    assert get_reason() == "no common prefix"
    pair.run([4, 5, 7])
    assert get_reason() == "layer 1 cannot go to offset 2"
    pair.run([4, 5, 8])
    assert get_reason() == "only the first 2 of 3 tokens are stored"
    found = pair.ours.get_statistics()
    assert (found.requests, found.hits, found.asked, found.reused) == (4, 1, 12, 2)
    assert (found.tokens, found.bytes) == (8, pair.ours.count_bytes())


def test_mistakes_change_nothing(on: Framework) -> None:
    pair = Pair(on, ["kv", "state"])
    pair.check_mistakes()
    for checkpoint in (0, -1, "x"):
        refuses("checkpoint", pair.ours.begin, [1], [checkpoint])
    refuses("limit of -1", pair.ours.set_limit, -1)
    for settings in ({"limit": -1}, {"interval": 0}):
        refuses(r"limit|interval", Trie, pair.world.layers, **settings)
    pair.check_stored()


def test_a_model_without_caches_stores_nothing(on: Framework) -> None:
    pair = Pair(on, [None, None])
    assert pair.run([1, 2, 3]) == pair.run([1, 2, 3]) == 0
    assert pair.ours.layers is pair.world.layers
    assert pair.ours.count_tokens() == 0
