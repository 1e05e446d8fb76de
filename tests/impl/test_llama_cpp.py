"""llama.cpp's server in this process: it answers as the reference does, and keeps the
promises of an engine."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.backends.engine import Generation
from lockstep.harness.backends.http.backend import load_server
from lockstep.harness.backends.http.client import HttpServer, find_address
from lockstep.harness.backends.probe import get_probe
from lockstep.harness.core.errors import Broken
from lockstep.harness.execution.executor import run
from lockstep.impl.probe.write import write
from lockstep.reference.serving import Ask, generate
from tests.harness.building import make

llama_cpp = pytest.importorskip("lockstep.impl.engines.llama_cpp")

CONFIG = {
    "kind": "serving-full",
    "layers": 1,
    "heads": 1,
    "window": None,
    "content": 512,
    "context": 256,
    "distance": 3,
}
PROBE = get_probe(CONFIG)

STREAM = [
    {"op": "begin", "request": "b", "new": 4, "count": 250},
    {"op": "read", "request": "b", "count": 2},
    {"op": "queue", "request": "c", "of": "b", "pieces": [[0, 5]], "new": 2},
    {"op": "queue", "request": "d", "of": "b", "pieces": [[0, 3]], "new": 2},
    {"op": "run"},
    {"op": "abort", "request": "b"},
    {"op": "complete", "request": "e", "of": "c", "pieces": [[0, 6]], "new": 1},
]


@pytest.fixture
def engine() -> Iterator[Any]:
    engine = llama_cpp.LlamaCpp({}, CONFIG)
    yield engine
    if hasattr(engine, "transport"):
        engine.close()


def draw(source: random.Random, base: list[int]) -> tuple[Generation, list[int]]:
    """Draws a request that may share tokens with `base`, and its right answer."""
    kept = base[: source.randrange(len(base))] if source.random() < 0.7 else []
    tags = [*kept, *source.sample(range(512), source.randrange(4, 20))]
    ask, count = Ask(0, source.randrange(len(tags))), source.choice((1, 1, 4, 30))
    generated = generate(PROBE.heads, PROBE.usual, [*tags, ask], count)
    assert generated is not None
    request = Generation([*tags, PROBE.get_id(ask)], count)
    return request, [PROBE.get_id(token) for token in generated]


def test_requests_at_the_same_time_and_streams_agree(engine: Any) -> None:
    source = random.Random(1)
    base = source.sample(range(512), 40)
    cached = 0
    for _ in range(10):
        requests, wanted = zip(*(draw(source, base) for _ in range(6)), strict=True)
        stream = engine.begin(requests[0])
        completions = engine.complete(requests[1:])
        assert [list(answer.ids) for answer in completions] == [*wanted[1:]]
        assert all(min(answer.logprobs) > -0.01 for answer in completions)
        cached += sum(answer.cached for answer in completions)
        begin, end = stream.read(1), stream.read(requests[0].count - 1)
        assert [*begin.ids, *end.ids] == wanted[0]
    assert cached


def test_a_stream_ends_when_it_is_aborted(engine: Any) -> None:
    stream = engine.begin(Generation([1, 2, 3, 4], 250))
    assert list(stream.read(2).ids) == [1, 2]
    stream.abort()
    assert not stream.thread.is_alive()
    (answer,) = engine.complete([Generation([9, 8, 7, 6, 5, 4], 2)])
    assert list(answer.ids) == [7, 6]


def test_a_slot_is_saved_restored_and_erased(engine: Any) -> None:
    request = Generation([*range(30)], 1, slot=2)
    engine.complete([request])
    engine.save(2, "s0")
    engine.flush()
    engine.restore(1, "s0")
    (answer,) = engine.complete([Generation(request.prompt, 1, slot=1)])
    assert (list(answer.ids), answer.cached) == ([26], 29)


@pytest.mark.parametrize("prompt", [[], [1, 2, 5000], [1, 2, -1], [1] * 256])
def test_an_invalid_request_is_refused(prompt: list[int], engine: Any) -> None:
    with pytest.raises(ValueError, match="the server answered: "):
        engine.complete([Generation(prompt, 1)])
    with pytest.raises(ValueError, match="the server answered: "):
        engine.begin(Generation(prompt, 1)).read(1)


def test_a_closed_engine_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in numbers]
    folders: list[Any] = []
    make = llama_cpp.tempfile.mkdtemp
    monkeypatch.setattr(
        llama_cpp.tempfile,
        "mkdtemp",
        lambda **more: folders.append(make(**more)) or folders[-1],
    )
    engine = llama_cpp.LlamaCpp({}, CONFIG)
    stream = engine.begin(Generation([1, 2, 3, 4], 250))
    stream.read(1)
    engine.save(0, "s0")
    url = engine.transport.address.url
    assert [signal.getsignal(number) for number in numbers] == handlers
    engine.close()
    del engine
    with pytest.raises(Broken, match="ConnectionRefusedError"):
        HttpServer(find_address(url), 5).get("/health")
    assert not Path(folders[-1]).exists()


def test_its_port_is_a_backend(engine: Any, tmp_path: Path) -> None:
    write(CONFIG, "gguf", "float32", tmp_path)
    backend = load_server(engine.transport.address.url, Limits(probe=str(tmp_path)))
    (declared,) = backend.contracts["serving"].values()
    both = llama_cpp.SAVED.operations | llama_cpp.FORKING.operations
    assert declared.operations == both and declared.refuses
    assert declared.config["slots"] == (llama_cpp.SLOTS,)
    programs = [
        [{"op": "complete", "request": "a", "new": 30, "count": 4, "slot": 0}],
        [{"op": "complete", "request": "a", "new": 4}, *STREAM],
        [{"op": "save", "slot": 0, "name": "s0"}, {"op": "flush"}, *STREAM],
    ]
    for ops in programs:
        program = make(*ops, contract="serving", slots=llama_cpp.SLOTS, **CONFIG)
        assert run(program, backend).divergence is None
