"""The job of `lockstep vectors`: a set of files, made on all cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.harness import __version__
from lockstep.harness.backends.backend import REFERENCE_NAME
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.payload import BITS, Role, compute_vectors
from lockstep.harness.jobs.check import run_tasks
from lockstep.harness.programs.vectors.manifest import (
    MANIFEST,
    make_manifest,
    read_manifest,
    write_lines,
    write_pretty,
)
from lockstep.harness.programs.vectors.schema import make_schema
from lockstep.harness.programs.vectors.selection import ADDED, SIZES
from lockstep.harness.workers import messages

MANUAL, SCHEMA = "README.md", "schema.json"


@dataclass
class Export:
    """A set that is being made. drawn: programs so far, by kind. done: kinds that are
    over, with their entry in the manifest."""

    size: str
    kinds: Sequence[tuple[str, str]]
    drawn: dict[str, int] = field(default_factory=dict)
    done: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @property
    def bytes(self) -> int:
        return sum(map(len, self.contents.values()))


Watch = Callable[[Export], None]


def list_kinds(chosen: Sequence[str]) -> list[tuple[str, str]]:
    """(contract, kind) of the chosen kinds, or of all."""
    return [
        (rules.name, kind)
        for rules in CONTRACTS.values()
        for kind in rules.kinds
        if not chosen or kind in chosen
    ]


def export(
    folder: Path, size: str, kinds: Sequence[str], jobs: int, watch: Watch
) -> Export:
    """Makes a set and writes it to a folder.

    Raises:
        UsageError: the folder holds something else than a former set.
    """
    replaced = list_replaced(folder)
    work = Export(size, list_kinds(kinds))
    tasks = [messages.DrawVectors(REFERENCE_NAME, *own, size) for own in work.kinds]
    run_tasks(tasks, jobs, partial(keep_drawn, work), lambda: watch(work))
    # Workers end in any order.
    names = [get_name(*own) for own in work.kinds]
    work.contents = {
        MANUAL: make_manual(size, work.done).encode(),
        SCHEMA: write_pretty(make_schema()),
        **{name: work.contents[name] for name in names},
    }
    manifest = write_pretty(make_manifest(size, work.contents, work.done))
    write_set(folder, replaced, work.contents, manifest)
    return work


def get_name(contract: str, kind: str) -> str:
    return f"{contract}-{kind}.jsonl"


def keep_drawn(work: Export, task: messages.DrawVectors, event: messages.Event) -> None:
    name = get_name(task.contract, task.kind)
    if isinstance(event, messages.Progress):
        work.drawn[name] = event.counts.programs
    elif isinstance(event, messages.Drawn):
        work.drawn[name] = event.holds["drawn"]
        work.done[name] = event.holds
        work.contents[name] = write_lines(event.lines)
    elif isinstance(event, messages.Stopped):
        raise UsageError(f"{name}: programs could not be drawn: {event.why}")


# --- the README of a set ----------------------------------------------------------------


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


# --- the folder of a set ----------------------------------------------------------------


DRAFT = f"{MANIFEST}.draft"


def list_replaced(folder: Path) -> list[Path]:
    """The files of a former set in the folder, which a new set replaces.

    Raises:
        UsageError: the folder holds anything else.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder}: is not a folder; choose another with -o")
    if not folder.exists():
        return []
    try:
        present = sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read: {error.strerror}") from None
    if not present:
        return []
    try:
        former = {MANIFEST, DRAFT, *read_manifest(folder)}
    except UsageError as error:
        raise UsageError(
            f"{folder}: is not empty, and holds no set of vectors that could be replaced"
            f" ({error}); choose another folder with -o"
        ) from None
    for path in present:
        if path.name not in former or (path.is_dir() and not path.is_symlink()):
            raise UsageError(
                f"{path}: does not belong to the set of vectors in this folder; move it,"
                " or choose another folder with -o"
            )
    return present


def write_set(
    folder: Path, replaced: list[Path], contents: Mapping[str, bytes], manifest: bytes
) -> None:
    """Writes the files. The manifest first: if this breaks off, it names what is there,
    and the next set can take its place."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in replaced:
            if path.name != MANIFEST:
                path.unlink(missing_ok=True)
        draft = folder / DRAFT
        create(draft, manifest)
        draft.replace(folder / MANIFEST)
        for name, content in contents.items():
            create(folder / name, content)
    except OSError as error:
        place = error.filename or folder
        raise UsageError(f"{place}: cannot be written: {error.strerror}") from None


def create(path: Path, content: bytes) -> None:
    """A new file: never through a link, never over one that came in between."""
    with path.open("xb") as file:
        file.write(content)
