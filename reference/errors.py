"""The refusals of a cache of many sequences. A mistake of the caller is a ValueError."""

from __future__ import annotations

from collections.abc import Sequence


class CacheFull(Exception):
    """There is no room for the batch."""


class NotSupported(Exception):
    """The cache cannot do this, either never or not with its present content."""


class Shared(Exception):
    """A token that has to move belongs to another sequence too."""


def refuse(reasons: Sequence[Exception]) -> None:
    """Raises the reason to refuse a call, if there is one. If there are several, any of
    them is a right answer, and a group of all is raised."""
    if len(reasons) > 1:
        raise ExceptionGroup("several reasons", reasons)
    if reasons:
        raise reasons[0]
