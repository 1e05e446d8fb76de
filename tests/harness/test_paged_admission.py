"""Block managers that give slots to more tokens than a step computes (`admits`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.operation import Op
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.program import Divergence, Program, walk
from tests.harness import paging
from tests.harness.building import draw_some
from tests.harness.paging import RUN, Manager, ask, fork, make, open_request

BLOCK = {"groups": [{"type": "full", "block": 2, "layers": 1}], "max_length": 8}


class Admitting(Manager):
    """Takes the blocks of all tokens that it admits with the first step."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.admits, self.last = config["admits"], 0
        sizes = [group["block"] for group in config["groups"] if group["type"] == "full"]
        self.most = config["max_length"]
        while sum(-(-self.most // size) for size in sizes) > config["blocks"]:
            self.most -= 1

    def schedule(self, name: str, count: int) -> Any:
        if name in self.requests:
            known = self.requests[name].known
            self.last = {"chunk": 0, "prompt": known, "output": self.most}[self.admits]
        return super().schedule(name, count)

    def plan(self, tables: Any, start: int, end: int, *more: Any) -> Any:
        return super().plan(tables, start, max(end, self.last), *more)


class Forgetting(Admitting):
    """Refuses the further steps of a request, although it has the blocks."""

    def schedule(self, name: str, count: int) -> Any:
        held = name in self.requests and self.requests[name].tables is not None
        return None if held else super().schedule(name, count)


class Miserly(Admitting):
    """Reserves two blocks more than it needs."""

    def plan(self, tables: Any, *more: Any) -> Any:
        [(missing, shared)] = super().plan(tables, *more)
        return [([*missing, 6, 7] if not tables[0] else missing, shared)]


def declare(cache: Any, admits: str, **promises: Any) -> Backend:
    return paging.declare(cache, config={"admits": (admits,)}, **promises)


def find(program: Program, cache: Any, **promises: Any) -> Divergence | None:
    return run(program, declare(cache, program.config["admits"], **promises)).divergence


BEGUN = (open_request("a", 1, 2, 3, 4, 5, 6), ask("schedule", "a", count=1), RUN)
SECOND = (*BEGUN, open_request("b", 7, 8), ask("schedule", "b", count=1))
SHARING = (
    *(open_request("a", 1, 2, 3, 4, 5, 6), ask("schedule", "a"), RUN),
    *(open_request("b", 1, 2, 3, 4, 8, 8, 8), ask("schedule", "b", count=1), RUN),
)
"""Two blocks of "a" are in the table of "b", too: five blocks, counted as seven."""
THIRD = (*SECOND, RUN, open_request("c", 9), ask("schedule", "c"))


@pytest.mark.parametrize(
    ("admits", "blocks", "ops", "refused"),
    [
        ("chunk", 3, SECOND, False),
        ("prompt", 3, SECOND, True),  # "a" has three blocks, of which it uses one
        ("prompt", 4, SECOND, False),
        ("prompt", 4, THIRD, True),
        ("output", 5, SECOND, True),  # "a" has four blocks
        ("output", 8, SECOND, False),
        ("output", 3, BEGUN, False),  # no request has more tokens than fit
    ],
)
def test_a_step_takes_the_blocks_of_all_that_it_admits(
    admits: str, blocks: int, ops: Sequence[Any], refused: bool
) -> None:
    program = make(*ops, blocks=blocks, admits=admits, **BLOCK)
    cache = Admitting(program.config)
    for op in program.ops:
        values = [value for name, value in op.items() if name != "op"]
        answer = getattr(cache, op["op"])(*values)
    assert (answer is None and ops[-1] is not RUN) == refused
    assert find(program, Admitting) is None


@pytest.mark.parametrize("admits", ["prompt", "output"])
def test_a_manager_that_does_not_say_so_is_wrong(admits: str) -> None:
    """It refuses a step for which there is a block."""
    program = make(*SECOND, blocks=4 if admits == "output" else 3, **BLOCK)
    cache = type("Silent", (Admitting,), {"__init__": admit(admits)})
    divergence = find(program, cache, tells=frozenset())
    assert divergence is not None
    assert (divergence.what, divergence.operation) == ("result", "schedule")
    third = (open_request("c", 9, 9, 9), ask("schedule", "c", count=1))
    ops = (*SHARING, ask("schedule", "b"), RUN, *third)
    program = make(*ops, blocks=7 if admits == "output" else 6, **BLOCK)
    divergence = find(program, cache)
    assert divergence is not None
    assert divergence.message.startswith(
        "request c got no slots, although it needs at most 1 block"
    )
    assert divergence.message.endswith("or the output, declare `admits`")


def admit(admits: str) -> Any:
    def open_cache(cache: Any, config: Mapping[str, Any]) -> None:
        Admitting.__init__(cache, {**config, "admits": admits})

    return open_cache


@pytest.mark.parametrize(
    ("cache", "ops", "blocks"),
    [
        (Forgetting, (*BEGUN, ask("schedule", "a", count=2)), 12),
        (Forgetting, (*SHARING, ask("schedule", "b", count=2)), 5),
        (Miserly, SECOND, 7),
    ],
)
def test_a_refusal_of_what_fits_or_was_admitted_is_wrong(
    cache: Any, ops: Sequence[Any], blocks: int
) -> None:
    """Also if the manager does not tell of its pool."""
    program = make(*ops, blocks=blocks, admits="prompt", **BLOCK)
    assert find(program, Admitting) is None
    divergence = find(program, cache, tells=frozenset())
    assert divergence is not None
    assert (divergence.what, divergence.operation) == ("result", "schedule")


def test_a_refusal_of_an_unknown_request_for_want_of_room_is_wrong() -> None:
    class Unknowing(Manager):
        def schedule(self, name: str, count: int) -> Any:
            return super().schedule(name, count) if name in self.requests else None

    program = make(ask("schedule", "a"), blocks=4, admits="chunk", **BLOCK)
    divergence = find(program, Unknowing)
    assert divergence is not None
    assert divergence.message == "did not refuse; expected usage"


DRAFTS = (
    *(open_request("a", 1, 2, 3), ask("schedule", "a"), RUN),
    *(ask("accept", "a", sampled=4, drafts=[5, 6]), ask("schedule", "a"), RUN),
    ask("accept", "a", sampled=7),
)
"""Both drafts are rejected."""

WINDOW = {"groups": [{"type": "sliding", "block": 2, "width": 4, "layers": 1}]}


@pytest.mark.parametrize(
    ("ops", "config", "is_admitted"),
    [
        (BEGUN, {}, True),
        (BEGUN, {"admits": "chunk"}, False),
        (BEGUN[:1], {}, False),  # it waits
        (BEGUN, {**WINDOW, "kind": "paged-sliding"}, False),
        (BEGUN, {"hash_block": 1}, False),
        (DRAFTS, {"lookahead": 2}, False),
        (DRAFTS, {"lookahead": 2, "admits": "output"}, True),
        ((*BEGUN, fork("a", "b", 7)), {}, False),
        ((*BEGUN, ask("preempt", "a")), {}, False),
        ((*BEGUN[:1], ask("load", "a", transfer="t")), {"host": 4}, False),
    ],
)
def test_what_was_admitted_is_not_refused_if_nothing_is_copied(
    ops: Sequence[Any], config: Mapping[str, Any], is_admitted: bool
) -> None:
    program = make(*ops, **{**BLOCK, "admits": "prompt", **config})
    [*_, last] = walk(program)
    last.finish()
    model = last.model
    end = len(model.cache.requests["a"].known)
    assert model.is_admitted("a", end) == is_admitted


def test_a_rewind_gives_up_slots() -> None:
    tokens = ask("rewind", "a", to=1, tokens=[9])
    [*_, last] = walk(make(*BEGUN[:1], ask("schedule", "a"), RUN, tokens, **BLOCK))
    last.finish()
    assert last.model.cache.requests["a"].admitted == 1


def test_a_load_may_take_the_blocks_of_the_whole_prompt() -> None:
    program = make(
        *(open_request("a", 1, 2, 3), ask("schedule", "a"), RUN),
        *(ask("offload", "a", transfer="t"), {"op": "landed", "transfer": "t"}),
        *({"op": "free", "request": "a"}, {"op": "evict", "count": 256}),
        *(open_request("b", 1, 2, 4, 5, 6), ask("load", "b", transfer="u")),
        **{**BLOCK, "admits": "prompt", "host": 4},
    )
    [*_, last] = walk(program)
    last.finish()
    assert last.model.cache.requests["b"].admitted == 2
    assert last.model.spans["b"] == (0, 5)


# --- slots that a step takes from other requests ---------------------------------------


class Taking(Manager):
    """Preempts requests that are not in the step, the oldest first, to make room."""

    tells_names = True

    def schedule(self, name: str, count: int) -> Any:
        start = super().schedule(name, count)
        waiting = [other for other in self.requests if other != name]
        trial, taken = deepcopy(self), list[str]()
        while start is None and waiting:
            request = self.requests[waiting.pop(0)]
            if request.tables is not None and not request.is_scheduled:
                taken = [*taken, self.find(request)]
                trial.preempt(taken[-1])
                start = Manager.schedule(trial, name, count)
        if start is None or not taken:
            return start
        for other in taken:
            self.preempt(other)
        start = super().schedule(name, count)
        assert start is not None
        request = self.requests[name]
        return [start, request.end - start, taken] if self.tells_names else start

    def find(self, request: Any) -> str:
        return next(name for name, item in self.requests.items() if item is request)


takes = partial(paging.declare, Taking, config={"preempts": (True,)})


class Greedy(Taking):
    """Preempts a request for each step, also if there is room."""

    def schedule(self, name: str, count: int) -> Any:
        [other] = [item for item in self.requests if item != name] or [name]
        start = Manager.schedule(self, name, count)
        if other == name:
            return start
        self.preempt(other)
        return [start, count, [other]]


class Silent(Taking):
    tells_names = False


class Emptied(Silent):
    """Also keeps tables of no blocks."""

    def tables(self, request: str) -> Any:
        return super().tables(request) or [[]]


class Lying(Taking):
    """Names another request than that which it preempts."""

    def schedule(self, name: str, count: int) -> Any:
        answer = super().schedule(name, count)
        return [*answer[:2], [name]] if isinstance(answer, list) else answer


PREEMPTED = (
    *(open_request("a", 1, 2, 3, 4, 5), ask("schedule", "a", count=4), RUN),
    *(open_request("b", 7, 8, 9), ask("schedule", "b", count=3), RUN),
    *(ask("schedule", "a"), RUN),
)
"""There are 3 blocks: "b" needs 2, of which "a" holds 1. Then it needs all for "a"."""


def find_taken(
    cache: Any, *ops: Op, blocks: int = 3, preempts: bool = True, **promises: Any
) -> Divergence | None:
    backend = paging.declare(cache, config={"preempts": (preempts,)}, **promises)
    program = make(*ops, blocks=blocks, preempts=preempts, **BLOCK)
    return run(program, backend).divergence


def test_a_step_may_take_the_slots_of_requests_that_wait() -> None:
    assert find_taken(Taking, *PREEMPTED) is None
    assert find_taken(Manager, *PREEMPTED) is None  # it refuses


@pytest.mark.parametrize(
    ("cache", "options", "message"),
    [
        (
            *(Taking, {"preempts": False}),
            "b took the slots of requests ['a'], although `preempts` is not declared",
        ),
        (
            *(Silent, {"preempts": False}),
            "request a holds slots, but has no tables; if `schedule` took them for"
            " another request, declare `preempts`, and name it",
        ),
        (
            *(Emptied, {"preempts": False}),
            "position 0 of request a, group 0, has no slot, not token 0; if `schedule`"
            " took them for another request, declare `preempts`, and name it",
        ),
        (
            *(Greedy, {"blocks": 12, "tells": frozenset()}),
            "b took the slots of requests ['a'], although all requests fit",
        ),
        (
            *(Greedy, {"blocks": 12}),
            "request b took slots of other requests, although it needs at most 2 blocks,"
            " and 10 were held by no request; if it takes blocks for the whole prompt or"
            " the output, declare `admits`",
        ),
        (
            *(Lying, {}),
            "b took the slots of requests ['b'], but b is in the step, or holds no slots",
        ),
    ],
)
def test_a_manager_that_takes_slots_and_should_not_or_says_otherwise_is_wrong(
    cache: Any, options: Mapping[str, Any], message: str
) -> None:
    divergence = find_taken(cache, *PREEMPTED, **options)
    assert divergence is not None
    assert divergence.message == message


@pytest.mark.parametrize("preempts", [True, False])
def test_drawn_programs_take_slots(preempts: bool) -> None:
    taken = []

    class Noting(Taking):
        def schedule(self, name: str, count: int) -> Any:
            answer = super().schedule(name, count)
            taken.extend(answer[2] if isinstance(answer, list) else ())
            return answer

    backend = paging.declare(Noting, config={"preempts": (preempts,)})
    declared = backend.contracts["paged"]["paged-full"]
    programs = draw_some(40, "paged", "paged-full", declared, 1)
    failing = [x for x in programs if run(x, backend).divergence is not None]
    assert (len(taken) > 10, bool(failing)) == (True, not preempts)


class Vain(Taking):
    """Preempts all requests that wait, even if a step then still has too few blocks."""

    def schedule(self, name: str, count: int) -> Any:
        start, taken = Manager.schedule(self, name, count), list[str]()
        for other, request in list(self.requests.items()) if start is None else ():
            if other != name and request.tables is not None and not request.is_scheduled:
                self.preempt(other)
                taken.append(other)
        return (None, 0, taken) if taken else start


def test_a_step_may_take_slots_and_still_have_too_few() -> None:
    assert find_taken(Vain, *PREEMPTED) is None
    divergence = find_taken(Vain, *PREEMPTED, preempts=False)
    assert divergence is not None
    assert divergence.message.endswith("although `preempts` is not declared")


class Hasty(Taking):
    """Preempts all requests that wait before it evicts a cached block."""

    def schedule(self, name: str, count: int) -> Any:
        taken = []
        for other, request in list(self.requests.items()):
            is_held = request.tables is not None and not request.is_scheduled
            if other != name and is_held and not self.pool().free:
                self.preempt(other)
                taken.append(other)
        start = Manager.schedule(self, name, count)
        return [start, count, taken] if taken else start


def test_a_step_may_take_slots_although_a_block_is_cached() -> None:
    """A block of "a" is cached when "d" needs one."""
    ops: list[Op] = []
    for name, length in {"a": 2, "b": 1, "c": 1, "d": 1}.items():
        step = ask("schedule", name, count=length)
        ops += [open_request(name, *[ord(name)] * length), step, RUN]
        ops += [ask("free", "a")] * (name == "a")
    assert find_taken(Hasty, *ops) is None


# --- slots for later steps --------------------------------------------------------------


class Ahead(Manager):
    """Takes the blocks of two further tokens with each step."""

    def plan(self, tables: Any, start: int, end: int, *more: Any) -> Any:
        return super().plan(tables, start, end + 2, *more)


@pytest.mark.parametrize(("ahead", "agrees"), [(2, True), (3, True), (0, False)])
def test_a_step_may_take_the_blocks_of_further_tokens(ahead: int, agrees: bool) -> None:
    program = make(*SECOND, blocks=3, ahead=ahead, **BLOCK)
    backend = paging.declare(Ahead, config={"ahead": (ahead,)})
    assert (run(program, backend).divergence is None) == agrees


# --- drawn programs ---------------------------------------------------------------------


@pytest.mark.parametrize("admits", ["prompt", "output"])
def test_drawn_programs_agree(admits: str) -> None:
    backend = declare(Admitting, admits)
    declared = backend.contracts["paged"]["paged-full"]
    refusals = 0
    for program in draw_some(40, "paged", "paged-full", declared, 1):
        assert program.config["admits"] == admits
        result = run(program, backend)
        assert result.divergence is None, (program.to_json(), result.divergence)
        refusals += bool(result.choices)
    assert refusals
