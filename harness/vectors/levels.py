"""What is drawn for a set of vectors: first what any engine can run, then the rest.

A cache that has five of thirteen operations can run few programs of thirteen. So the
programs of a kind come in levels, each of which may do more than the one before, and
covers what only it can reach. An engine runs those whose operations and settings it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.backend import Kind
from harness.contracts import CONTRACTS
from harness.contracts.layer import CHOICES

DTYPES = ("float32", "float16", "bfloat16")

BASIC: Mapping[str, Sequence[str]] = {
    "layer": ("state", "view", "size", "trim", "clone", "free"),
    "unified": ("copy_prefix", "remove", "can_resume"),
    "prefix": ("cancel", "break", "count", "free"),
}
"""The operations that most engines have, beside those without which there is nothing."""

ALWAYS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "kv": {"step": CHOICES["step"]},
    "rotating": {"step": CHOICES["step"]},
}
"""Fields that are named so that the abstract states around them count."""

MASKS: Mapping[str, Sequence[Any]] = {
    "mask_padding": (1, 4),
    "mask_form": ("any", "additive"),
}
POOL: Mapping[str, Sequence[Any]] = {
    "layers": (1, 2, 3),
    "cache_padding": (1, 4, 32),
    "mask_padding": (1, 4, 32),
    "mask_dtype": DTYPES,
    "permuted_values": (False, True),
}
SETTINGS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "kv": {"chunk": (None, 2, 3), **MASKS},
    "rotating": {"keep": (0, 1, 2), **MASKS},
    "state": {},
    **dict.fromkeys(CONTRACTS["unified"].kinds, POOL),
    "session": {},
    "trie": {"interval": (None, 1, 2, 3)},
    "slots": {"interval": (None, 1, 2, 3)},
}
"""The fields that stay at their default before the last level, the default first."""


@dataclass(frozen=True)
class Level:
    """Programs that are drawn for one declaration. about: what they ask of an engine."""

    name: str
    about: str
    declared: Kind


def list_levels(contract: str, kind: str) -> list[Level]:
    """The levels of a kind, the simplest first; those that would add nothing are left
    out."""
    rules = CONTRACTS[contract]
    every = rules.list_operations(kind)
    core = [name for name in every if name in rules.required]
    basic = [name for name in every if name in (*core, *BASIC[contract])]
    plain: dict[str, Any] = {name: tuple(v) for name, v in ALWAYS.get(kind, {}).items()}
    settings = {name: tuple(v) for name, v in SETTINGS[kind].items()}
    levels = [
        Level("core", f"only {', '.join(core)}", Kind(frozenset(core), plain)),
        Level("basic", f"also {', '.join(basic)}", Kind(frozenset(basic), plain)),
        Level("full", "all operations", Kind(frozenset(every), plain)),
        Level(
            "usage",
            "also calls that break a rule of usage, and must be refused",
            Kind(frozenset(every), plain, refuses=True),
        ),
    ]
    if settings:
        about = f"also {', '.join(settings)} beside their defaults"
        config = {**plain, **settings}
        levels.append(Level("settings", about, Kind(frozenset(every), config)))
    return levels


def get_whole(contract: str, kind: str) -> Kind:
    """All levels in one declaration."""
    last = list_levels(contract, kind)[-1].declared
    return Kind(last.operations, last.config, refuses=True)
