"""Ranks that share out the tokens of full groups, and have all of other groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.paged import PAGED
from lockstep.harness.contracts.paged.contents import RANK, locate
from lockstep.harness.contracts.paged.reading import read_slots
from lockstep.harness.core.errors import Broken
from lockstep.harness.execution.executor import run
from lockstep.impl.shared.operations import PAGED_OPERATIONS
from lockstep.impl.torch.backend import cpu
from tests.harness.building import draw_some
from tests.harness.paging import RUN, TOLD, Manager, ask, declare, make, open_request

FULL = {"type": "full", "block": 4, "layers": 1}
SLIDING = {"type": "sliding", "block": 2, "width": 3, "layers": 1}
STATE = {"type": "state", "block": 2, "layers": 1}
TWO = {"groups": [FULL, SLIDING, STATE], "ranks": 2, "blocks": 24}
STEPS = (
    *(open_request("a", 1, 2, 3, 4, 5, 6), ask("schedule", "a", count=3), RUN),
    *(ask("schedule", "a"), RUN),
)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ranks": 1, "interleave": 2}, "one rank has no interleave"),
        ({"ranks": 3}, "divide the block of every full group, but 3 · 1 does not div"),
        ({"interleave": 4}, "divide the block of every full group, but 2 · 4 does not"),
        ({"kind": "paged-sliding", "groups": [SLIDING]}, "only groups of the type full"),
        ({"data": "backend"}, 'set data to "tags"'),
        (
            {"kind": "paged-full", "groups": [FULL], "trees": True, "lookahead": 2},
            "set trees to false",
        ),
    ],
)
def test_what_ranks_cannot_share_out(fields: Any, words: str) -> None:
    config = make(**TWO).config
    assert PAGED.why_illegal(config) is None
    reason = PAGED.why_illegal({**config, **fields})
    assert reason is not None and reason.startswith("ranks: ") and words in reason


def test_a_position_has_a_slot_on_each_rank_that_stores_it() -> None:
    config = make(**TWO).config
    found = [locate(config, [7, 8, 9], 0, position, 6) for position in range(5)]
    assert found == [[(7, 0)], [(7, RANK)], [(7, 1)], [(7, RANK + 1)], [(8, 0)]]
    assert locate(config, [7, 8, 9], 1, 3, 6) == [(8, 1), (8, RANK + 1)]
    assert locate(config, [7, 8, 9], 2, 3, 6) == [(8, 0)]


def test_what_our_cache_tells() -> None:
    """Of positions 3 to 5; a block of the full group has two slots on each rank."""
    cache = Manager(make(**TWO).config)
    cache.open("a", [1, 2, 3, 4, 5, 6])
    cache.schedule("a", 3)
    cache.run()
    cache.schedule("a", 3)
    (first, second), (*_, third, fourth), _ = cache.tables("a")
    windowed = [2 * third + 1, 2 * fourth, 2 * fourth + 1]
    full = [None, 2 * second, None], [2 * first + 1, None, 2 * second]
    assert cache.slots("a") == [[one, windowed, []] for one in full]


class SharesWindows(Manager):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for group in self.groups:
            group.ranks = self.ranks


class TakesTurns(Manager):
    """Ignores the interleave."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for group in self.groups:
            group.interleave = 1


class OneRank(Manager):
    """The second rank stores what the first rank stores."""

    def slots(self, request: str) -> Any:
        return [super().slots(request)[0]] * self.ranks


class WholeBlocks(Manager):
    """A block has as many slots on each rank as on one rank."""

    def slots(self, request: str) -> Any:
        return [
            [[None if at is None else at // 2 * 4 + at % 2 for at in full], *others]
            for full, *others in super().slots(request)
        ]


@pytest.mark.parametrize(
    ("cache", "words"),
    [
        (SharesWindows, "position 1 holds token 0 of group 1 on rank 0, not token 1"),
        (TakesTurns, "position 1 holds token 2, not token 1"),
        (OneRank, "position 2 holds token 0, not token 2"),
        (WholeBlocks, "position 4 holds nothing (block 5 on rank 0), not token 4"),
    ],
)
def test_wrong_slots_are_found(cache: type[Manager], words: str) -> None:
    program = make(*STEPS, **TWO, interleave=2)
    assert run(program, declare(), every=True).divergence is None
    divergence = run(program, declare(cache), every=True).divergence
    assert divergence is not None
    assert divergence.what == "contents" and words in divergence.message
    silent = declare(cache, tells=TOLD - {"slots"})
    assert run(program, silent, every=True).divergence is None


AGAIN = (
    *(ask("accept", "a", sampled=7), ask("free", "a", reuse=True)),
    *(open_request("b", 1, 2, 3, 4, 5, 6, 8), ask("schedule", "b"), RUN),
)


@pytest.mark.parametrize("more", [{}, {"flight": 1}, {"host": 8}])
def test_what_is_hit_lies_on_all_ranks(more: Any) -> None:
    ops: Sequence[Op] = (*STEPS, *AGAIN)
    if more.get("flight"):
        pairs = [{"op": "launch"}, {"op": "finish"}]
        ops = [op for step in ops for op in (pairs if step == RUN else [step])]
    if more.get("host"):
        saved = ask("offload", "a", transfer="t"), {"op": "landed", "transfer": "t"}
        gone: Sequence[Op] = ({"op": "evict", "count": 64},)
        loaded = ask("load", "b", transfer="t"), {"op": "landed", "transfer": "t"}
        ops = (*STEPS, *saved, *AGAIN[:2], *gone, AGAIN[2], *loaded, *AGAIN[3:])
    tells = {*TOLD, "host_entries", "reuse"}
    program = make(*ops, **TWO, **more)
    result = run(program, declare(tells=frozenset(tells)), every=True)
    assert result.divergence is None
    assert result.comparisons.compared["slots"] == 3


@pytest.mark.parametrize(
    "slots",
    [
        *(None, [], [[[0], [0]]], [[[0], [0]]] * 3, [[[0]]] * 2, [[[0], [0, 1]]] * 2),
        *([[["0"], [0]]] * 2, [[[], [0]]] * 2),
    ],
)
def test_malformed_slots_are_rejected(slots: Any) -> None:
    config = make(groups=[FULL, SLIDING], ranks=2).config
    assert read_slots([[[5], [4]], [[None], [4]]], config, 1) == [
        [[(2, 1)]],
        [[(2, 0), (2, RANK)]],
    ]
    with pytest.raises(Broken) as broken:
        read_slots(slots, config, 1)
    assert broken.value.what == "malformed"


@pytest.mark.parametrize("kind", ["paged-full", "paged-hybrid", "paged-state"])
def test_ranks_are_drawn_where_they_are_declared(kind: str) -> None:
    declared = cpu().contracts["paged"][kind]
    met, count = Counter[str](), 200
    for program in draw_some(count, "paged", kind, declared):
        assert PAGED.why_illegal(program.config) is None
        met["ranks"] += program.config["ranks"] > 1
        met["interleave"] += program.config["interleave"] > 1
    rarely = 0 if kind == "paged-state" else count // 200
    assert min(met.values()) >= rarely and (rarely or not met.total())
    for program in draw_some(20, "paged", kind, Kind(PAGED_OPERATIONS)):
        assert program.config["ranks"] == program.config["interleave"] == 1
