"""A refused removal that leaves a sequence undefined until it is cleared."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend, list_unchecked
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.ledger import find_unclear, why_unsupported
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import load
from tests.harness.building import (
    draw,
    forward,
    make,
)

UNIFIED = CONTRACTS["unified"]
KINDS = [kind for kind in UNIFIED.kinds if kind != "encoder"]


def remove(sequence: int, begin: int, end: int | None = None) -> dict[str, Any]:
    return {"op": "remove", "sequence": sequence, "begin": begin, "end": end}


COPY = {"op": "copy_prefix", "source": 0, "target": 1, "length": 2}
SHARED = [forward([0, 1], [0, 0]), COPY, remove(0, 0, 1)]
"""The last operation is refused."""


def make_shared(*ops: dict[str, Any]) -> Program:
    return make(*SHARED, *ops, contract="unified", kind="causal", sequences=2)


def never(ops: Any, op: Any, model: Any) -> bool:
    return False


@pytest.mark.parametrize(
    ("after", "step"),
    [
        ([], None),
        ([remove(0, 0)], None),
        ([remove(0, 0), forward([2], [1])], None),
        ([forward([2], [1])], 3),
        ([remove(1, 0)], 3),
        ([remove(0, 0, 9)], 3),
        ([remove(0, 0), remove(1, 0, 1), forward([2], [1])], None),
        ([{"op": "load", "from": "x"}, remove(0, 0)], None),  # it is skipped
    ],
)
def test_what_follows_a_refused_removal(
    after: list[dict[str, Any]], step: int | None
) -> None:
    assert find_unclear(make_shared(*after)) == step


def make_half(atomic: bool) -> Backend:
    """Ours, but a removal that is refused has dropped the tokens before the gap."""
    backend = load("torch-cpu")

    class Half:
        def __init__(self, config: Any) -> None:
            self.cache = backend.open(config)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.cache, name)

        def remove(self, sequence: int, begin: int, end: int | None) -> None:
            try:
                self.cache.remove(sequence, begin, end)
            except (backend.errors["shared"], backend.errors["not-supported"]):
                self.cache.remove(sequence, 0, None)
                raise

    kinds = backend.contracts["unified"]
    own = {kind: replace(declared, atomic=atomic) for kind, declared in kinds.items()}
    return replace(backend, open=Half, contracts={"unified": own})


@pytest.mark.parametrize("atomic", [True, False])
def test_only_a_cache_that_promises_it_has_to_leave_all_as_it_was(atomic: bool) -> None:
    pytest.importorskip("torch")
    backend = make_half(atomic)
    declared = backend.contracts["unified"]["causal"]
    programs = islice(draw("unified", "causal", declared), 150)
    found = [run(program, backend).divergence for program in programs]
    assert any(found) == atomic
    assert list_unchecked(backend, declared).count("after a refused remove") != atomic


def test_a_program_that_goes_on_is_not_declared() -> None:
    pytest.importorskip("torch")
    program, cleared = make_shared(forward([2], [1])), make_shared(remove(0, 0))
    assert why_unsupported(program, make_half(atomic=True)) is None
    half = make_half(atomic=False)
    assert why_unsupported(cleared, half) is None
    assert why_unsupported(program, half) == (
        "torch-cpu does not declare that a refused remove is atomic, and step 3 does not"
        " clear the sequence"
    )
