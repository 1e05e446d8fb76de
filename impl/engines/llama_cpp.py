"""llama.cpp's server in this process, through the package xllamacpp.

The package calls the server's handler of completions without a connection. Requests about
slots go to the server's port on this machine.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from xllamacpp import CommonParams, Server, common_speculative_type, ggml_type

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.engine import NO_ARRAYS
from lockstep.harness.backends.http.client import HttpServer, find_address
from lockstep.harness.backends.http.completions import (
    COMPLETIONS,
    CompletionEngine,
    Form,
    encode,
)
from lockstep.impl.engines.models import get_weights

SLOTS = 4
SECONDS = 10.0
"""The time limit of a request."""

CONTEXT = 256
"""The server rounds the context of a slot up to a multiple of 256."""

CONFIG: Mapping[str, tuple[Any, ...]] = {"context": (CONTEXT,), "slots": (SLOTS,)}

OPERATIONS = frozenset(
    {"complete", "queue", "run", "begin", "read", "abort", "flush", "save", "restore"}
)

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "llama-cpp": {},
    "llama-cpp-unified": {"kv_unified": True, "kv_unified_per_slot": CONTEXT},
    "llama-cpp-cache-reuse": {"n_cache_reuse": 1},
    "llama-cpp-swa-full": {"swa_full": True},
    "llama-cpp-checkpoints": {"n_ctx_checkpoints": 3, "checkpoint_min_step": 1},
    "llama-cpp-batch": {"n_batch": 8, "n_ubatch": 4},
    "llama-cpp-no-host-cache": {"cache_ram_mib": 0},
    "llama-cpp-q8": {
        "cache_type_k": ggml_type.GGML_TYPE_Q8_0,
        "cache_type_v": ggml_type.GGML_TYPE_Q8_0,
    },
    "llama-cpp-ngram": {
        "speculative.types": [
            common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE
        ],
        "speculative.ngram_simple.size_n": 2,
        "speculative.ngram_simple.size_m": 4,
    },
}
"""Backend → the settings of the server that differ from its defaults."""

HERE: Mapping[str, Any] = {
    "n_parallel": SLOTS,
    "n_gpu_layers": 0,
    "cpuparams.n_threads": 1,
    "cpuparams_batch.n_threads": 1,
    "n_threads_http": 1,
    "verbosity": -1,
    "warmup": False,
    "fit_params": False,
    "endpoint_metrics": True,
}
"""Settings for a small model in a busy process. The metrics tell when the server runs."""


class Handlers(HttpServer):
    """The transport to a server in this process."""

    def __init__(self, server: Server) -> None:
        super().__init__(find_address(server.listening_address), SECONDS)
        self.server = server

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        if path != COMPLETIONS:
            return super().post(path, body)
        answers: list[bytes] = []
        self.server.handle_completions(encode(body), answers.append)
        return answers[0]

    def start(self, path: str, body: Mapping[str, Any]) -> HandlerCall:
        return HandlerCall(self.server, encode(body))


class HandlerCall:
    """A call of the handler whose answer is streamed."""

    def __init__(self, server: Server, body: bytes) -> None:
        self.server, self.body, self.is_cut = server, body, False

    def run(self, emit: Callable[[bytes], None]) -> None:
        def take(event: bytes) -> bool:
            emit(event)
            return self.is_cut  # ends the request

        try:
            self.server.handle_completions(self.body, take)
        finally:
            del self.server  # it ends with its last reference

    def cut(self) -> None:
        self.is_cut = True


class LlamaCpp(CompletionEngine):
    """A server with its slots and an empty folder for their files."""

    def __init__(self, settings: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        folder = tempfile.mkdtemp(prefix="lockstep-slots-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        server = start_server(
            {
                "model.path": str(get_weights(config, "gguf")),
                "n_ctx": config["context"] * SLOTS,
                "slot_save_path": f"{folder}/",
                **HERE,
                **settings,
            }
        )
        super().__init__(Handlers(server), Form({"logprobs": 1}, slots=SLOTS), SECONDS)

    def close(self) -> None:
        super().close()
        del self.transport  # the server ends with its last reference


def start_server(settings: Mapping[str, Any]) -> Server:
    """Starts a server, and waits until it runs. A server that is ended before it runs
    never ends."""
    params: Any = CommonParams()
    for name, value in settings.items():
        *path, last = name.split(".")
        target = params
        for part in path:
            target = getattr(target, part)
        setattr(target, last, value)
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [(number, signal.getsignal(number)) for number in numbers]
    server = Server(params)
    server.handle_metrics()
    if current_thread() is main_thread():
        for number, handler in handlers:  # the server has replaced them by its own
            if handler is not None:
                signal.signal(number, handler)
    return server


def make_backend(name: str) -> Backend:
    kinds = {
        kind: Kind(OPERATIONS, CONFIG, refuses=True)
        for kind in ("serving-full", "serving-sliding")
    }
    return Backend(
        name=name,
        device="cpu",
        contracts={"serving": kinds},
        arrays=NO_ARRAYS,
        open=partial(LlamaCpp, SETTINGS[name]),
        ledger=Path(__file__).parents[1] / "peers" / "ledger",
        versions={"xllamacpp": version("xllamacpp")},
    )


(
    default,
    unified,
    cache_reuse,
    swa_full,
    checkpoints,
    batch,
    no_host_cache,
    q8,
    ngram,
) = (partial(make_backend, name) for name in SETTINGS)
