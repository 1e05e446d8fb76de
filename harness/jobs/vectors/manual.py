"""The README of a set: how to read it in any language."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.harness import __version__
from lockstep.harness.core.payload import BITS, Role, compute_vectors
from lockstep.harness.programs.vectors.selection import ADDED, SIZES

TEMPLATE = Path(__file__).with_name("manual.md")

# (tag, layer, head, role, dim, dtype) of vectors that are written out.
EXAMPLES: tuple[tuple[int, int, int, Role, int, str], ...] = (
    (0, 0, 0, "key", 4, "float32"),
    (1, 0, 0, "key", 4, "float32"),
    (1, 0, 0, "value", 4, "float32"),
    (1, 0, 1, "key", 4, "float32"),
    (1, 1, 0, "key", 4, "float32"),
    (77, 2, 1, "query", 8, "float32"),
    (4095, 0, 0, "key", 6, "float16"),
    (5, 0, 0, "value", 4, "bfloat16"),
)

LEVELS = {
    "core": "update; forward; begin, feed, close",
    **{
        name: "also " + "; ".join(map(", ".join, added.values()))
        for name, added in ADDED.items()
    },
    "full": "all operations",
    "usage": "calls that must be refused",
    "settings": "settings that are not at their default: chunk, keep, mask_padding,"
    " mask_form, layers, cache_padding, mask_dtype, permuted_values, interval",
}


def make_manual(size: str, holds: Mapping[str, Mapping[str, Any]]) -> str:
    """The text, in which the template's @NAMES@ are filled in.

    Args:
        size: the name of the set's size.
        holds: file → its entry in the manifest.
    """
    parts = {
        "VERSION": __version__,
        "SIZE": size,
        "ABOUT": SIZES[size].about,
        "FILES": "\n".join(list_files(holds)),
        "LEVELS": "\n".join(f"* `{name}`: {about}" for name, about in LEVELS.items()),
        "PAYLOAD": "\n".join(list_examples()),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def list_files(holds: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, own in sorted(holds.items()):
        yield f"| `{name}` | {own['programs']} | {own['contract']}, kind {own['kind']} |"


def list_examples() -> Iterator[str]:
    """Rows of a table. All numbers are exact, so they are the same everywhere."""
    yield "| tag | layer | head | role | dim | dtype | x(0) … x(dim − 1), times 2 ** b |"
    yield "|" + "---|" * 7
    for tag, layer, head, role, dim, dtype in EXAMPLES:
        vectors = compute_vectors(np.array([tag]), layer, head, role, dim, dtype)
        numbers = [int(number * 2 ** BITS[dtype]) for number in vectors[0].tolist()]
        words = ", ".join(map(str, numbers))
        yield f"| {tag} | {layer} | {head} | {role} | {dim} | {dtype} | {words} |"
