"""llama.cpp's server in this process, through the package xllamacpp.

The package calls the server's handler of completions without a connection. Requests about
slots go to the server's port on this machine.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import current_thread, main_thread
from typing import Any, NamedTuple

from xllamacpp import CommonParams, Server, common_speculative_type, ggml_type

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.http.client import HttpServer, find_address
from lockstep.harness.backends.http.completions import (
    COMPLETIONS,
    CompletionEngine,
    Form,
    encode,
)
from lockstep.impl.engines.models import SECONDS, declare, get_weights

SLOTS = 4
CONTEXT = 256
"""The server rounds the context of a slot up to a multiple of 256."""

COMPLETE = frozenset({"complete", "interrogate", "flush"})

TOGETHER = Kind(
    COMPLETE | {"queue", "run", "begin", "read", "abort"},
    {"context": (CONTEXT,)},
    refuses=True,
)
"""Requests run at the same time, and the server chooses their slots."""

NAMED = Kind(COMPLETE, {"context": (CONTEXT,), "slots": (SLOTS,)}, refuses=True)
"""Requests name slots, one after the other: while a request runs, another request that
names its slot replaces its cache (see the README of impl/peers)."""

SAVED = replace(NAMED, operations=COMPLETE | {"save", "restore"})
SHIFTING = replace(
    SAVED,
    config={
        **SAVED.config,
        "keep": (0, 4, 1),
        "distance": (CONTEXT // 2 - 1, CONTEXT // 2 - 4, 3),
        "content": (1024,),
    },
)
"""The usual ask mostly reaches the first tokens of a context that has been shifted."""

FORKING, NAMED_FORKING = (
    replace(kind, operations=kind.operations | {"fork"}) for kind in (TOGETHER, NAMED)
)
"""For servers without the host's prompt cache, or with unified cells: see the README of
impl/peers."""

FULL, SLIDING = "serving-full", "serving-sliding"
WINDOWED = (SLIDING, "serving-mixed", "serving-sinks")
RECURRENT = ("serving-convolution", "serving-state")


class Row(NamedTuple):
    """A backend.

    Attributes:
        settings: the settings of the server that differ from its defaults.
        kind: the declaration of each kind.
        kinds: the names of the kinds.
        share: see `Backend.share`; generating a thousand tokens takes a second.
    """

    settings: Mapping[str, Any]
    kind: Kind = TOGETHER
    kinds: Sequence[str] = (FULL,)
    share: int = 8


Q4, Q8 = ggml_type.GGML_TYPE_Q4_0, ggml_type.GGML_TYPE_Q8_0
NGRAM = common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_MOD

ROWS: Mapping[str, Row] = {
    "llama-cpp": Row({}, kinds=(FULL, "serving-latent"), share=4),
    "llama-cpp-slots": Row({}, SAVED),
    "llama-cpp-no-checkpoints": Row({"n_ctx_checkpoints": 0}, SAVED, WINDOWED, share=4),
    "llama-cpp-recurrent": Row({"n_ctx_checkpoints": 0}, SAVED, RECURRENT, share=16),
    "llama-cpp-checkpoints": Row({}, SAVED, (SLIDING,)),
    "llama-cpp-forks": Row({}, FORKING),
    "llama-cpp-unified": Row(
        {"kv_unified": True, "kv_unified_per_slot": CONTEXT}, FORKING
    ),
    "llama-cpp-cache-reuse": Row({"n_cache_reuse": 1}, NAMED),
    "llama-cpp-swa-full": Row(
        {"swa_full": True, "cache_ram_mib": 0}, NAMED_FORKING, (SLIDING,)
    ),
    "llama-cpp-batch": Row({"n_batch": 8, "n_ubatch": 4}),
    "llama-cpp-shift": Row(
        {"ctx_shift": True, "n_ctx_checkpoints": 0}, SHIFTING, share=32
    ),
    "llama-cpp-no-host-cache": Row({"cache_ram_mib": 0}, FORKING),
    "llama-cpp-q8": Row({"cache_type_k": Q8, "cache_type_v": Q8}),
    "llama-cpp-q4": Row({"cache_type_k": Q4, "cache_type_v": Q4}, NAMED),
    "llama-cpp-ngram": Row(
        {
            "speculative.types": [NGRAM],
            "speculative.ngram_mod.n_match": 2,
            "speculative.ngram_mod.n_min": 1,
            "speculative.ngram_mod.n_max": 4,
        }
    ),
}

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
        fields = {"logprobs": 1, "n_keep": config.get("keep") or 0}
        super().__init__(Handlers(server), Form(fields, slots=SLOTS), SECONDS)

    def close(self) -> None:
        super().close()
        del self.transport  # the server ends with its last reference


def start_server(settings: Mapping[str, Any]) -> Server:
    """Starts a server, and waits until it runs. A server that is stopped before it runs
    hangs."""
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
    settings, kind, kinds, share = ROWS[name]
    return declare(name, partial(LlamaCpp, settings), kind, kinds, share, "xllamacpp")


(
    default,
    slots,
    no_checkpoints,
    recurrent,
    checkpoints,
    forks,
    unified,
    cache_reuse,
    swa_full,
    batch,
    shift,
    no_host_cache,
    q8,
    q4,
    ngram,
) = (partial(make_backend, name) for name in ROWS)
