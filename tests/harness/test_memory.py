"""What caches hold stays within what their contents need, and is given back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend, Kind, list_unchecked
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.memory import Need
from lockstep.harness.contracts.system import WEIGHED
from lockstep.harness.core.errors import Broken, Unloadable
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import check_declaration, load
from tests.harness.building import FRAMEWORKS, KINDS, draw_some, make, update
from tests.harness.changing import STORING, change_caches
from tests.harness.misbehaving import PLAIN, Array, Cache, declare

Told = dict[str, Any]

ITEM = 32
"""Bytes of K and V of a token: 8 numbers."""


class TellingCache(Cache):
    """A full cache that tells what it holds."""

    def held(self) -> Any:
        arrays = [array for array in (self.keys, self.values) if array is not None]
        return {"bytes": sum(array.nbytes for array in arrays)}

    def free(self) -> None:
        self.keys = self.values = None

    def clone(self) -> Any:
        other = type(self)()
        other.keys, other.values = self.keys, self.values
        return other


class Leaking(TellingCache):
    """Keeps the arrays of each update."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Array] = []

    def update(self, keys: Array, values: Array) -> Any:
        pair = super().update(keys, values)
        self.kept += pair
        return pair

    def free(self) -> None:
        super().free()
        self.kept.clear()

    def held(self) -> Any:
        return {"bytes": sum(array.nbytes for array in self.kept)}


class NeverFreed(TellingCache):
    """Keeps one token's memory when it is freed."""

    room = 0

    def free(self) -> None:
        super().free()
        self.room = ITEM

    def held(self) -> Any:
        return {"bytes": max(self.room, super().held()["bytes"])}


OPERATIONS = frozenset({"update", "state", "trim", "clone", "free", "close"})


def open_backend(cache: Callable[[], Any], held: float | None = 1) -> Backend:
    kinds = {"layer": {"kv": Kind(OPERATIONS, PLAIN, held=held)}}
    return replace(declare(cache), contracts=kinds)


def find(program: Program, backend: Backend, every: bool = False) -> Any:
    return run(program, backend, every=every).divergence


UPDATES = make(*[update(1)] * 6, heads=1, key_dim=4, value_dim=4, step=1)


def test_a_cache_that_holds_its_tokens_agrees() -> None:
    backend = open_backend(TellingCache)
    declared = backend.contracts["layer"]["kv"]
    for number, program in enumerate(draw_some(100, "layer", "kv", declared)):
        assert find(program, backend, every=number % 2 == 0) is None


def test_memory_that_grows_is_found_at_once_with_every_check_and_else_soon() -> None:
    divergence = find(UPDATES, open_backend(Leaking), every=True)
    assert (divergence.what, divergence.step) == ("memory", 2)
    assert divergence.get_signature(UPDATES) == "layer-kv-held-memory"
    assert divergence.message == (
        "the caches hold 192 bytes, allowed 128: 1 times the sum of 96 for their"
        " contents and 32 for growth"
    )
    divergence = find(UPDATES, open_backend(Leaking))
    assert (divergence.what, divergence.step) == ("memory", WEIGHED - 1)
    short = replace(UPDATES, ops=UPDATES.ops[: WEIGHED - 1])
    divergence = find(short, open_backend(Leaking))
    assert (divergence.what, divergence.step) == ("memory", WEIGHED - 2), "at the end"


def test_the_factor_is_the_declared_one() -> None:
    assert find(UPDATES, open_backend(Leaking, 3), every=True) is None
    assert find(UPDATES, open_backend(Leaking, 2.9), every=True) is not None


def test_a_cache_may_keep_the_room_that_it_once_needed() -> None:
    """But not after it was freed."""

    class Roomy(TellingCache):
        most = 0

        def held(self) -> Any:
            self.most = max(self.most, super().held()["bytes"])
            return {"bytes": self.most}

    trim, free = {"op": "trim", "count": 6}, {"op": "free"}
    assert find(make(update(6), trim, update(1), step=1), open_backend(Roomy)) is not None
    backend = open_backend(Roomy)
    kept = replace(
        backend, contracts={"layer": {"kv": Kind(OPERATIONS - {"free"}, PLAIN, held=1)}}
    )
    assert find(make(update(6), trim, update(1), step=1), kept) is None
    assert find(make(update(6), free, update(1), step=1), backend, True).step == 1


