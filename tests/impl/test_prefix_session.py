"""The session on our layers, beside the reference, and what it promises."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from frameworks import INSTALLED, Framework
from prefix_layers import SEEDS, Beside, Drawing, Spec, refuses

from lockstep.impl.prefix.session import Session
from lockstep.reference import session as reference


@pytest.fixture(scope="module", params=INSTALLED)
def on(request: pytest.FixtureRequest) -> Framework:
    return Framework(request.param)


class Pair(Beside):
    def __init__(self, on: Framework, specs: Sequence[Spec]) -> None:
        super().__init__(on, specs)
        self.ours = Session(self.world.layers)
        self.right = reference.Session(self.world.make_reference(), self.world.tags)

    def check(self) -> None:
        super().check()
        assert self.ours.count_tokens() == len(self.right.stored)
        assert self.ours.stored == self.right.stored
        assert not any(layer.open for layer in self.world.cached)


@pytest.mark.parametrize("seed", SEEDS)
def test_it_answers_what_the_reference_answers(on: Framework, seed: int) -> None:
    draw = Drawing(seed)
    pair = Pair(on, draw.specs())
    for _ in range(20):
        pair.draw_request(draw)
        if draw.chance(0.03):
            pair.free()


# --- what it promises -------------------------------------------------------------------


def test_the_last_token_is_always_left(on: Framework) -> None:
    pair = Pair(on, ["kv", 8])
    assert pair.run([1, 2, 3]) == 0
    assert pair.run([1, 2, 3]) == 2
    assert pair.run([1, 2]) == 1
    assert pair.run([1]) == 0
    assert pair.ours.get_statistics().reason == "the last token is always computed"


def test_layers_that_ran_ahead_are_brought_back(on: Framework) -> None:
    pair = Pair(on, ["kv", "kv", None])
    pair.begin([1, 2, 3])
    pair.feed(2)
    pair.feed(1, layers=1)
    pair.close(cancel=True)
    assert pair.run([1, 2, 4]) == 2


def test_all_layers_are_asked_before_one_moves(on: Framework) -> None:
    pair = Pair(on, ["kv", "state"])
    pair.run([1, 2, 3, 4])
    pair.run([1, 2, 5])
    assert pair.world.cached[0].restored == []
    assert pair.ours.get_statistics().reason == "layer 1 cannot go back to offset 2"


@pytest.mark.parametrize("failing", [False, True])
def test_a_layer_that_refuses_costs_everything_once(on: Framework, failing: bool) -> None:
    pair = Pair(on, ["kv", "kv"])
    pair.run([1, 2, 3, 4])
    assert pair.begin([1, 2, 5], refusing=[1], failing=failing) == [1, 2, 5]
    verb = "failed" if failing else "refused"
    assert f"layer 1 {verb} to go to offset 2" in str(pair.ours.get_statistics().reason)
    pair.feed(3)
    pair.close()
    assert pair.run([1, 2, 5, 6]) == 3


def test_statistics_count_requests_and_tokens(on: Framework) -> None:
    pair = Pair(on, ["kv"])
    assert pair.ours.get_statistics().reason is None
    pair.run([1, 2, 3])
    assert pair.ours.get_statistics().reason == "nothing is stored"
    pair.run([4, 5])
    assert pair.ours.get_statistics().reason == "no common prefix"
    pair.run([4, 5, 6])
    found = pair.ours.get_statistics()
    assert (found.requests, found.hits, found.asked, found.reused) == (3, 1, 8, 2)
    assert found.reason == "only the first 2 of 3 tokens are stored"
    assert (found.tokens, found.bytes) == (3, 0)


def test_mistakes_change_nothing(on: Framework) -> None:
    pair = Pair(on, ["kv"])
    pair.check_mistakes()
    refuses("checkpoints", pair.ours.begin, [1, 2], [1])
    assert pair.run([1, 2, 3, 4, 5, 6]) == 5


def test_the_layers_are_those_given(on: Framework) -> None:
    pair = Pair(on, ["kv", None])
    assert pair.ours.layers is pair.world.layers
    assert pair.ours.count_bytes() == 0
