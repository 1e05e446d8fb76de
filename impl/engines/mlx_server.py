"""mlx-lm's server in this process, on a port of this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import patch

from mlx_lm import server
from mlx_lm.models.cache import LRUPromptCache

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.http.client import HttpServer, find_address
from lockstep.harness.backends.http.completions import CompletionEngine, Form
from lockstep.impl.engines.models import (
    SECONDS,
    STREAMS,
    declare,
    get_weights,
    make_draft,
)


class Handler(server.APIHandler):
    """The server's handler of requests, which notes nothing."""

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class MlxServer(CompletionEngine):
    """A server with an empty prompt cache.

    Args:
        options: options of the command `mlx_lm.server`.
        drafts: whether another model drafts tokens.
        config: the config of the probe.
    """

    def __init__(
        self, options: Sequence[str], drafts: bool, config: Mapping[str, Any]
    ) -> None:
        if drafts:
            draft = get_weights(make_draft(config), "hf").parent
            options = (*options, f"--draft-model={draft}")
        provider = make_provider(get_weights(config, "hf").parent, *options)
        cache = LRUPromptCache(provider.cli_args.prompt_cache_size)
        self.generator = server.ResponseGenerator(provider, cache)
        handler = partial(Handler, self.generator)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()
        address = find_address(f"http://127.0.0.1:{self.server.server_port}")
        form = Form({"logprobs": True}, words=True)
        super().__init__(HttpServer(address, SECONDS), form, SECONDS)

    @classmethod
    def start(cls, *options: str, drafts: bool = False) -> Callable[..., MlxServer]:
        return partial(cls, options, drafts)

    def close(self) -> None:
        super().close()
        self.server.shutdown()
        self.server.server_close()
        self.generator.stop_and_join()


def make_provider(folder: Path, *options: str) -> Any:
    """Makes the provider of models for options of the command."""
    arguments = ["mlx_lm.server", "--model", str(folder), *options]
    with (
        patch.object(sys, "argv", arguments),
        patch.object(server.logging, "basicConfig"),
        patch.object(server, "run") as run,
    ):
        server.main()
    *_, provider = run.call_args.args
    return provider


# --- rows -------------------------------------------------------------------------------

KIND = Kind(STREAMS, {"context": (32,)})

SHARE = 600
"""A program takes about a second, so that a check runs one for each kind."""

FULL, MIXED = ("serving-full",), ("serving-full", "serving-mixed")

UNCACHED = "--prompt-cache-size=0"
QUANTIZED = ("--kv-bits=8", "--quantized-kv-start=0")
TIGHT = ("--prefill-step-size=4", "--decode-concurrency=2", "--prompt-concurrency=2")

ROWS: Mapping[str, tuple[Callable[..., MlxServer], Sequence[str]]] = {
    "mlx-lm-server-uncached": (MlxServer.start(UNCACHED, *TIGHT), FULL),
    "mlx-lm-server-uncached-quantized": (MlxServer.start(UNCACHED, *QUANTIZED), FULL),
    "mlx-lm-server-uncached-drafts": (MlxServer.start(UNCACHED, drafts=True), FULL),
    "mlx-lm-server": (MlxServer.start(), MIXED),
    "mlx-lm-server-tight": (MlxServer.start("--prompt-cache-size=2", *TIGHT), MIXED),
    "mlx-lm-server-quantized": (MlxServer.start(*QUANTIZED), FULL),
    "mlx-lm-server-drafts": (MlxServer.start(drafts=True), FULL),
}


def make_backend(name: str) -> Backend:
    open, kinds = ROWS[name]
    return declare(name, open, KIND, kinds, SHARE, "mlx-lm")


(
    uncached,
    uncached_quantized,
    uncached_drafts,
    default,
    tight,
    quantized,
    drafts,
) = (partial(make_backend, name) for name in ROWS)
