"""The promise that requests reuse what they can: by hand, and with mistakes planted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.paged import Entry
from lockstep.harness.contracts.paged.checks import check_published, find_longest
from lockstep.harness.core.errors import Broken
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import walk
from lockstep.impl.shared.paged_groups import StateGroup
from lockstep.impl.torch.backend import cpu
from tests.harness.paging import GROUPS, TOLD, Manager, declare, make

FULL = {"type": "full", "block": 4, "layers": 1}
SLIDING = {"type": "sliding", "block": 2, "width": 3, "layers": 1}
CHUNKED = {"type": "chunked", "block": 2, "width": 4, "layers": 1}
STATE = {"type": "state", "block": 2, "layers": 1}

TOKENS = [1, 2, 3, 4, 5, 6, 7, 8, 9]
WAITS = ({"op": "open", "request": "a", "tokens": TOKENS},)
RUNS = (*WAITS, {"op": "schedule", "request": "a"}, {"op": "run"})


def reach(groups: Sequence[Any], *ops: Mapping[str, Any], **config: Any) -> Any:
    """Returns the reference after a program without a backend."""
    [*_, last] = walk(make(*ops, groups=list(groups), **config))
    return last.model


def make_entries(*ends: tuple[int, int]) -> list[Entry]:
    """Makes entries for the first tokens: (group, how many)."""
    return [
        Entry(group, None, TOKENS[:end], number)
        for number, (group, end) in enumerate(ends)
    ]


@pytest.mark.parametrize(
    ("groups", "config", "ends", "longest"),
    [
        ([FULL], {}, [], 0),
        ([FULL], {}, [4, 8], 8),
        ([FULL], {}, [8], 0),  # the first block is not there
        ([FULL], {"hash_block": 2}, [2, 4, 6], 6),  # one block in part
        ([FULL], {"hash_block": 2}, [2, 6], 2),
        ([FULL], {"prefix_cache": False}, [4, 8], 0),
        ([FULL], {"drop_last": True}, [4, 8], 4),
        ([FULL], {"drop_last": True}, [4], 0),
        ([SLIDING], {}, [8], 8),  # the token after 8 needs positions 6 and 7
        ([SLIDING], {}, [4], 4),
        ([{**SLIDING, "width": 4}], {}, [8], 0),  # and 5, which is in the block before
        ([{**SLIDING, "width": 4}], {}, [6, 8], 8),
        ([CHUNKED], {}, [], 8),  # a chunk begins: nothing is needed
        ([CHUNKED], {"drop_last": True}, [6], 6),
        ([STATE], {}, [4], 4),
        ([STATE], {}, [2, 8], 8),
    ],
)
def test_the_longest_hit(
    groups: Any, config: Any, ends: Sequence[int], longest: int
) -> None:
    model = reach(groups, *WAITS, **config)
    entries = make_entries(*((0, end) for end in ends))
    assert find_longest(model, model.cache.requests["a"], entries) == longest


def test_all_groups_must_have_a_hit() -> None:
    model = reach([{**FULL, "block": 2}, STATE], *WAITS)
    request = model.cache.requests["a"]
    entries = make_entries((0, 2), (0, 4), (0, 6), (1, 4), (1, 8))
    assert find_longest(model, request, entries) == 4
    other = [entry._replace(namespace="x") for entry in entries]
    assert find_longest(model, request, other) == 0


@pytest.mark.parametrize(
    ("group", "config", "ends"),
    [
        (FULL, {}, [4, 8]),
        (FULL, {"hash_block": 2}, [2, 4, 6, 8]),
        (SLIDING, {}, [8]),  # what lies before position 7 is not needed any more
        (CHUNKED, {}, []),
        (STATE, {}, [8]),
        (FULL, {"prefix_cache": False}, []),
    ],
)
def test_what_a_step_must_publish(group: Any, config: Any, ends: Sequence[int]) -> None:
    model = reach([group], *RUNS, **config)
    entries = make_entries(*((0, end) for end in ends))
    ran = [part[:3] for part in model.ran]
    check_published(model, ran, entries)
    for entry in entries:
        others = [one for one in entries if one is not entry]
        with pytest.raises(Broken) as caught:
            check_published(model, ran, others)
        assert str(caught.value) == (
            "request a has computed 9 tokens, but there is no entry for its first"
            f" {len(entry.tokens)} in group 0 ({group['type']})"
        )


def test_drafts_are_published_once_they_are_kept() -> None:
    drafted = {"op": "accept", "request": "a", "sampled": 10, "drafts": [11, 12]}
    kept = {"op": "accept", "request": "a", "kept": 2, "sampled": 13}
    steps = ({"op": "schedule", "request": "a"}, {"op": "run"})
    model = reach([FULL], *RUNS, drafted, *steps, lookahead=2)
    known, ran = make_entries((0, 4), (0, 8)), [part[:3] for part in model.ran]
    check_published(model, ran, known)  # 12 tokens, of which two are guesses
    model = reach([FULL], *RUNS, drafted, *steps, kept, lookahead=2)
    with pytest.raises(Broken, match="no entry for its first 12"):
        check_published(model, [("a", 10, 12)], known)
    twelfth = Entry(0, None, [*TOKENS, 10, 11, 12], 7)
    check_published(model, [("a", 10, 12)], [*known, twelfth])


def test_a_refused_call_computes_nothing() -> None:
    """Nothing new must be there after it."""
    accept = {"op": "accept", "request": "a", "sampled": 1, "kept": 1}
    program = make(
        *({"op": "open", "request": "a", "tokens": [1, 2]}, accept),
        groups=[{**STATE, "block": 3}],
    )
    assert run(program, cpu()).divergence is None


# --- with mistakes planted --------------------------------------------------------------


class Forgetful(Manager):
    """Never lets anything be hit."""

    def settle(self, request: Any) -> None:
        pass


class Late(Manager):
    """Reuses one block less than it could."""

    def match(self, request: str) -> int:
        return max(0, super().match(request) - self.unit)


def promise(cache: type[Manager]) -> Backend:
    """Declares a cache that reuses all it can."""
    return declare(cache, tells=TOLD | {"reuse"})


@pytest.mark.parametrize(("cache", "step"), [(Manager, None), (Forgetful, 2), (Late, 5)])
def test_a_cache_that_reuses_too_little(cache: type[Manager], step: int | None) -> None:
    again = ({"op": "open", "request": "b", "tokens": TOKENS},)
    ops = (*RUNS, {"op": "free", "request": "a"}, *again)
    program = make(
        *ops,
        {"op": "match", "request": "b"},
        groups=GROUPS[0],
    )
    found = run(program, promise(cache)).divergence
    assert (found.step if found else None) == step
    assert found is None or found.what == "reuse"


class Hasty(Manager):
    """Evicts what can be hit while other blocks are free."""

    def schedule(self, name: str, count: int) -> Any:
        self.blocks.evict(1)
        return super().schedule(name, count)


class Tidy(Manager):
    """Forgets what a request computed when it ends."""

    def free(self, name: str, reuse: bool) -> None:
        super().free(name, reuse=False)


WINDOW = {"type": "sliding", "width": 3, "block": 2, "layers": 1}


@pytest.mark.parametrize("groups", [GROUPS[0], [{**FULL, "block": 2}, WINDOW]])
@pytest.mark.parametrize(
    ("cache", "operation"), [(Manager, None), (Hasty, "schedule"), (Tidy, "free")]
)
def test_an_entry_goes_only_for_want_of_room(
    cache: type[Manager], operation: str | None, groups: Any
) -> None:
    ops = []
    for token in range(1, 4):  # blocks must have served both groups
        opened = {"op": "open", "request": "a", "tokens": [token] * 8}
        scheduled = {"op": "schedule", "request": "a"}
        ops += [opened, scheduled, {"op": "run"}, {"op": "free", "request": "a"}]
        ops += [{"op": "evict", "count": 2}, {"op": "reset"}] * (token < 3)
    program = make(*ops, ops[0], ops[1], groups=groups, blocks=16)
    assert run(program, declare(cache)).divergence is None
    found = run(program, promise(cache)).divergence
    assert (found.operation if found else None) == operation
    assert found is None or "is gone, and" in found.message


def test_a_full_pool_may_drop_entries() -> None:
    opened = [
        {"op": "open", "request": name, "tokens": [number + 1] * 8}
        for number, name in enumerate("abc")
    ]
    ops = [
        op
        for one in opened
        for op in (
            one,
            {"op": "schedule", "request": one["request"]},
            {"op": "run"},
            {"op": "free", "request": one["request"]},
        )
    ]
    result = run(make(*ops, groups=GROUPS[0], blocks=6), promise(Manager))
    assert (result.skipped, result.divergence) == (0, None)


def test_a_request_goes_back_to_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing further back is needed for that, of whatever type a group is."""
    back = {"op": "rewind", "request": "a", "to": 9, "tokens": [5]}
    program = make(*RUNS, back, groups=[STATE])
    assert run(program, cpu()).divergence is None
    monkeypatch.setattr(StateGroup, "can_go_back", lambda *_: False)
    found = run(program, cpu()).divergence
    assert found is not None and found.step == 3
