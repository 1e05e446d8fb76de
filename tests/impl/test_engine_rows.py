"""The engines in this process, with each of their settings: they answer as the reference
does, and mistakes in their use are found."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.engine import Generation
from lockstep.harness.backends.http.client import HttpServer
from lockstep.harness.core.errors import Broken
from lockstep.harness.execution.executor import Result, run
from tests.harness.building import make

SIZES = {"content": 512, "context": 32, "distance": 3}
CONFIG = {"kind": "serving-full", "layers": 1, "heads": 1, "window": None, **SIZES}

CALLS = [
    {"op": "complete", "request": "a", "new": 12, "count": 8},
    {"op": "complete", "request": "b", "of": "a", "pieces": [[0, 20]], "new": 4},
    {"op": "queue", "request": "c", "of": "a", "pieces": [[0, 5]], "new": 2, "count": 9},
    {"op": "queue", "request": "d", "of": "b", "pieces": [[0, 18]], "new": 20},
    {"op": "run"},
    {
        "op": "complete",
        "request": "e",
        "of": "a",
        "pieces": [[0, 9]],
        "head": 0,
        "back": 7,
    },
]
STREAM = [
    {"op": "begin", "request": "f", "new": 6, "count": 20},
    {"op": "begin", "request": "g", "new": 20, "count": 10},
    {"op": "read", "request": "f", "count": 3},
    {"op": "read", "request": "g", "count": 10},
    {"op": "abort", "request": "f"},
    {"op": "complete", "request": "h", "of": "g", "pieces": [[0, 23]], "new": 2},
]


def run_calls(backend: Backend, kind: str) -> Result:
    declared = backend.contracts["serving"][kind]
    fixed = {name: values[0] for name, values in declared.config.items()}
    ops = [*CALLS, *(STREAM if "begin" in declared.operations else ())]
    program = make(*ops, contract="serving", **{**CONFIG, "kind": kind, **fixed})
    return run(program, backend)


def list_backends(name: str, divergent: set[str]) -> list[Any]:
    """Lists the backends of a module of engines that agree, with each of their kinds."""
    try:
        module = import_module(f"lockstep.impl.engines.{name}")
    except ImportError:
        return []
    backends = [module.make_backend(row) for row in module.ROWS if row not in divergent]
    return [
        pytest.param(backend, kind, id=f"{backend.name}-{kind}")
        for backend in backends
        for kind in backend.contracts["serving"]
    ]


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        *list_backends("hugging_face", {"generate-static-ngram"}),
        *list_backends("mlx_server", {"mlx-lm-server-drafts"}),
    ],
)
def test_each_row_agrees(backend: Backend, kind: str) -> None:
    result = run_calls(backend, kind)
    assert result.divergence is None


# --- transformers -----------------------------------------------------------------------


@pytest.fixture
def hugging_face() -> Any:
    return pytest.importorskip("lockstep.impl.engines.hugging_face")


def test_drafts_beyond_a_static_cache(hugging_face: Any) -> None:
    """See the README of impl/peers."""
    result = run_calls(hugging_face.generate_static_ngram(), "serving-full")
    assert "IndexError" in result.divergence.message


def test_a_cache_that_keeps_a_token_too_many_is_found(
    hugging_face: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = hugging_face.DynamicCache
    crop = cache.crop
    monkeypatch.setattr(cache, "crop", lambda self, count: crop(self, count + 1))
    result = run_calls(hugging_face.generate_cropped(), "serving-latent")
    assert result.divergence.operation in ("complete", "run")


def test_continuous_batches_run_out_of_blocks(
    hugging_face: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.generation.continuous_batching import offloading_manager

    waited, manager = [], offloading_manager.OffloadingManager
    offload = manager.offload_requests

    def note(self: Any) -> Any:
        waited.append(self)
        return offload(self)

    monkeypatch.setattr(manager, "offload_requests", note)
    engine = hugging_face.continuous_unshared().open(CONFIG)
    firsts = (0, 100, 200)
    answers = engine.complete([Generation([*range(at, at + 12)], 20) for at in firsts])
    engine.close()
    assert waited
    for first, answer in zip(firsts, answers, strict=True):
        assert list(answer.ids) == [first + 8 + number % 4 for number in range(20)]


# --- mlx-lm -----------------------------------------------------------------------------


@pytest.fixture
def mlx_server() -> Any:
    return pytest.importorskip("lockstep.impl.engines.mlx_server")


def test_drafts_leave_a_cache_without_its_last_token(mlx_server: Any) -> None:
    """See the README of impl/peers."""
    result = run_calls(mlx_server.drafts(), "serving-full")
    assert result.divergence.what == "contents"


def test_a_closed_server_leaves_nothing(mlx_server: Any) -> None:
    engine = mlx_server.default().open(CONFIG)
    stream = engine.begin(Generation([1, 2, 3, 4], 28))
    stream.read(1)
    engine.close()
    assert not engine.generator.generation_available()
    with pytest.raises(Broken, match="ConnectionRefusedError"):
        HttpServer(engine.transport.address, 5).get("/health")
