"""The levels of a set of vectors: first what any engine can run, then the rest.

A cache that has five of thirteen operations can run few programs of thirteen. So the
programs of a kind come in levels, each of which may do more than the one before, and
covers what only it can reach. An engine runs those whose operations and settings it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.layer import CHOICES

DTYPES = ("float32", "float16", "bfloat16")

# The operations that a level has more than the one before; the first has those
# without which there is nothing, the last all.
ADDED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "cut": {"layer": ("trim",), "unified": ("remove",), "prefix": ("cancel",)},
    "basic": {
        "layer": ("state", "size", "clone", "free"),
        "unified": ("copy_prefix", "can_resume"),
        "prefix": ("break", "count", "free"),
    },
}

# Fields that are named so that the abstract states around them count.
ALWAYS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "kv": {"step": CHOICES["step"]},
    "rotating": {"step": CHOICES["step"]},
}

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
# The fields that stay at their default before the last level, the default first.
SETTINGS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "kv": {"chunk": (None, 2, 3), **MASKS},
    "rotating": {"keep": (0, 1, 2), **MASKS},
    "state": {},
    **dict.fromkeys(CONTRACTS["unified"].kinds, POOL),
    "session": {},
    "trie": {"interval": (None, 1, 2, 3)},
    "slots": {"interval": (None, 1, 2, 3)},
}


@dataclass(frozen=True)
class Level:
    """Programs that are drawn for one declaration."""

    name: str
    declared: Kind


def list_levels(contract: str, kind: str) -> list[Level]:
    """The levels of a kind, the simplest first."""
    rules = CONTRACTS[contract]
    every = frozenset(rules.list_operations(kind))
    plain: dict[str, Any] = {name: tuple(v) for name, v in ALWAYS.get(kind, {}).items()}
    settings = {name: tuple(v) for name, v in SETTINGS[kind].items()}
    operations = every & {*rules.required}
    levels = [Level("core", Kind(operations, plain))]
    for name, added in ADDED.items():
        operations |= every & {*added[contract]}
        levels.append(Level(name, Kind(operations, plain)))
    levels.append(Level("full", Kind(every, plain)))
    levels.append(Level("usage", Kind(every, plain, refuses=True)))
    if settings:
        levels.append(Level("settings", Kind(every, {**plain, **settings})))
    return levels


def get_whole(contract: str, kind: str) -> Kind:
    """All levels in one declaration."""
    last = list_levels(contract, kind)[-1].declared
    return Kind(last.operations, last.config, refuses=True)
