"""An engine behind an HTTP server: forms of requests, and servers that misbehave."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.backends.engine import Generation
from lockstep.harness.backends.http.backend import load_server
from lockstep.harness.backends.http.client import HttpServer, find_address, parse_url
from lockstep.harness.backends.http.completions import CompletionEngine, Form
from lockstep.harness.core.errors import Broken, UsageError
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.settings import Settings
from tests.harness.serving_server import CONFIG, Fake, serving, write_description

EVERY = {"complete", "queue", "run", "interrogate", "fork", "begin", "read", "abort"}


@pytest.fixture
def probe(tmp_path: Path) -> str:
    return write_description(tmp_path)


SECONDS = 60.0
"""A limit that a loaded machine does not reach."""


def load(
    fake: Fake, probe: str | None, seconds: float = SECONDS, **limits: Any
) -> Backend:
    return load_server(fake.url, Limits(seconds, probe=probe, **limits))


def open_engine(fake: Fake, seconds: float = SECONDS, rate: float | None = None) -> Any:
    server = HttpServer(find_address(fake.url), seconds, rate)
    return CompletionEngine(server, Form(slots=fake.slots), seconds)


@pytest.mark.parametrize("tells", ["text", "token_ids", "content", "tokens"])
@pytest.mark.parametrize("words", [False, True])
def test_the_handshake_finds_the_form_of_requests(
    tells: str, words: bool, probe: str
) -> None:
    with serving(Fake(words=words, tells=tells)) as fake:
        backend = load(fake, probe)
        engine = backend.open({})
        prompts = [range(3), range(9)]
        answers = engine.complete([Generation(prompt, 4) for prompt in prompts])
        assert [list(answer.ids) for answer in answers] == [
            fake.answer([*prompt], 4) for prompt in prompts
        ]
        assert {answer.cached for answer in answers} == {7}
    (declared,) = backend.contracts["serving"].values()
    assert declared.operations == EVERY and declared.refuses
    assert declared.config["context"] == (CONFIG["context"],)


def test_a_server_that_refuses_unknown_fields_gets_none(probe: str) -> None:
    with serving(Fake("strict")) as fake:
        engine = load(fake, probe).open({})
        assert list(engine.complete([Generation([5, 6, 7, 8], 1)])[0].ids) == [5]
        assert fake.seen[-1][1].keys() == {"prompt", "max_tokens", "temperature", "model"}


def test_a_server_without_a_tokenizer_tells_ids_on_demand(probe: str) -> None:
    """Like vLLM with --skip-tokenizer-init."""
    with serving(Fake("no tokenizer", tells="token_ids")) as fake:
        load(fake, probe)
    assert fake.seen[-1][1].items() >= {"return_token_ids": True}.items()
    assert "logprobs" not in fake.seen[-1][1]


def test_the_handshake_finds_slots_and_flushes(probe: str) -> None:
    with serving(Fake(slots=2)) as fake:
        backend = load(fake, probe)
        (declared,) = backend.contracts["serving"].values()
        assert declared.operations == EVERY | {"flush", "save", "restore"}
        assert declared.config["slots"] == (2,)
        engine = backend.open({})
        engine.save(1, "s1")
        engine.complete([Generation([1, 2, 3, 4], 1, slot=1)])
        several = engine.fork(Generation([1, 2, 3, 4], 2), 3)
        assert [list(answer.ids) for answer in several] == [[1, 2]] * 3
        assert fake.seen[-1][1].items() >= {"n": 3, "temperature": 0.01}.items()
        engine.flush()
        saved, asked, _, *erased = fake.seen[-5:]
        assert saved == ("/slots/1?action=save", {"filename": "s1"})
        assert asked[1]["id_slot"] == 1
        assert [path for path, _ in erased] == [
            "/slots/0?action=erase",
            "/slots/1?action=erase",
        ]
    with serving(Fake(flush="/reset_prefix_cache")) as fake:
        backend = load(fake, probe)
        (declared,) = backend.contracts["serving"].values()
        assert declared.operations == EVERY | {"flush"}
        backend.open({}).flush()
        assert fake.seen[-1] == ("/reset_prefix_cache", {})


def test_a_server_that_gives_one_answer_cannot_fork(probe: str) -> None:
    with serving(Fake("one answer")) as fake:
        (declared,) = load(fake, probe).contracts["serving"].values()
    assert declared.operations == EVERY - {"fork"}


def test_a_flush_waits_for_aborted_requests(probe: str) -> None:
    with serving(Fake(flush="/flush_cache")) as fake:
        engine = load(fake, probe).open({})
        fake.running = 3
        engine.flush()
        assert [path for path, _ in fake.seen[-4:]] == ["/flush_cache"] * 4
        fake.running, engine.seconds = 1000, 0.2
        with pytest.raises(ValueError, match="requests are running"):
            engine.flush()


def test_a_server_runs_one_program_at_a_time() -> None:
    for name, jobs in (("torch-cpu", 4), ("http://localhost:1", 1)):
        assert open_pool(Settings([name], jobs=4)).size == jobs


def test_a_stream_is_read_and_aborted(probe: str) -> None:
    with serving(Fake(tells="content")) as fake:
        engine = open_engine(fake)
        stream, wanted = (
            engine.begin(Generation(range(8), 50)),
            fake.answer([*range(8)], 50),
        )
        assert list(stream.read(2).ids) == wanted[:2]
        assert list(stream.read(48).ids) == wanted[2:]
        other = engine.begin(Generation(range(8), 50))
        assert list(other.read(1).ids) == wanted[:1]
        other.abort()
        deadline = time.monotonic() + 5
        while not fake.aborted and time.monotonic() < deadline:
            time.sleep(0.01)
        assert fake.aborted == 1
        with pytest.raises(ValueError, match="status 400"):
            engine.begin(Generation([], 1)).read(1)


def test_a_busy_server_gets_the_request_again(probe: str) -> None:
    with serving(Fake(busy=3)) as fake:
        answer = open_engine(fake).complete([Generation([7, 8, 9, 1], 1)])
        assert list(answer[0].ids) == [7]
        fake.busy = 1000
        with pytest.raises(Broken, match="status 429"):
            open_engine(fake, seconds=2).complete([Generation([7, 8, 9, 1], 1)])


def test_the_rate_of_requests_is_limited() -> None:
    with serving(Fake()) as fake:
        engine, begin = open_engine(fake, rate=50), time.monotonic()
        engine.complete([Generation([7, 8, 9, 1], 1)] * 11)
        assert time.monotonic() - begin > 0.19


@pytest.mark.parametrize(
    ("mistake", "what", "message"),
    [
        ("garbage", "malformed", r"the server answered '{.*·\[2J.*DecodeError: JSON"),
        ("html", "malformed", "answered '<html>busy</html>'"),
        ("deep", "malformed", "RecursionError"),
        ("no choices", "malformed", "Expected `array`, got `int`"),
        ("closed", "crash", "the connection broke: RemoteDisconnected"),
        ("failed", "malformed", "the answer has status 500: .*out of memory"),
        ("redirect", "malformed", "is a redirect, which is not followed"),
        ("endless", "malformed", "the answer has more than 4 MiB"),
        ("slow", "hang", "there was no whole answer within 0.5 s"),
        ("silent", "hang", "there was no whole answer within 0.5 s"),
    ],
)
def test_a_server_that_misbehaves_is_blamed(
    mistake: str, what: str, message: str, probe: str
) -> None:
    seconds = 0.5 if what == "hang" else SECONDS
    with serving(Fake(mistake)) as fake:
        engine = open_engine(fake, seconds)
        with pytest.raises(Broken, match=message) as caught:
            engine.complete([Generation(range(4), 1)])
        assert caught.value.what == what
        with pytest.raises(UsageError, match=f"--backend {fake.url}: "):
            load(fake, probe, seconds)


LATE = r"no (token came for|whole answer within) 0\.5 s"
"""The time limits of a token and of the connection are equal, so that either ends it."""


@pytest.mark.parametrize(
    ("mistake", "what", "message"),
    [
        ("half event", "malformed", 'the server answered \'{"choices": '),
        ("slow stream", "hang", LATE),
        ("slow", "hang", LATE),
        ("closed", "crash", "the connection broke: RemoteDisconnected"),
        ("failed", "malformed", "the answer has status 500"),
        ("endless", "malformed", "the answer has more than 4 MiB"),
    ],
)
def test_a_stream_that_misbehaves_is_blamed(
    mistake: str, what: str, message: str
) -> None:
    with serving(Fake(mistake, pause=0)) as fake:
        engine = open_engine(fake, 0.5 if what == "hang" else SECONDS)
        stream = engine.begin(Generation(range(4), 3))
        with pytest.raises(Broken, match=message) as caught:
            stream.read(3)
        assert caught.value.what == what
        stream.abort()


def test_half_a_stream_has_fewer_tokens() -> None:
    with serving(Fake("half stream", pause=0)) as fake:
        assert len(open_engine(fake).begin(Generation(range(4), 3)).read(3).ids) == 2


def test_a_server_that_has_ended_ends_the_worker(probe: str) -> None:
    with serving(Fake()) as fake:
        backend = load(fake, probe)
    with pytest.raises(Broken, match="ConnectionRefusedError") as caught:
        backend.open({}).complete([Generation(range(4), 1)])
    assert isinstance(caught.value.__cause__, Exception)
    assert backend.is_fatal(caught.value.__cause__)


def test_another_model_is_refused(probe: str) -> None:
    with (
        serving(Fake("another model")) as fake,
        pytest.raises(UsageError, match="serves another model than the probe: asked for"),
    ):
        load(fake, probe)
    with serving(Fake()) as fake, pytest.raises(UsageError, match="--probe DIR"):
        load(fake, None)


def test_a_server_that_refuses_all_or_has_a_smaller_context_is_refused(
    probe: str,
) -> None:
    for fake, message in (
        (Fake("refuses"), "it refuses the requests of the probe: .*status 400"),
        (Fake(most=40), "a request of 64 tokens, the context of the probe, fails: POST"),
    ):
        with serving(fake), pytest.raises(UsageError, match=message):
            load(fake, probe)


@pytest.mark.parametrize(
    "url",
    [
        "https://localhost:1",
        "http://",
        "http://localhost:99999",
        "http://user:secret@localhost:1",
        "http://localhost:1/v1",
        "http://localhost:1?a=b",
        "http://[::1",
    ],
)
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"^--backend "):
        parse_url(url)


def test_only_this_machine_gets_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [("127.0.0.1", 80), ("192.0.2.1", 80)]
    monkeypatch.setattr(
        "lockstep.harness.backends.http.client.getaddrinfo",
        lambda *_, **__: [(socket.AF_INET, 1, 6, "", address) for address in found],
    )
    message = r"name is another machine \(192.0.2.1\); .* add --allow-host name"
    with pytest.raises(UsageError, match=message):
        find_address("http://name:80")
    assert find_address("http://name:80", "name").ip == "127.0.0.1"
    del found[1]
    assert find_address("http://name:80").port == 80