def test_what_is_left_after_a_free_is_found() -> None:
    divergence = find(make(update(3)), open_backend(NeverFreed))
    assert divergence.what == "memory"
    assert divergence.message == (
        "after everything was closed and freed, the caches hold 32 bytes; as many new"
        " caches hold 0"
    )


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"bytes": 0}, "report 0 bytes, but their contents take at least 32"),
        ({"bytes": ITEM, "snapshots": 1}, "report 1 snapshots; expected 0"),
        (None, "held returned None"),
        ({"snapshots": 0}, "held returned"),
        ({"bytes": -1}, "held returned"),
        ({"bytes": 1.5}, "held returned"),
        ({"bytes": 1, "pages": 2}, "for bytes, snapshots, blocks"),
    ],
)
def test_what_cannot_be_true_is_found(told: Any, words: str) -> None:
    """The first answer, of the fresh cache, is right."""

    class Telling(TellingCache):
        def held(self) -> Any:
            return super().held() if self.keys is None else told

    assert words in find(make(update(1)), open_backend(Telling), every=True).message


def test_what_must_be_there_is_allowed() -> None:
    need = Need(10, growth=2, least=5, counts={"blocks": 1})
    need.check({"bytes": 24, "blocks": 1}, 2)
    need.check({"bytes": 5}, 1)
    for told in ({"bytes": 25}, {"bytes": 4}, {"bytes": 24, "blocks": 2}):
        with pytest.raises(Broken):
            need.check(told, 2)


BATCHES = CONTRACTS["batched"].kinds

# --- every kind of ours -----------------------------------------------------------------


def more_bytes(told: Told) -> Told:
    return {**told, "bytes": 100 * told["bytes"] + (told["bytes"] > 0) * 100_000}


def one_more(told: Told) -> Told:
    counted = {name: number + 1 for name, number in told.items() if name != "bytes"}
    return {**told, **counted}


def spoil(backend: Backend, change: Callable[[Told], Told]) -> Backend:
    """The backend, whose caches tell something else than they hold."""

    def tell(cache: Any) -> None:
        held = cache.held
        cache.held = lambda: change(held())

    return change_caches(backend, tell, *STORING)


WATCHED = [pair for pair in KINDS if pair[0] != "paged"]
"""A paged cache tells its pool, which is checked block by block."""


@pytest.mark.parametrize("change", [more_bytes, one_more])
@pytest.mark.parametrize(("number", "pair"), [*enumerate(WATCHED)], ids=str)
def test_every_cache_of_ours_is_watched(
    number: int, pair: tuple[str, str], change: Callable[[Told], Told]
) -> None:
    """On one framework or the other, since what they tell is counted by the same code."""
    contract, kind = pair
    framework = FRAMEWORKS[number % len(FRAMEWORKS)]
    pytest.importorskip(framework)
    backend = load(f"{framework}-cpu")
    declared = backend.contracts[contract][kind]
    if change is one_more and kind in ("encoder", "wrapper", *BATCHES):
        pytest.skip("counts bytes only")
    spoiled = spoil(backend, change)
    programs = draw_some(20, contract, kind, declared)
    found = [find(program, spoiled, every=True) for program in programs]
    assert {divergence.what for divergence in found if divergence} == {"memory"}


@pytest.mark.parametrize(
    "ops",
    [
        # The state is freed before it is looked at what the full cache returned.
        [{"op": "open", "rows": 1}, {"op": "update", "length": 1}, {"op": "state"}],
        # A single list takes the name of a batch.
        [{"op": "open", "rows": 1}, {"op": "clone", "cache": "b", "into": "a"}],
    ],
)
def test_a_correct_list_is_not_blamed_at_the_end(ops: Any) -> None:
    caches = [{"kind": "batch-state"}, {"kind": "batch-kv"}]
    program = make(*ops, contract="batched", kind="batch-list", caches=caches)
    assert find(program, load("torch-cpu")) is None


def test_a_refused_free_gives_no_memory_back() -> None:
    ops = [
        {"op": "begin", "tokens": [1] * 5},
        {"op": "feed", "count": 5},
        {"op": "free"},
        {"op": "close"},
    ]
    more = {"layers": ["rotating:1"], "step": 1}
    program = make(*ops, contract="prefix", kind="session", **more)
    assert find(program, load("torch-cpu"), every=True) is None


# --- the declaration --------------------------------------------------------------------


def test_a_kind_that_does_not_tell_is_listed() -> None:
    backend = open_backend(TellingCache, None)
    assert "memory held" in list_unchecked(backend, backend.contracts["layer"]["kv"])
    backend = open_backend(TellingCache)
    assert "memory held" not in list_unchecked(backend, backend.contracts["layer"]["kv"])


@pytest.mark.parametrize("held", [0.5, -1, "all", float("nan")])
def test_a_factor_is_a_number_of_at_least_one(held: Any) -> None:
    with pytest.raises(Unloadable, match="held="):
        check_declaration(open_backend(TellingCache, held), "")


def test_a_kind_that_tells_has_the_method() -> None:
    kinds = {"layer": {"kv": Kind(frozenset({"update"}), PLAIN, held=1)}}
    with pytest.raises(Unloadable, match="no method held"):
        check_declaration(replace(declare(Cache), contracts=kinds), "")
