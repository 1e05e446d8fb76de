"""Makes and writes sets of vectors.

`manual.md` is the template of the README of a set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lockstep.harness import __version__
from lockstep.harness.backends.backend import REFERENCE_NAME
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.tables import format_operations
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.pools import open_pool
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.programs.vectors.files import (
    MANIFEST,
    make_manifest,
    write_pretty,
)
from lockstep.harness.programs.vectors.schema import make_schema
from lockstep.harness.programs.vectors.selection import SIZES
from lockstep.harness.workers import messages

Done = Mapping[str, messages.Drawn]
"""File → its programs, and its entry in the manifest."""


def export(
    folder: Path, size: str, settings: Settings, watch: Callable[[Done], None]
) -> Done:
    """Makes a set of vectors for the chosen kinds, or for all kinds, and writes it to a
    folder.

    Raises:
        UsageError: the folder is not empty, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: is not an empty folder; choose another with -o")
    done: dict[str, messages.Drawn] = {}
    tasks: deque[messages.Task[messages.Drawn]] = deque(
        messages.DrawVectors(REFERENCE_NAME, rules.name, kind, size)
        for rules in CONTRACTS.values()
        for kind in rules.kinds
        if not settings.kinds or kind in settings.kinds
    )
    with open_pool(settings) as pool:
        for task, event in pool.run(tasks, lambda: watch(done)):
            assert isinstance(task, messages.DrawVectors)
            name = f"{task.contract}-{task.kind}.jsonl"
            if isinstance(event, messages.Drawn):
                done[name] = event
            elif isinstance(event, messages.Stopped):
                raise UsageError(f"{name}: programs could not be drawn: {event.why}")
    holds = {name: done[name].holds for name in sorted(done)}  # ended in any order
    contents = {
        "README.md": make_manual(size, holds).encode(),
        "schema.json": write_pretty(make_schema()),
        **{name: "\n".join([*done[name].lines, ""]).encode() for name in holds},
    }
    contents[MANIFEST] = write_pretty(make_manifest(size, contents, holds))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            with (folder / name).open("xb") as file:  # never follows a link
                file.write(content)
    except OSError as error:
        path = error.filename or folder
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return done


# --- the README of a set ----------------------------------------------------------------


def make_manual(size: str, holds: Mapping[str, Mapping[str, Any]]) -> str:
    """Fills in the @NAMES@ of the README's template.

    Args:
        size: the name of the set's size.
        holds: file → its entry in the manifest.
    """
    sections = {
        "VERSION": [__version__],
        "SIZE": [size],
        "ABOUT": [SIZES[size].about],
        "FILES": [
            f"| `{name}` | {entry['programs']} | {entry['contract']}, {entry['kind']} |"
            for name, entry in sorted(holds.items())
        ],
        **{name: format_operations(rules) for name, rules in CONTRACTS.items()},
    }
    text = Path(__file__).with_name("manual.md").read_text(encoding="utf-8")
    for name, lines in sections.items():
        text = text.replace(f"@{name}@", "\n".join(lines))
    return text
