"""Refusals of a driver, as exceptions; a mistake of the caller is a ValueError."""

from __future__ import annotations

from collections.abc import Mapping


class CacheFull(Exception):
    """There is no room for the batch."""


class NotSupported(Exception):
    """The cache cannot do this with what it holds now, or never."""


class Shared(Exception):
    """A token that would have to move belongs to another sequence, too."""


class NoSlot(Exception):
    """All slots are in use."""


class Failed(Exception):
    """Anything else that went wrong in the driver."""


# The errors that `harness.backends.backend.Backend.errors` names.
REFUSALS: Mapping[str, type[Exception]] = {
    "cache-full": CacheFull,
    "not-supported": NotSupported,
    "shared": Shared,
    "no-slot": NoSlot,
}

# All errors that an answer may name.
ERRORS: Mapping[str, type[Exception]] = {
    **REFUSALS,
    "usage": ValueError,
    "missing": NotImplementedError,
    "failed": Failed,
}
