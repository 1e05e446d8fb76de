"""Programs on the block managers of released engines, which may not be installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from lockstep.harness.backends import Backend, Unavailable
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.sources import RandomSource
from lockstep.harness.programs.ledger import load_ledger

SEED = 5


def load_peers(name: str) -> Any:
    """Imports the module that declares the backends of an engine, or skips the test."""
    pytest.importorskip("torch")
    try:
        return import_module(f"lockstep.impl.peers.{name}")
    except Unavailable as missing:
        pytest.skip(str(missing))


def find(backend: Backend, kind: str, most: int, seed: int = SEED) -> tuple[int, str]:
    """Runs programs until one diverges; how many ran, and its signature or ""."""
    declared = backend.contracts["paged"][kind]
    drawer, source = Drawer("paged", kind, declared, backend.dtypes), RandomSource(seed)
    avoid = load_ledger(backend.ledger, backend.name, kind)
    for number in range(most):
        program = drawer.draw(source)
        divergence = run(program, backend, avoid=avoid).divergence
        if divergence is not None:
            return number + 1, divergence.get_signature(program)
    return most, ""
