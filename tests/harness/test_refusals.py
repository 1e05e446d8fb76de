"""Exceptions that count as refusals: those that a backend declares, and no others."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.answers import ask_backend
from lockstep.harness.core.errors import Broken
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.ledger import why_unsupported
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import load
from tests.harness.building import forward, make, trim, update
from tests.harness.misbehaving import Cache, correct, throw

MISUSE = make(update(1), trim(-1), **{"step": 1})


class Misuse(Exception):
    pass


class TooMany(Misuse):
    pass


def refuse(error: Exception, **declared: type[Exception]) -> Backend:
    """A cache that answers a negative count with an exception."""

    class Refusing(Cache):
        def trim(self, count: int) -> Any:
            return super().trim(count) if count >= 0 else throw(error)

    return replace(correct(), open=lambda _: Refusing(), errors=declared)


def find(program: Program, backend: Backend) -> str | None:
    divergence = run(program, backend).divergence
    return divergence.get_signature(program) if divergence else None


@pytest.mark.parametrize(
    ("error", "declared", "signature"),
    [
        (ValueError("negative"), {}, None),
        (Misuse("negative"), {"usage": Misuse}, None),
        (TooMany("negative"), {"usage": Misuse}, None),
        (ValueError("negative"), {"usage": Misuse}, "layer-kv-trim-error"),
        (RuntimeError("negative"), {}, "layer-kv-trim-error"),
    ],
)
def test_what_is_declared_refuses(
    error: Exception, declared: dict[str, type[Exception]], signature: str | None
) -> None:
    assert find(MISUSE, refuse(error, **declared)) == signature


def test_of_two_classes_the_more_special_one_counts() -> None:
    errors = {"usage": Misuse, "shared": TooMany}
    assert ask_backend(lambda: throw(TooMany("n")), errors)["error"] == "shared"
    assert ask_backend(lambda: throw(Misuse("n")), errors)["error"] == "usage"
    with pytest.raises(Broken, match="has no message"):
        ask_backend(lambda: throw(Misuse(" ")), errors)


# --- a framework's exceptions, in a call that should be refused -------------------------


@pytest.mark.parametrize("name", ["torch", "mlx"])
def test_a_value_error_of_numpy_is_no_refusal(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name)
    from lockstep.impl.shared.kv import KVCacheBase

    backend = load(f"{name}-cpu")
    assert run(MISUSE, backend).divergence is None
    monkeypatch.setattr(KVCacheBase, "trim", lambda *_: np.zeros(2).reshape(3))
    assert find(MISUSE, backend) == "layer-kv-trim-error"


def test_an_exception_of_transformers_is_no_refusal() -> None:
    """Not even a documented one: its callers must not lead to it, which is declared."""
    pytest.importorskip("transformers.cache_utils")
    backend = load("transformers")
    program = make(update(3), trim(1), kind="rotating", window=2)
    divergence = run(program, backend).divergence
    assert divergence is not None
    assert divergence.get_signature(program) == "layer-rotating-trim-error"
    assert "RuntimeError: `crop` was called, but" in divergence.message
    assert "activate_past_recording" in str(why_unsupported(program, backend))


# --- arrays of another rank, and what other caches have saved ---------------------------


class Careless:
    """A cache that ignores each refusal of one of its methods."""

    def __init__(self, cache: Any, method: str) -> None:
        self._cache, self._method = cache, method

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._cache, name)
        return partial(ignore_refusal, attribute) if name == self._method else attribute


def ignore_refusal(call: Any, *args: Any) -> Any:
    with suppress(ValueError):
        return call(*args)


OPEN = {"op": "open", "rows": 2}
FED = forward([0], [0])
SAVE = {"op": "save", "into": "x"}
LOAD = {"op": "load", "from": "x"}
INVALID: list[tuple[str, Any, list[Any], dict[str, Any]]] = [
    # method, contract and kind, program, config
    ("update", "layer-kv", [update(1), update(1, wrong="rank")], {}),
    ("update", "layer-rotating", [update(1), update(2, wrong="rank")], {"window": 2}),
    ("write", "layer-state", [update(1), update(1, wrong="rank")], {}),
    ("update", "batched-batch-kv", [OPEN, update(1), update(1, wrong="rank")], {}),
    ("update", "batched-batch-kv", [OPEN, update(1), update(1, wrong="heads")], {}),
    ("write", "batched-batch-state", [OPEN, update(1), update(2, wrong="rank")], {}),
    ("put", "unified-causal", [FED, {"op": "put", "axes": 3}], {}),
    ("put", "unified-causal", [FED, {"op": "put", "axes": 5}], {}),
    *(
        ("load", "unified-swa", [FED, SAVE, {**LOAD, name: 3}], {"window": 2})
        for name in ("heads", "value_dim", "layers", "sequences", "window")
    ),
    (
        "load",
        "batched-batch-rotating",
        [OPEN, SAVE, {**LOAD, "window": 3}],
        {"window": 2},
    ),
    ("load", "batched-batch-state", [OPEN, SAVE, {**LOAD, "heads": 2}], {}),
    ("restore", "paged-paged-full", [{"op": "save"}, {"op": "restore", "blocks": 9}], {}),
]


@pytest.mark.parametrize(("method", "what", "ops", "config"), INVALID)
@pytest.mark.parametrize("name", ["torch", "mlx"])
def test_invalid_calls_are_refused(
    name: str, method: str, what: str, ops: Any, config: Any
) -> None:
    pytest.importorskip(name)
    contract, _, kind = what.partition("-")
    backend = load(f"{name}-cpu")
    program = make(*ops, contract=contract, kind=kind, **config)
    result = run(program, backend)
    assert (result.divergence, result.skipped) == (None, 0), result.why_skipped
    careless = replace(backend, open=lambda it: Careless(backend.open(it), method))
    divergence = run(program, careless).divergence
    assert divergence is not None
    assert "did not refuse; expected usage" in divergence.message
