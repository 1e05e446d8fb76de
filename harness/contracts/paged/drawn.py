"""Defines the values that the generator draws for the config of paged programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.contracts.paged.model import HYBRID


def full(block: int, layers: int = 1) -> dict[str, Any]:
    return {"type": "full", "block": block, "layers": layers}


def sliding(block: int, width: int) -> dict[str, Any]:
    return {"type": "sliding", "block": block, "width": width, "layers": 1}


def chunked(block: int, width: int) -> dict[str, Any]:
    return {"type": "chunked", "block": block, "width": width, "layers": 1}


def state(block: int) -> dict[str, Any]:
    return {"type": "state", "block": block, "layers": 1}


GROUPS: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]] = {
    "paged-full": ([full(2)], [full(1)], [full(4, 2)], [full(3)], [full(2), full(2)]),
    "paged-sliding": (
        [sliding(2, 3)],
        [sliding(2, 4)],
        [sliding(4, 3)],
        [sliding(1, 2)],
        [sliding(2, 1)],
        [sliding(3, 8)],
        [sliding(2, 3), sliding(2, 5)],
    ),
    "paged-chunked": ([chunked(2, 4)], [chunked(1, 3)], [chunked(2, 6)], [chunked(4, 4)]),
    "paged-state": ([state(2)], [state(1)], [state(4)], [state(3)]),
    HYBRID: (
        [full(2), sliding(2, 3)],
        [full(2), state(2)],
        [full(2), chunked(2, 4), sliding(2, 3)],
        [full(4), sliding(2, 5)],
        [full(2), sliding(4, 5)],
        [sliding(2, 3), full(2), sliding(2, 6)],
        [full(1), state(4)],
        [full(2), sliding(2, 3), state(4)],
    ),
}
"""Kind → the groups that the generator draws, the simplest first."""

CHOICES: Mapping[str, Sequence[Any]] = {
    "blocks": (12, 8, 6, 4, 16, 24, 40),
    "max_length": (24, 24, 12),
    "prefix_cache": (True, True, True, False),
    "lookahead": (0, 2, 1, 3, 2),
    "heads": (1, 2),
    "key_dim": (4, 6),
    "value_dim": (4, 6),
    "dtype": ("float32", "float16", "bfloat16"),
}

FEW_BLOCKS = (12, 3, 4, 6, 2, 8)
"""The numbers of blocks drawn if all groups are states; a request needs few states."""
