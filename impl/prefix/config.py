"""The operations, config values and construction of our prefix caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.impl.prefix.session import Session
from lockstep.impl.prefix.slots import NoSlotError, Slots
from lockstep.impl.prefix.trie import Trie

ERRORS: Mapping[str, type[Exception]] = {"no-slot": NoSlotError}

ALWAYS = {"begin", "feed", "close", "cancel", "break", "refuse", "statistics"}
STORE = {*ALWAYS, "overrun", "count", "free"}

OPERATIONS: Mapping[str, frozenset[str]] = {
    "session": frozenset(STORE),
    "trie": frozenset({*STORE, "checkpoint", "limit", "open"}),
    "slots": frozenset({*ALWAYS, "open", "reserve", "commit"}),
}

CONFIG: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "session": {},
    "trie": {"interval": (None, None, 1, 2, 3, 5)},
    "slots": {"interval": (None, 1, 2, 3)},
}


HELD: Mapping[str, float] = {"session": 4, "trie": 4, "slots": 1}
"""Kind → the limit of memory, as `impl.shared.operations` has for the caches below; a
cache of many sequences allocates all of its cells."""


def open_cache(config: Mapping[str, Any]) -> Session | Trie | Slots:
    """Returns the cache for a config, above the caches in config["caches"]."""
    caches = config["caches"]
    if config["kind"] == "session":
        return Session(caches)
    if config["kind"] == "trie":
        return Trie(caches, config["limit"], config["interval"])
    return Slots(
        caches[0],
        config["slots"],
        config["context"],
        config["keep"],
        config["several_users"],
    )
