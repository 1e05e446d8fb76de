"""Checks KV caches against a slow, obviously correct reference.

Names that tests import from this module are imported when they are first used:

    programs    a Hypothesis strategy of programs
    run         runs a program on a backend, and raises Diverged
    examples    gives a Hypothesis test the programs that failed before
    parse       makes a program from its document
    record      records the operations of a running engine as programs
    Form        the backend and the config of a cache that `record` does not know
    Diverged    a backend and the reference differ
    Backend, Kind, Unavailable    for the declaration of a backend
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.harness.backends import Backend, Kind, Unavailable
    from lockstep.harness.cli.library import (
        Diverged,
        Form,
        examples,
        parse,
        programs,
        record,
        run,
    )

__all__ = [
    "Backend",
    "Diverged",
    "Form",
    "Kind",
    "Unavailable",
    "examples",
    "parse",
    "programs",
    "record",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    declares = name in ("Backend", "Kind", "Unavailable")
    home = "lockstep.harness.backends" if declares else "lockstep.harness.cli.library"
    return getattr(import_module(home), name)
