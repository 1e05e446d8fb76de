"""What a fault is, and how one gets into a cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.backend import Backend

MakeBand = Callable[..., Any]
"""The `make_band` of the cache's framework."""


@dataclass(frozen=True)
class Fault:
    """One mistake.

    source: where a real cache made it. shortest: operations of the shortest program known
    to show it. change: makes the mistake in a correct cache. contract: of the kind.
    """

    id: str
    source: str
    kind: str
    mistake: str
    shortest: int
    change: Callable[[Any, MakeBand], None]
    contract: str = "layer"


def make_plain_fault(
    contract: str,
    id: str,
    source: str,
    kind: str,
    mistake: str,
    shortest: int,
    change: Callable[[Any], None],
) -> Fault:
    """A mistake that needs nothing of the cache's framework."""

    def plant(cache: Any, make_band: object) -> None:
        change(cache)

    return Fault(id, source, kind, mistake, shortest, plant, contract)


def plant(fault: Fault, cache: Any, make_band: MakeBand) -> Any:
    """The cache with the mistake, which its clones have too."""
    fault.change(cache, make_band)
    if fault.contract == "layer":  # the others have no clones
        clone = cache.clone
        cache.clone = lambda: plant(fault, clone(), make_band)
    return cache


def declare(
    fault: Fault, backend: Backend, open_cache: Callable[[Mapping[str, Any]], Any]
) -> Backend:
    """The backend with the mistake in all caches of the fault's kind, which `open_cache`
    opens, and no others; those that may stand below them are as they were."""
    kind = backend.contracts[fault.contract][fault.kind]

    def open_either(config: Mapping[str, Any]) -> Any:
        is_other = config["kind"] != fault.kind
        return backend.open(config) if is_other else open_cache(config)

    return replace(
        backend,
        name=f"{backend.name}+{fault.id}",
        contracts={fault.contract: {fault.kind: kind}},
        open=open_either,
    )
