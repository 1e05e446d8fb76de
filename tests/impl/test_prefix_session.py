"""The session on our layers, beside the reference, and what it promises."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from frameworks import INSTALLED, Framework
from prefix_layers import Drawing, Spec, World

from lockstep.impl.prefix.session import Session
from lockstep.reference import session as reference

PROGRAMS = int(os.environ.get("PREFIX_PROGRAMS", "40"))
FIRST = int(os.environ.get("PREFIX_FIRST", "0"))


@pytest.fixture(scope="module", params=INSTALLED)
def on(request: pytest.FixtureRequest) -> Framework:
    return Framework(request.param)


class Pair:
    """A session of ours and one of the reference, which see the same requests."""

    def __init__(self, on: Framework, specs: Sequence[Spec]) -> None:
        self.world = World(on, specs)
        self.ours = Session(self.world.layers)
        self.right = reference.Session(self.world.make_reference(), self.world.tags)

    def begin(
        self, tokens: list[int], refusing: Sequence[int] = (), failing: bool = False
    ) -> list[int]:
        for number in refusing:
            layer = self.world.layers[number]
            if layer is not None:
                layer.refuses, layer.fails = not failing, failing
        left = self.ours.begin(tokens)
        for one in self.world.cached:
            one.refuses = one.fails = False
        assert left == self.right.begin(tokens, refusing)
        self.world.check_layers(tokens[: len(tokens) - len(left)])
        self.check()
        return left

    def feed(self, count: int, layers: int | None = None) -> None:
        request, begin = self.right.get_request(), self.right.computed
        self.world.feed(request, begin, begin + count, layers)
        self.right.feed(count, layers)
        self.check()

    def extend(self, tokens: list[int]) -> None:
        self.ours.extend(tokens)
        self.right.extend(tokens)

    def close(self, cancel: bool = False) -> None:
        stored = self.ours.cancel() if cancel else self.ours.close()
        assert stored == self.right.close()
        self.check()

    def run(self, tokens: list[int]) -> int:
        """A whole request; how much was reused."""
        left = self.begin(tokens)
        self.feed(len(left))
        self.close()
        return len(tokens) - len(left)

    def check(self) -> None:
        offsets = [layer and layer.offset for layer in self.world.layers]
        assert offsets == [layer and layer.offset for layer in self.right.layers]
        assert self.ours.count_tokens() == len(self.right.stored)
        assert self.ours.stored == self.right.stored
        assert not any(layer.open for layer in self.world.cached)


def draw_request(draw: Drawing, pair: Pair) -> None:
    """One request, in updates of any length, which may break off anywhere."""
    pick, numbers = draw.random, range(len(pair.world.layers))
    refusing = [n for n in numbers if draw.chance(0.3)] if draw.chance(0.15) else []
    pair.begin(draw.request(), refusing, draw.chance(0.5))
    for _ in range(pick.randint(0, 4)):
        request = pair.right.get_request()
        left = len(request) - pair.right.computed
        if left:
            pair.feed(left if draw.chance(0.5) else pick.randint(1, left))
        if draw.chance(0.4):
            pair.extend(draw.generated(request))
    left = len(pair.right.get_request()) - pair.right.computed
    if left and draw.chance(0.3):
        pair.feed(pick.randint(1, left), pick.choice(numbers))
    draw.seen.append(list(pair.right.get_request()))
    pair.close(cancel=draw.chance(0.3))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + PROGRAMS))
def test_it_answers_what_the_reference_answers(on: Framework, seed: int) -> None:
    draw = Drawing(seed)
    pair = Pair(on, draw.specs())
    for _ in range(20):
        draw_request(draw, pair)
        if draw.chance(0.03):
            pair.ours.free()
            pair.right.free()
            pair.check()


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


@pytest.mark.parametrize("tokens", [[], [1, True], [1, 2.0], [None], ["a"]])
def test_a_request_is_a_list_of_integers(on: Framework, tokens: Any) -> None:
    pair = Pair(on, ["kv"])
    pair.run([1, 2, 3])
    with pytest.raises(ValueError, match=r"token|empty"):
        pair.ours.begin(tokens)
    assert pair.run([1, 2, 3, 4]) == 3


def test_mistakes_change_nothing(on: Framework) -> None:
    pair = Pair(on, ["kv"])
    pair.run([1, 2, 3])
    for call in (pair.ours.close, pair.ours.cancel, lambda: pair.ours.extend([1])):
        with pytest.raises(ValueError, match="no request is open"):
            call()
    with pytest.raises(ValueError, match="checkpoints"):
        pair.ours.begin([1, 2], [1])
    pair.begin([1, 2, 3, 4])
    for call in (pair.ours.free, lambda: pair.ours.begin([1])):
        with pytest.raises(ValueError, match="a request is open"):
            call()
    with pytest.raises(ValueError, match="'x' at place 1"):
        pair.ours.extend([5, "x"])  # type: ignore[list-item]
    pair.feed(1)
    pair.close()
    assert pair.run([1, 2, 3, 4, 5]) == 4


def test_the_layers_are_those_given(on: Framework) -> None:
    pair = Pair(on, ["kv", None])
    assert pair.ours.layers is pair.world.layers
    assert pair.ours.count_bytes() == 0
