"""Defines the common declarations of the backends of third-party block managers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lockstep.harness.backends import Backend, Duty, Kind
from lockstep.impl.torch.arrays import TorchArrays

LEDGER = Path(__file__).parent / "ledger"
SHARE = 4
"""A backend that differs little from another backend runs 1/SHARE of the programs."""

OPERATIONS = frozenset(
    {
        *("open", "match", "schedule", "run", "accept", "preempt", "free", "evict"),
        "reset",
    }
)
"""The operations of an engine without `fork` and `rewind`: several answers to a prompt
are requests that hit it."""

WITHDRAW = Duty(
    {"op": "free", "reuse": [0, 0]}, "free with reuse false: there is no such call"
)

Groups = Sequence[Sequence[Mapping[str, Any]]]


def full(block: int, layers: int = 1) -> dict[str, Any]:
    return {"type": "full", "block": block, "layers": layers}


def sliding(block: int, width: int, layers: int = 1) -> dict[str, Any]:
    return {"type": "sliding", "block": block, "width": width, "layers": layers}


def chunked(block: int, width: int) -> dict[str, Any]:
    return {"type": "chunked", "block": block, "width": width, "layers": 1}


def state(block: int) -> dict[str, Any]:
    return {"type": "state", "block": block, "layers": 1}


def declare_drafting(kinds: Mapping[str, Kind]) -> Mapping[str, Kind]:
    """Declares drafts in addition."""
    lookahead = {"lookahead": (2, 1, 3)}
    return {
        name: replace(kind, config={**kind.config, **lookahead})
        for name, kind in kinds.items()
    }


def declare_engine(
    engine: str,
    name: str,
    kinds: Mapping[str, Kind],
    opener: Callable[[Mapping[str, Any]], Any],
    share: int = 1,
) -> Backend:
    """Declares a backend for the block manager of an engine; `engine` is its package."""
    return Backend(
        name=name,
        device="cpu",
        contracts={"paged": kinds},
        arrays=TorchArrays("cpu"),
        open=opener,
        ledger=LEDGER,
        versions={package: version(package) for package in (engine, "torch")},
        share=share,
    )
