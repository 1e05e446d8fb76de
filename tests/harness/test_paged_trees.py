"""Trees of drafts: configs, calls that are not a tree, moved slots, and the mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.paged import PAGED
from lockstep.harness.execution.executor import run
from lockstep.impl.shared.errors import MisuseError
from lockstep.impl.torch.backend import cpu
from tests.harness import paging
from tests.harness.paging import FULL, RUN, Manager, ask, declare, open_request

BLOCK = {**FULL, "block": 2}
SLIDES = {"kind": "paged-sliding", "groups": [{**BLOCK, "type": "sliding", "width": 2}]}
TREES = {"trees": True, "lookahead": 5}

make = partial(paging.make, groups=[BLOCK, BLOCK], **TREES)


def accept(*drafts: int, parents: Sequence[int] = (), kept: int = 0) -> Op:
    fields = {"drafts": [*drafts], "parents": [*parents], "kept": kept}
    return ask("accept", "a", sampled=9, **fields)


STEP = ask("schedule", "a"), RUN
BRANCHES = accept(3, 4, 5, 6, parents=[0, 0, 2, 3])
BEGUN = open_request("a", 1, 2), *STEP, BRANCHES, *STEP
PATH = (*BEGUN, accept(kept=4), *STEP)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (TREES, None),
        ({**TREES, "lookahead": 0}, "trees needs drafts; set lookahead to 1 or more"),
        ({**SLIDES, **TREES}, "trees needs groups of the type full only"),
    ],
)
def test_trees_need_drafts_and_full_groups(config: Any, why: str | None) -> None:
    assert PAGED.why_illegal({**make().config, **config}) == why


def test_a_backend_without_trees_gets_no_parents() -> None:
    class Chains(Manager):
        def accept(self, *fields: Any) -> Any:
            assert len(fields) == 4
            return super().accept(*fields)

    program = paging.make(*BEGUN, *STEP, lookahead=5)
    result = run(program, declare(Chains))
    assert result.divergence is None
    assert result.why_skipped == "the config has no trees"


# --- mistakes ---------------------------------------------------------------------------


def move(change: Callable[[Any], Any]) -> type[Manager]:
    """A cache that tells other moves than it should."""

    class Moving(Manager):
        def accept(self, *fields: Any) -> Any:
            return change(super().accept(*fields))

    return Moving


class Lenient(Manager):
    """Takes drafts whose parents it should refuse, as a chain."""

    def accept(self, *fields: Any) -> Any:
        try:
            return super().accept(*fields)
        except MisuseError:
            return super().accept(*fields[:4])


WRONG: dict[str, tuple[type[Manager], str]] = {
    "none": (move(lambda moves: None), "contents: position 3 of request a, group 0"),
    "of the first group": (move(lambda moves: moves[::2]), "contents: position 3 of re"),
    "in another order": (move(lambda moves: moves[::-1]), "contents: position 3 of re"),
    "from empty slots": (
        move(lambda moves: [(11, 0, *to) for _, _, *to in moves]),
        "contents: position 3 of request a, group 0, is nothing",
    ),
    "of three numbers": (
        move(lambda moves: [move[:3] for move in moves]),
        "malformed: accept returned [3, 0, 2], not a list of 4",
    ),
    "of names": (
        move(lambda moves: [("x", 0, 1, 1)]),
        "malformed: accept has x, not a block",
    ),
    "not a list": (move(lambda moves: 7), "malformed: accept"),
}


@pytest.mark.parametrize("name", WRONG)
def test_kept_drafts_lie_in_the_slots_of_their_positions(name: str) -> None:
    cache, words = WRONG[name]
    assert run(make(*PATH), declare()).divergence is None
    divergence = run(make(*PATH), declare(cache, tells=frozenset())).divergence
    assert divergence is not None
    assert f"{divergence.what}: {divergence.message}".startswith(words)
    assert divergence.step == (3 if name in ("of names", "not a list") else 6)


@pytest.mark.parametrize("parents", [[0, 2], [-1, 0], [0], [0, 1, 1]])
def test_what_is_no_tree_is_refused(parents: Sequence[int]) -> None:
    program = make(*BEGUN[:3], accept(3, 4, parents=parents))
    assert run(program, declare()).divergence is None
    divergence = run(program, declare(Lenient)).divergence
    assert divergence is not None
    assert divergence.message == "did not refuse; expected usage"


# --- the mask ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["torch", "mlx"])
def test_a_draft_sees_no_sibling(name: str) -> None:
    if name == "mlx":
        backend = pytest.importorskip("lockstep.impl.mlx.backend").cpu()
    else:
        backend = cpu()
    result = run(make(*PATH, data="backend"), backend, every=True)
    assert result.divergence is None
