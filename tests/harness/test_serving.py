"""The serving contract: its programs agree with a small engine and find the mistakes that
are planted in it, and its requests mean what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from lockstep.harness.backends.engine import Completion
from lockstep.harness.contracts.serving import SERVING
from lockstep.harness.contracts.serving.model import ServingModel
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.executor import run
from lockstep.harness.execution.scripts.requests import write_requests
from lockstep.harness.programs.program import Divergence, Program, trace
from lockstep.harness.programs.words import tell_tokens
from tests.harness.building import count_cells, draw_some, make
from tests.harness.engines import (
    MISTAKES,
    ComparesLengths,
    DropsFirst,
    IsBlurred,
    ToyEngine,
    make_backend,
)
from tests.harness.serving_server import Fake, serving

DECLARED = make_backend().contracts["serving"]


@cache
def get_programs(kind: str) -> list[Program]:
    return draw_some(40, "serving", kind, DECLARED[kind])


def complete(new: int, **more: Any) -> dict[str, Any]:
    return {"op": "complete", "request": "a", "new": new, **more}


def serve(*ops: Any, **config: Any) -> Program:
    return make(*ops, contract="serving", **{"kind": "serving-full", **config})


def diverge(engine: type[ToyEngine], *ops: Any, **config: Any) -> Divergence:
    divergence = run(serve(*ops, **config), make_backend(engine)).divergence
    assert divergence is not None
    return divergence


# --- agreement, and planted mistakes ----------------------------------------------------


@pytest.mark.parametrize("kind", SERVING.kinds)
def test_a_correct_engine_agrees_in_every_cell(kind: str) -> None:
    backend = make_backend()
    for program in get_programs(kind):
        assert run(program, backend).divergence is None
    cells = set(SERVING.list_cells(kind, DECLARED[kind]))
    missing = cells - count_cells(get_programs(kind)).keys()
    assert len(missing) <= len(cells) // 20, missing


@pytest.mark.parametrize("engine", MISTAKES, ids=lambda engine: engine.__name__)
def test_a_mistake_is_found(engine: type[ToyEngine]) -> None:
    """The wrong token is named, with the request and the position that it comes from."""
    backend = make_backend(engine)
    named = []
    for program in get_programs(KIND):
        divergence = run(program, backend).divergence
        if divergence is not None:
            told = " ".join(tell_tokens(program, divergence))
            found = re.findall(r"token \d+ was written in step (\d+) at position", told)
            named.append([program.ops[int(step)].get("request") for step in found])
    wrong_and_right = 0 if engine is IsBlurred else 2
    assert any(len(names) == wrong_and_right and all(names) for names in named)


KIND = "serving-sliding"


SHIFTED = {"keep": (1, 4), "context": (64,), "distance": (31,)}


def test_what_a_full_context_drops_is_looked_at() -> None:
    full = DECLARED["serving-full"]
    declared = replace(full, config=SHIFTED)
    programs = draw_some(40, "serving", "serving-full", declared)
    cells = set(SERVING.list_cells("serving-full", declared))
    missing = cells - count_cells(programs).keys()
    assert not [cell for cell in missing if cell[0] == "shifted"]
    results = [
        [run(program, make_backend(engine)).divergence for program in programs]
        for engine in (ToyEngine, DropsFirst)
    ]
    assert not any(results[0]) and any(results[1])


def test_another_first_tag_changes_no_answer() -> None:
    backend = make_backend(type("Turned", (ToyEngine,), {}))
    opened = backend.open

    def open_turned(config: Any) -> ToyEngine:
        engine: ToyEngine = opened(config)
        engine.first_tag = 500
        return engine

    for program in get_programs(KIND)[:10]:
        assert run(program, replace(backend, open=open_turned)).divergence is None


def test_prompts_share_tokens_in_each_way() -> None:
    """`draw_prompt` has a comment for each way."""
    ways = Counter[tuple[bool, ...]]()
    for program in get_programs("serving-full"):
        for op in program.ops:
            if op.get("of") is not None:
                fields = op["new"] > 0, op["before"] > 0, op["gap"] > 0
                ways[len(op["pieces"]) == 2, *fields] += 1
    # longer or a branch; shorter or as before; moved; cut; cut and longer; replaced
    wanted = [(0, 1, 0, 0), (0, 0, 0, 0), (0, 0, 1, 0), (1, 0, 0, 0), (1, 1, 0, 0)]
    wanted.append((1, 0, 0, 1))
    few = min(ways[way] for way in wanted)
    assert few > sum(ways.values()) / 40


# --- requests ---------------------------------------------------------------------------


def test_a_prompt_has_pieces_of_an_earlier_request() -> None:
    first = complete(4, head=0, back=4)
    second = complete(1, of="a", pieces=[[0, 2], [3, 4]], gap=1, before=1, head=0, back=4)
    answers = trace(serve(first, second))
    # The second prompt is 4, 0, 1, 5, 3, 6; then its ask.
    assert [answer["generated"] for answer in answers] == [[0], [1]]


def test_generated_tokens_ask_on() -> None:
    answers = trace(serve(complete(4, head=0, back=2, count=4), distance=3))
    # 0 1 2 3 ask, then 2. Each tag asks for the token 3 back: 2, 3, and then the ask.
    assert answers == [{"generated": [2, 2, 3, "ask 0:2"]}]


def test_a_window_hides_earlier_tokens() -> None:
    program = serve(
        complete(6, head=0, back=2), complete(6, head=0, back=3),
        kind="serving-sliding", window=3,
    )  # fmt: skip
    # The ask sees positions 4 to 6. Behind the window, the nearest token is found.
    assert [answer["generated"] for answer in trace(program)] == [[4], [10]]


def test_few_different_tags_repeat() -> None:
    assert trace(serve(complete(7, head=0, back=1), alphabet=5)) == [{"generated": [1]}]


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (complete(1, of="z", pieces=[[0, 1]]), "there is no request z"),
        (complete(1, head=9, back=1), "the probe has no such head"),
        (complete(1, head=0), "the probe has no ask for this distance"),
        (complete(1, head=0, back=6), "the answer depends on the weights of the probe"),
        (complete(1, slot=0), "there is no such slot"),
        (complete(100), "the probe has no more tags"),
        ({"op": "run"}, "no request is queued"),
        ({"op": "read", "request": "a", "count": 1}, "request a is not open"),
        ({"op": "save", "slot": 0, "name": "s0"}, "there is no such slot"),
    ],
)
def test_what_has_no_meaning_is_skipped(op: Any, reason: str) -> None:
    program = serve(op, content=64)
    model = ServingModel(program.config)
    (op,) = program.ops
    assert SERVING.operations[op["op"]].why_illegal(op, model) == reason


@pytest.mark.parametrize("length", [0, 32, 33])
def test_a_request_without_room_must_be_refused(length: int) -> None:
    program = serve(complete(length), context=32)
    assert trace(program) == [{"error": "usage"}]
    assert run(program, make_backend()).divergence is None


# --- messages ---------------------------------------------------------------------------


def test_a_wrong_token_is_named() -> None:
    other = complete(1, of="a", pieces=[[0, 3], [4, 6]], gap=1, head=0, back=4)
    found = diverge(ComparesLengths, complete(6, head=0, back=1), other)
    assert found.message == "request a: generated token 0 is token 3, not token 6"
    assert found.tokens == (6, 3)


def test_a_blurred_token_is_a_divergence() -> None:
    again = complete(0, of="a", pieces=[[0, 6]])
    found = diverge(IsBlurred, complete(6), again)
    assert "log-probability -0.7; at least -0.05 is expected" in found.message


class IsWrong(ToyEngine):
    answer: Any = None

    def complete(self, requests: Any) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "complete returned None, not a list of 1"),
        ([], "complete returned [], not a list of 1"),
        ([[1]], "the engine returned [1], not a Completion"),
        ([Completion([])], "the engine returned [], not a list of 1"),
        ([Completion([1.0])], "generated token 0 is 1.0 (float), not an id"),
        ([Completion([10**9])], "id 1000000000, which no request has"),
        ([Completion([400])], "id 400, which no request has"),
        ([Completion([3], [])], "logprobs returned [], not a list of 1"),
        ([Completion([3], [float("nan")])], "log-probability nan"),
    ],
)
def test_what_is_no_answer_is_told(answer: Any, message: str) -> None:
    engine = type("Wrong", (IsWrong,), {"answer": answer})
    assert message in diverge(engine, complete(6)).message


# --- slots ------------------------------------------------------------------------------


class HasSlots(ToyEngine):
    calls: list[Any] = []

    def save(self, slot: int, name: str) -> None:
        self.calls.append(("save", slot, name))

    def restore(self, slot: int, name: str) -> None:
        self.calls.append(("restore", slot, name))


def test_a_slot_is_saved_whatever_the_order_of_the_fields() -> None:
    ops = ({"op": op, "name": "s0", "slot": 1} for op in ("save", "restore"))
    backend = make_backend(HasSlots)
    assert run(serve(*ops, slots=2), backend).divergence is None
    assert HasSlots.calls == [("save", 1, "s0"), ("restore", 1, "s0")]


# --- scripts ----------------------------------------------------------------------------

EVERYTHING = (
    complete(6, head=0, back=2, count=3),
    {"op": "queue", "request": "b", "of": "a", "pieces": [[0, 4]], "head": 1, "at": 2},
    {"op": "queue", "request": "c", "new": 5, "slot": 0},
    {"op": "run"},
    {"op": "begin", "request": "d", "new": 4, "count": 6, "slot": 1},
    {"op": "read", "request": "d", "count": 2},
    {"op": "begin", "request": "e", "new": 3, "count": 9},
    {"op": "read", "request": "d", "count": 256},
    {"op": "abort", "request": "e"},
    {"op": "interrogate", "request": "c", "head": 0},
    complete(0),
    {"op": "fork", "request": "f", "new": 8, "count": 2, "answers": 3},
)


@pytest.mark.parametrize("tells", ["text", "content", "token_ids"])
@pytest.mark.parametrize("mistake", ["", "another model"])
def test_a_script_sends_the_requests(tells: str, mistake: str, tmp_path: Any) -> None:
    path, sizes = tmp_path / "script.py", {"content": 64, "context": 64, "slots": 2}
    path.write_text(write_requests(serve(*EVERYTHING, **sizes)))
    with serving(Fake(mistake, tells=tells)) as fake:
        command = [sys.executable, str(path), fake.url]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    prompts = [body["prompt"] for path, body in fake.seen if body]
    assert [len(prompt) for prompt in prompts] == [7, *(5, 5), 4, 3, *[7] * 6, 0, 8]
    assert [body["id_slot"] for _, body in fake.seen if body and "id_slot" in body] == [
        0,
        1,
    ]
    wrong = 12 if mistake else 0
    assert f"\n{wrong} wrong answers\n" in ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == bool(mistake)


def test_a_script_refuses_what_servers_do_differently() -> None:
    with pytest.raises(UsageError, match="servers have different requests for flush"):
        write_requests(serve({"op": "flush"}))
