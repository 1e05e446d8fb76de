"""Backends whose caches are changed once they are opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lockstep.harness.backends.backend import Backend
from tests.harness.building import KINDS

STORING = [kind for contract, kind in KINDS if contract != "prefix"]
"""The kinds whose caches store K and V themselves."""


def change_caches(backend: Backend, change: Callable[[Any], Any], *kinds: str) -> Backend:
    """The backend, but each cache of these kinds, of all if none is named, is what
    `change` makes of it; where that returns None, it has changed the cache itself."""

    def open_changed(config: Mapping[str, Any]) -> Any:
        opened = backend.open(config)
        if kinds and config["kind"] not in kinds:
            return opened
        changed = change(opened)
        return opened if changed is None else changed

    return replace(backend, open=open_changed)
