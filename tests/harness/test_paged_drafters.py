"""Groups that a step may leave out, such as the layers of a drafter, and drafts of
requests with states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts.operation import Op
from lockstep.harness.contracts.paged import PAGED
from lockstep.harness.contracts.paged.contents import list_state_positions, locate
from lockstep.harness.contracts.paged.rewrites import propose_configs
from lockstep.harness.contracts.paged.states import list_features
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Program, trace, walk
from lockstep.impl.shared.operations import PAGED_OPERATIONS
from lockstep.impl.shared.paged_groups import StateGroup
from lockstep.impl.torch.backend import cpu
from tests.harness.building import draw_some
from tests.harness.paging import (
    RUN,
    TOLD,
    Manager,
    ask,
    declare,
    fork,
    make,
    open_request,
)

FULL = {"type": "full", "block": 2, "layers": 1}
STORES = {"data": "backend", "dtype": "float32", "key_dim": 4, "value_dim": 4}

# --- groups that lag --------------------------------------------------------------------

LAGS = {**FULL, "lags": True}
GROUPS = [FULL, LAGS]
LEAVE: Op = {"op": "run", "lags": True}
BEHIND = (
    *(open_request("a", 1, 2, 3, 4, 5, 6), ask("schedule", "a", count=2), RUN),
    *(ask("schedule", "a", count=2), LEAVE, ask("schedule", "a"), RUN),
)
"""The second group has the first two tokens of six."""


def test_only_full_groups_lag_and_never_all() -> None:
    config = make(groups=GROUPS, lags=True).config
    assert PAGED.why_illegal({**config, "groups": [LAGS]}) == "a group must not lag"
    undeclared = PAGED.why_illegal({**config, "lags": False})
    assert undeclared == "a group with lags needs lags in the config"
    for wrong in ({**LAGS, "type": "state"}, {**LAGS, "type": "sliding", "width": 2}):
        with pytest.raises(UsageError, match="groups"):
            make(groups=[FULL, wrong])
    program = make(open_request("a", 1), ask("schedule", "a"), LEAVE)
    assert trace(program)[-1] == {"skipped": "no group may lag"}
    simpler = [changed["groups"] for changed, _ in propose_configs(config, BEHIND)]
    assert [FULL, {**LAGS, "lags": False}] in simpler


def test_a_cache_is_told_if_a_group_may_lag() -> None:
    calls: list[Any] = []

    class Noting(Manager):
        def run(self, *arguments: Any) -> None:
            calls.append(arguments)
            super().run(*arguments)

    for groups, ops in (GROUPS, BEHIND), ([FULL], BEHIND[:3]):
        program = make(*ops, groups=groups, lags=groups is GROUPS)
        assert run(program, declare(Noting)).divergence is None
    assert calls == [(False,), (True,), (False,), ()]


def test_layers_of_a_group_that_is_left_out_are_not_called() -> None:
    """Our cache stores K and V; its memory is NaN, and later layers read layer 1."""
    updated: list[int] = []

    def open_noting(config: Mapping[str, Any]) -> Any:
        cache = cpu().open(config)
        update = cache.update
        cache.update = lambda layer, *pair: updated.append(layer) or update(layer, *pair)
        return cache

    program = make(*BEHIND, **STORES, reads=[1, 0], groups=GROUPS, lags=True)
    backend = replace(cpu(), open=open_noting)
    assert run(program, backend, every=True).divergence is None
    assert updated == [*(0, 1, 2, 3), *(0, 3), *(0, 1, 2, 3)]


class PublishesAll(Manager):
    def run(self, lags: bool = False) -> None:
        super().run()


class ForgetsLater(Manager):
    """The content after the left out tokens is published again."""

    def run(self, lags: bool = False) -> None:
        super().run(lags)
        if not lags:
            self.requests["a"].lost = 1 << 30


class HitsWithoutDrafter(Manager):
    def find_hit(self, groups: Any, request: Any) -> int:
        return super().find_hit([group for group in groups if not group.lags], request)


SAMPLED = (*(ask("accept", "a", sampled=7), ask("schedule", "a"), RUN),)
HIT = ask("free", "a"), open_request("b", 1, 2, 3, 4, 5, 6), ask("match", "b")


@pytest.mark.parametrize(
    ("cache", "ops", "what"),
    [
        (PublishesAll, BEHIND[:5], "hash"),
        (ForgetsLater, (*BEHIND, *SAMPLED, *SAMPLED), "hash"),
        (HitsWithoutDrafter, (*BEHIND, *HIT), "result"),
    ],
)
def test_a_hit_of_what_was_left_out_is_found(
    cache: type[Manager], ops: Sequence[Op], what: str
) -> None:
    program = make(*ops, groups=GROUPS, lags=True)
    assert run(program, declare()).divergence is None
    divergence = run(program, declare(cache)).divergence
    assert divergence is not None
    assert (divergence.what, divergence.step) == (what, len(ops) - 1)


# --- drafts beside states ---------------------------------------------------------------

STATE = {"type": "state", "block": 2, "layers": 1}
WITH_STATES = [[{**STATE, "block": block}] for block in (1, 2, 8)] + [[FULL, STATE]]
DRAFTED = (
    *(open_request("a", 1, 2, 3), ask("schedule", "a"), RUN),
    *(ask("accept", "a", sampled=4, drafts=[5, 6, 7]), ask("schedule", "a"), RUN),
)
"""Four tokens and three drafts, with a state after 4, 5, 6 and 7 of them."""


def draft(kept: int, groups: Sequence[Any]) -> Program:
    """A program that keeps drafts, and goes on for a step."""
    ops = ask("accept", "a", kept=kept, sampled=8), ask("schedule", "a"), RUN
    return make(*DRAFTED, *ops, groups=groups, lookahead=3, blocks=24)


def test_states_after_drafts_are_behind_that_of_the_last_token() -> None:
    [*_, last] = walk(make(*DRAFTED, groups=[STATE], lookahead=3))
    model, table = last.model, [None, 7, 8, 9, 6]
    assert list_state_positions(1, 7, 2, 4) == [1, 3, 4, 5, 6]
    assert list_state_positions(7, 7, 2, 4) == [3, 4, 5, 6]  # after the step
    assert list_state_positions(5, 5, 2, 6) == [4]  # after `accept`
    found = [locate(model.config, table, 0, position, 4) for position in range(8)]
    assert found == [[], [], *([(block, 0)] for block in (7, 7, 8, 9, 6)), []]
    assert model.count_blocks("a", 3, 7) == 3 + 3  # positions 2 to 6, and three drafts


class Copying(Manager):
    """Copies the states of kept drafts, and leaves the blocks in the table."""

    def confirm(self, request: Any, tables: Any, kept: int) -> None:
        length = len(request.tokens)
        for group, table in zip(self.groups, tables, strict=True):
            if isinstance(group, StateGroup) and request.computed > length:
                first = group.get_index(length, length) + 1
                drafts, table[first:] = table[first:], []
                for end, state in enumerate(drafts[:kept], length + 1):
                    index = (end - 1) // group.block
                    table += self.blocks.take(index + 1 - len(table))
                    self.copy(state, table[index])
                self.blocks.release(drafts)


@pytest.mark.parametrize("cache", [Manager, Copying])
@pytest.mark.parametrize("groups", WITH_STATES)
@pytest.mark.parametrize("kept", range(4))
def test_the_state_after_the_last_kept_draft_is_that_of_the_request(
    cache: type[Manager], groups: Sequence[Any], kept: int
) -> None:
    tells = TOLD | ({"reuse"} if cache is Manager else set())
    assert run(draft(kept, groups), declare(cache, tells=tells)).divergence is None


@pytest.mark.parametrize("groups", WITH_STATES)
@pytest.mark.parametrize("to", [4, 5, 6, 7])
def test_a_fork_and_a_rewind_take_drafts_as_tokens(
    groups: Sequence[Any], to: int
) -> None:
    go_on = ask("schedule", "a"), ask("schedule", "b"), RUN, ask("free", "a")
    ops = *DRAFTED, fork("a", "b", 9), ask("rewind", "a", to=to, tokens=[8, 9]), *go_on
    program = make(*ops, groups=groups, lookahead=3, blocks=24)
    assert run(program, declare()).divergence is None


def test_our_cache_stores_a_state_for_each_draft() -> None:
    """The state after n tokens is n."""
    config = make(groups=[STATE], lookahead=3, **STORES).config
    cache = cpu().open({**config, "poison": True})
    cache.open("a", [1, 2, 3], None)
    read = []
    for accepted, ends in (
        (None, [2, 3]),
        ((0, 4, [5, 6, 7]), [4, 5, 6, 7]),
        ((2, 8, [9]), [7, 8]),
        ((0, 9, []), [8]),
    ):
        if accepted:
            cache.accept("a", *accepted)
        cache.schedule("a", 9)
        read += [pair and pair[0][0, 0, 0, 0].item() for pair in cache.read_states(0)]
        assert cache.list_ends(0) == [ends]
        states = torch.tensor(ends).float()[None, None, :, None].expand(1, 1, -1, 4)
        cache.write_states(0, states, states)
        cache.run()
    assert read == [None, 3, 6, 7]


# --- programs ---------------------------------------------------------------------------


def list_events(program: Program) -> Iterator[str]:
    """Yields what programs must be declared for, and what their steps do to drafts."""
    has_states = any(group["type"] == "state" for group in program.config["groups"])
    if has_states and program.config["lookahead"]:
        yield "drafts"
    for step in walk(program):
        if step.op.get("lags"):
            yield "lags"
        request = step.model.cache.requests.get(step.op.get("request"))
        if has_states and step.op["op"] == "accept" and request and not step.skipped:
            yield "kept" if step.op["kept"] else ""
            yield "rejected" if step.op["kept"] < len(request.drafts) else ""


@pytest.mark.parametrize("kind", ["paged-full", "paged-state", "paged-hybrid"])
def test_what_is_declared_is_drawn_often_and_nothing_else(kind: str) -> None:
    declared = cpu().contracts["paged"][kind]
    met, count = Counter[str](), 150
    for program in draw_some(count, "paged", kind, declared):
        met.update(set(list_events(program)))
    lags, states = kind != "paged-state", kind != "paged-full"
    wanted = {"lags": count * lags, "drafts": count * states}
    wanted |= dict.fromkeys(("kept", "rejected"), met["drafts"])
    assert {name: met[name] for name in wanted if met[name] < wanted[name] / 20} == {}
    plain = Kind(PAGED_OPERATIONS)
    for program in draw_some(count // 5, "paged", kind, plain):
        assert not {"lags", "drafts"} & {*list_events(program)}
    assert "drafts" in list_features(kind, declared)
    assert ("drafts" in list_features(kind, plain)) == (kind != "paged-state")
