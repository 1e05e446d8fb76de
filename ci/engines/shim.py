"""Serves OpenAI's completions for an engine that has no server of its own.

    python ci/engines/shim.py ctranslate2 PROBE PORT '{"static": 8}'

The script runs in the engine's environment, and needs only the engine. It adds no cache
and no check: a request that the engine refuses has status 400. Requests that arrive while
the engine runs are its next batch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol

Prompt = Sequence[int]
Request = tuple[Prompt, int, "Future[Sequence[int]]"]
"""A prompt, the number of tokens to generate, and the result."""


class Engine(Protocol):
    """An engine with a probe.

    same_length: the prompts of a batch must have the same length.
    """

    same_length: bool

    def generate(self, prompts: Sequence[Prompt], count: int) -> Sequence[Sequence[int]]:
        """Generates `count` tokens for each prompt of a batch."""


class CTranslate2:
    """CTranslate2.

    Args:
        type: the type of the weights.
        static: the number of first tokens of a prompt that are its static prompt, whose
            state the engine keeps. Batches then have one prompt.
    """

    same_length = False

    def __init__(self, probe: Path, type: str = "default", static: int = 0) -> None:
        converters = import_module("ctranslate2.converters")
        folder = tempfile.mkdtemp()
        converters.TransformersConverter(str(probe)).convert(folder, force=True)
        options = {"device": "cpu", "compute_type": type, "intra_threads": 1}
        self.generator = import_module("ctranslate2").Generator(folder, **options)
        self.static = static

    def generate(self, prompts: Sequence[Prompt], count: int) -> Sequence[Sequence[int]]:
        options: dict[str, Any] = {"include_prompt_in_result": False, "end_token": []}
        options |= {"max_length": count, "sampling_topk": 1}
        texts = [[f"t{token}" for token in prompt] for prompt in prompts]
        if self.static:
            at = min(self.static, len(texts[0]) - 1)
            texts, options["static_prompt"] = [texts[0][at:]], texts[0][:at]
        results = self.generator.generate_batch(texts, **options)
        return [result.sequences_ids[0] for result in results]


class OnnxRuntime:
    """ONNX Runtime GenAI.

    Args:
        overlay: changes of the config of the engine.
        rewind: one generator runs all requests, and is rewound to the prefix that a
            prompt shares with the request before it. Batches then have one prompt.
    """

    same_length = True

    def __init__(
        self, probe: Path, overlay: Mapping[str, Any] | None = None, rewind: bool = False
    ) -> None:
        folder, builder = tempfile.mkdtemp(), "onnxruntime_genai.models.builder"
        files = "-i", str(probe), "-o", folder, "-c", tempfile.mkdtemp()
        make = [sys.executable, "-m", builder, *files, "-p", "fp32", "-e", "cpu"]
        subprocess.run(make, check=True)
        self.engine = import_module("onnxruntime_genai")
        config = self.engine.Config(folder)
        config.overlay(json.dumps(overlay or {}))
        self.model = self.engine.Model(config)
        described = json.loads((probe / "config.json").read_text())
        self.context, self.rewinds = described["max_position_embeddings"], rewind
        self.kept: Any = None

    def open(self, rows: int) -> Any:
        params = self.engine.GeneratorParams(self.model)
        sizes = {"max_length": self.context, "batch_size": rows}
        params.set_search_options(do_sample=False, **sizes)
        return self.engine.Generator(self.model, params)

    def rewind(self, prompt: Prompt) -> int:
        """Makes `kept` hold a prefix of a prompt; returns the length of the prefix."""
        if self.kept is None:
            self.kept = self.open(1)
            return 0
        pairs = zip(self.kept.get_sequence(0), prompt[:-1], strict=False)
        common = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        self.kept.rewind_to(common)
        return common

    def generate(self, prompts: Sequence[Prompt], count: int) -> Sequence[Sequence[int]]:
        if self.rewinds:
            first = self.rewind(prompts[0])
            generator, prompts = self.kept, [prompts[0][first:]]
        else:
            generator = self.open(len(prompts))
        generator.append_tokens(import_module("numpy").array(prompts, "int32"))
        steps = []
        for _ in range(count):
            generator.generate_next_token()
            steps.append([int(token) for token in generator.get_next_tokens()])
        return [*zip(*steps, strict=True)]


ENGINES: Mapping[str, Callable[..., Engine]] = {
    "ctranslate2": CTranslate2,
    "onnxruntime": OnnxRuntime,
}


def run(requests: SimpleQueue[Request], engine: Engine, most: int) -> None:
    """Runs batches of up to `most` requests for the same number of tokens."""

    def fits(request: Request) -> bool:
        prompt, count, _ = waiting[0]
        is_equal = not engine.same_length or len(request[0]) == len(prompt)
        return request[1] == count and is_equal

    waiting: list[Request] = []
    while True:
        if not waiting:
            waiting.append(requests.get())
        try:
            while True:
                waiting.append(requests.get_nowait())
        except Empty:
            pass
        batch = [*filter(fits, waiting)][:most]
        waiting = [request for request in waiting if request not in batch]
        try:
            prompts, count = [prompt for prompt, _, _ in batch], batch[0][1]
            answers = engine.generate(prompts, count)
            for (_, _, future), ids in zip(batch, answers, strict=True):
                future.set_result(ids)
        except Exception as error:
            traceback.print_exc()
            for _, _, future in batch:
                future.set_exception(error)


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    requests: SimpleQueue[Request]

    def log_message(self, format: str, *arguments: Any) -> None:
        """Prints nothing."""

    def do_GET(self) -> None:
        self.send(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body.get("prompt")
        is_valid = isinstance(prompt, list) and body.keys() <= {
            *("prompt", "max_tokens", "temperature", "return_token_ids")
        }
        if self.path != "/v1/completions" or not is_valid:
            self.send(400, {"error": "not supported"})
            return
        future: Future[Sequence[int]] = Future()
        self.requests.put((prompt, body["max_tokens"], future))
        try:
            ids = [*map(int, future.result())]
        except Exception as error:
            self.send(400, {"error": str(error)})
        else:
            self.send(200, {"choices": [{"token_ids": ids}]})

    def send(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main(name: str, probe: str, port: str, text: str = "{}") -> None:
    settings = json.loads(text)
    most = settings.pop("batch", 8)
    engine = ENGINES[name](Path(probe), **settings)
    requests: SimpleQueue[Request] = SimpleQueue()
    handler = type("Bound", (Handler,), {"requests": requests})
    with ThreadingHTTPServer(("127.0.0.1", int(port)), handler) as server:
        Thread(target=run, args=(requests, engine, most), daemon=True).start()
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
