"""The script that checks engines in other environments, and its server for engines
without a server."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from http.server import ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner

from ci.engines import shim
from ci.engines.serve import MISTAKES, PLANS, Plan, Row, main
from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.backends.engine import Generation
from lockstep.harness.backends.http.backend import load_server
from tests.harness.serving_server import Fake, write_description

MOST = 3


class Toy:
    """An engine that answers by the reference, and notes its batches."""

    def __init__(self, same_length: bool) -> None:
        self.same_length, self.fake = same_length, Fake()
        self.batches: list[list[int]] = []

    def generate(self, prompts: Sequence[Any], count: int) -> Sequence[Sequence[int]]:
        self.batches.append([len(prompt) for prompt in prompts])
        return [self.fake.answer([*prompt], count) for prompt in prompts]


@pytest.fixture(params=[False, True])
def toy(request: pytest.FixtureRequest) -> Toy:
    return Toy(request.param)


@pytest.fixture
def url(toy: Toy) -> Iterator[str]:
    requests: SimpleQueue[shim.Request] = SimpleQueue()
    handler = type("Bound", (shim.Handler,), {"requests": requests})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=shim.run, args=(requests, toy, MOST), daemon=True).start()
        Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_server_of_the_shim_is_a_backend(toy: Toy, url: str, tmp_path: Path) -> None:
    write_description(tmp_path)
    backend = load_server(url, Limits(60, probe=str(tmp_path)))
    (declared,) = backend.contracts["serving"].values()
    assert declared.operations == {"complete", "queue", "run", "interrogate"}
    assert declared.refuses
    lengths = [4, 5, 4, 5, 5, 4, 4, 5]
    engine = backend.open({})
    answers = engine.complete([Generation(range(size), 2) for size in lengths])
    wanted = [toy.fake.answer([*range(size)], 2) for size in lengths]
    assert [list(answer.ids) for answer in answers] == wanted
    assert max(map(len, toy.batches)) <= MOST
    assert not toy.same_length or all(len(set(sizes)) == 1 for sizes in toy.batches)


@pytest.mark.parametrize("toy", [Toy(False), Toy(True)], ids=["any", "same"])
def test_waiting_requests_are_batches(toy: Toy) -> None:
    requests: SimpleQueue[shim.Request] = SimpleQueue()
    waiting: list[shim.Request] = [
        ([*range(size)], count, Future())
        for size, count in ((4, 1), (5, 1), (4, 2), (4, 1), (5, 1))
    ]
    for request in waiting:
        requests.put(request)
    Thread(target=shim.run, args=(requests, toy, MOST), daemon=True).start()
    assert [len(future.result(60)) for *_, future in waiting] == [1, 1, 2, 1, 1]
    apart, beside = [[4, 4], [5, 5], [4]], [[4, 5, 4], [4], [5]]
    assert toy.batches == (apart if toy.same_length else beside)


def test_a_server_that_ends_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"full": Row("serving-full", (), ("--content", "64", "--context", "64"))}
    command = "-c", "import sys; sys.exit('no weights in {probe}')"
    monkeypatch.setitem(PLANS, "vllm", Plan(command, "/health", rows))
    options = ["vllm", "--python", sys.executable, "--output", str(tmp_path)]
    ended = CliRunner().invoke(main, options)
    assert ended.exit_code == 2, ended.output
    assert "the server does not run" in ended.output and "no weights in" in ended.output
    assert CliRunner().invoke(main, [*options, "--row", "x"]).exit_code == 2


def test_each_plan_names_an_engine_that_can_be_started() -> None:
    for name, plan in PLANS.items():
        assert name in shim.ENGINES or "-m" in plan.command
        text = " ".join(plan.command).format(engine=name, probe="DIR", port=1)
        assert "DIR" in text and plan.rows


def test_every_mistake_of_vllm_has_a_row_that_should_find_it() -> None:
    """`mistakes.py` imports vLLM, so it is read as text."""
    text = (Path(shim.__file__).parent / "mistakes.py").read_text()
    assert {"none", *re.findall(r'^    "([\w-]+)": \(', text, re.M)} == {*MISTAKES}
    assert {*MISTAKES.values()} <= {*PLANS["vllm"].rows}
