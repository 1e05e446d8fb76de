"""The declaration of a driver, as a `harness.backends.Backend`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.driver.arrays import WireArrays
from lockstep.harness.backends.driver.decoding import parse
from lockstep.harness.backends.driver.messages import REFUSALS, Declared, Hello


def make_backend(hello: Hello, open_cache: Callable[[Mapping[str, Any]], Any]) -> Backend:
    """The declaration. That kinds, operations and config fields exist is checked as for
    every backend; see `harness.workers.registry`. Raises Malformed."""
    return Backend(
        name=hello.name,
        device=hello.device,
        contracts={
            contract: {
                kind: make_kind(declared, f"the {contract} kind {kind}")
                for kind, declared in kinds.items()
            }
            for contract, kinds in hello.contracts.items()
        },
        arrays=WireArrays(),
        open=open_cache,
        dtypes=hello.dtypes,
        lifetime="forever",  # what came over a pipe is a copy
        causal=hello.causal,
        poison=hello.poison,
        tolerance=hello.tolerance,
        ledger=Path(hello.ledger) if hello.ledger else None,
        errors=REFUSALS,
        versions={hello.name: hello.version} if hello.version else {},
        notes=hello.notes or "",
    )


def make_kind(document: Any, place: str) -> Kind:
    declared = parse(document, Declared, place, strict=True)
    config = {
        field: tuple(values) if isinstance(values, list) else values
        for field, values in declared.config.items()
    }
    return Kind(declared.operations, config, refuses=declared.refuses)
