"""Finds the recorder of a library by the class of a cache.

Recorders are entry points of installed packages, in the group "lockstep.recorders". The
name of the entry point is a package; its value is a function that records the calls on
caches whose classes the package defines.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from lockstep.harness.core.errors import Unavailable, Unloadable, UsageError
from lockstep.harness.programs.ledger import why_unsupported
from lockstep.harness.programs.program import Program
from lockstep.harness.programs.recording import Recording
from lockstep.harness.workers.registry import load, loading

GROUP = "lockstep.recorders"


def find_recorder(cache: Any) -> Callable[[Any, Recording], None]:
    """Returns the recorder of the library that defines a cache's class.

    Args:
        cache: a cache, or a nested list of caches.

    Raises:
        UsageError: no recorder is installed for the cache.
    """
    entries = {entry.name: entry for entry in entry_points(group=GROUP)}
    first = cache
    while isinstance(first, list | tuple):  # layers without a cache may be None
        first = next((item for item in first if item is not None), None)
    for base in type(first).__mro__:
        entry = entries.get(base.__module__.partition(".")[0])
        if entry is not None:
            with loading(f"importing {entry.module}", entry.module):
                recorder: Callable[[Any, Recording], None] = entry.load()
            return recorder
    known = ", ".join(sorted(entries)) or "none"
    raise UsageError(
        f"nothing records a cache of class {type(first).__name__}; there are recorders"
        f" of: {known}. Pass what the engine keeps: a cache, or the list of its layers;"
        " for other libraries, also pass form and calls"
    )


def why_not_replayed(program: Program, backend: str) -> str | None:
    """Returns the reason why a backend cannot replay a program; None if its declaration
    allows the program."""
    try:
        return why_unsupported(program, load(backend))
    except (Unavailable, Unloadable) as error:
        return f"{backend} cannot be used here: {error}"
