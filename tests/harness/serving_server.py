"""A server of OpenAI's completions that answers by the reference, or makes mistakes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from lockstep.harness.backends.probe import FORMAT, NAME, Probe, get_probe
from lockstep.reference.serving import Token, generate

CONFIG = {
    "kind": "serving-full",
    "layers": 2,
    "heads": 2,
    "window": None,
    "content": 64,
    "context": 64,
    "distance": 3,
}

REFUSED = {
    "strict": {"logprobs", "return_token_ids"},
    "no tokenizer": {"logprobs"},
    "refuses": {"prompt"},
}
"""Mistake → the fields of requests that the server refuses."""


@dataclass
class Fake:
    """The server, as a test wants it.

    Attributes:
        mistake: the name of the planted mistake; "" for none.
        words: whether only texts are prompts.
        tells: the fields of answers that tell the ids of tokens.
        slots: the number of slots.
        flush: the path of the request that flushes.
        busy: the number of requests that are refused with status 429.
        running: the number of flushes that are refused, as if requests were running.
        pause: the time (in seconds) from one token of a stream to the next.
        seen: the path and the body of each request.
        aborted: the number of streams that the client has closed.
        most: the largest number of tokens of a request; None for the probe's context.
        left: the number of requests until the server ends; None if it does not end.
        first: the first token of the latest request.
    """

    mistake: str = ""
    words: bool = False
    tells: str = "text"
    slots: int = 0
    flush: str = ""
    busy: int = 0
    running: int = 0
    pause: float = 0.02
    config: Mapping[str, Any] = field(default_factory=lambda: CONFIG)
    seen: list[tuple[str, Any]] = field(default_factory=list)
    aborted: int = 0
    url: str = ""
    most: int | None = None
    left: int | None = None
    first: int = 0

    @property
    def probe(self) -> Probe:
        return get_probe(self.config)

    def answer(self, prompt: list[int], count: int) -> list[int]:
        """Returns the ids that the probe generates."""
        probe = self.probe
        tokens: list[Token | None] = [probe.get_token(number) for number in prompt]
        most = self.most or probe.context
        if not tokens or None in tokens or len(tokens) + count > most:
            raise ValueError
        known = [token for token in tokens if token is not None]
        generated = generate(probe.heads, probe.usual, known, count)
        if generated is None:
            raise ValueError
        ids = [probe.get_id(token) for token in generated]
        if self.mistake == "stale" and len(prompt) < 4:
            ids[0] = self.first
        self.first = prompt[0]
        return ids


def write_description(folder: Path) -> str:
    """Writes the description of the probe, with empty weights. Returns the folder."""
    (folder / "model.gguf").touch()
    described = {
        "format": FORMAT,
        **CONFIG,
        "architecture": "llama",
        "dtype": "float32",
        "weights": "model.gguf",
        "digest": sha256().hexdigest(),
    }
    (folder / NAME).write_text(json.dumps(described))
    return str(folder)


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    fake: Fake

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def send(self, status: int, body: Any, sort: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", sort)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.fake.seen.append((self.path, None))
        if self.path == "/v1/models":
            self.send(200, {"data": [{"id": "probe"}]})
        elif self.path == "/slots" and self.fake.slots:
            self.send(200, [{"id": number} for number in range(self.fake.slots)])
        else:
            self.send(404, {"error": "no such path"})

    def do_POST(self) -> None:
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fake.seen.append((self.path, body))
        if fake.left is not None:
            fake.left -= 1
        if fake.left == 0:
            self.server.server_close()
            self.close_connection = True
        elif self.path.startswith("/slots/") and fake.slots:
            self.send(200, {})
        elif self.path == fake.flush and fake.running:
            fake.running -= 1
            self.send(400, b"requests are running", "text/plain")
        elif self.path == fake.flush:
            self.send(200, b"flushed", "text/plain")
        elif self.path != "/v1/completions":
            self.send(404, {"error": "no such path"})
        elif fake.busy:
            fake.busy -= 1
            self.send(429, {"error": "busy"})
        elif not self.misbehave():
            self.complete(body)

    def complete(self, body: Any) -> None:
        fake, prompt = self.fake, body["prompt"]
        refused = REFUSED.get(fake.mistake, ())
        is_refused = not body.keys().isdisjoint(refused)
        if isinstance(prompt, str) != fake.words or is_refused:
            self.send(400, {"error": "prompt"})
            return
        if isinstance(prompt, str):
            prompt = [int(word[1:]) for word in prompt.split()]
        try:
            ids = fake.answer(prompt, body["max_tokens"])
        except ValueError:
            self.send(400, {"error": "context"})
            return
        if fake.mistake == "no tokenizer" and not body.get("return_token_ids"):
            self.send(200, {"choices": [{"text": ""}]})
            return
        if fake.mistake == "another model":
            ids = [1] * len(ids)
        if body.get("stream"):
            self.stream(ids)
        else:
            usage = {"prompt_tokens_details": {"cached_tokens": 7}}
            answers = 1 if fake.mistake == "one answer" else body.get("n", 1)
            choices = [self.choose(ids)] * answers
            self.send(200, {"choices": choices, "usage": usage})

    def choose(self, ids: list[int]) -> dict[str, Any]:
        """Returns a choice that tells the ids in the chosen way."""
        tells, sure = self.fake.tells, [-0.001] * len(ids)
        text = "".join(f"t{number} " for number in ids)
        if tells == "token_ids":
            return {"text": "", "token_ids": ids}
        if tells == "content":
            content = [{"id": number, "logprob": -0.001} for number in ids]
            return {"text": text, "logprobs": {"content": content}}
        if tells == "tokens":
            return {"text": "", "logprobs": {"tokens": ids, "token_logprobs": sure}}
        return {"text": text, "logprobs": {"tokens": ["?"], "token_logprobs": sure}}

    def stream(self, ids: list[int]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            if self.fake.mistake == "half stream":
                ids = ids[:-1]
            for number in ids:
                event = json.dumps({"choices": [self.choose([number])]})
                self.wfile.write(f"data: {event}\n\n".encode())
                self.wfile.flush()
                time.sleep(self.fake.pause)
            if self.fake.mistake == "half event":
                self.wfile.write(b'data: {"choices": [')
            elif self.fake.mistake == "slow stream":
                time.sleep(2)
            elif self.fake.mistake != "half stream":
                self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.fake.aborted += 1

    def misbehave(self) -> bool:
        """Answers a request in a wrong way; returns whether it did."""
        mistake = self.fake.mistake
        if mistake == "garbage":
            self.send(200, b'{"\xff\x1b[2J":', "application/octet-stream")
        elif mistake == "html":
            self.send(200, b"<html>busy</html>", "text/html")
        elif mistake == "deep":
            self.send(200, b'{"a":' + b"[" * 200_000)
        elif mistake == "no choices":
            self.send(200, {"choices": 5})
        elif mistake == "big number":
            self.send(200, {"choices": [{"token_ids": [10**30]}]})
        elif mistake == "closed":
            self.close_connection = True
        elif mistake == "failed":
            self.send(500, {"error": "out of memory"})
        elif mistake == "redirect":
            self.send_response(307)
            self.send_header("Location", "http://192.0.2.1/v1/completions")
            self.end_headers()
        elif mistake == "silent":
            time.sleep(1)
        elif mistake in ("endless", "slow"):
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b" " * (1 if mistake == "slow" else 1 << 16))
                    time.sleep(0.05 if mistake == "slow" else 0)
        else:
            return False
        return True


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    """Runs the server on a free port."""
    handler = type("Handler", (Handler,), {"fake": fake})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
