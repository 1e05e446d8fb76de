"""Exceptions that count as refusals: those that a backend declares, and no others."""

from __future__ import annotations

from dataclasses import replace
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
from tests.harness.building import make, trim, update
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
    with pytest.raises(Broken, match="without a message"):
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
