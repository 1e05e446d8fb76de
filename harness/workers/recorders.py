"""Finds the recorder of a library by the class of a cache.

Recorders are entry points of installed packages, in the group "lockstep.recorders". The
name of the entry point is a package; its value is a function that records the calls on
caches whose classes the package defines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
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
    for package in iterate_packages(cache):
        if package in entries:
            return load_recorder(entries[package])
    kind = type(get_first(cache)).__name__
    known = ", ".join(sorted(entries)) or "none"
    raise UsageError(
        f"nothing records a cache of class {kind}; there are recorders of: {known}."
        " Pass what the engine keeps: a cache, or the list of its layers"
    )


def load_recorder(entry: EntryPoint) -> Callable[[Any, Recording], None]:
    with loading(f"importing {entry.module}", entry.module):
        recorder: Callable[[Any, Recording], None] = entry.load()
    return recorder


def get_first(cache: Any) -> Any:
    """Returns the first cache of nested lists. Layers without a cache may be None."""
    while isinstance(cache, list | tuple):
        cache = next((item for item in cache if item is not None), None)
    return cache


def iterate_packages(cache: Any) -> Iterator[str]:
    """Yields the packages that define a cache's class and base classes, in MRO order."""
    for own in type(get_first(cache)).__mro__:
        yield own.__module__.partition(".")[0]


def why_not_replayed(program: Program, backend: str) -> str | None:
    """Returns the reason why a backend cannot replay a program; None if its declaration
    allows the program."""
    try:
        return why_unsupported(program, load(backend))
    except (Unavailable, Unloadable) as error:
        return f"{backend} cannot be used here: {error}"
