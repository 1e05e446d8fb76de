"""The errors with which a cache of many sequences refuses a valid call.

An invalid call raises ValueError instead.
"""

from __future__ import annotations

from collections.abc import Sequence


class CacheFull(Exception):
    """The cache has no room for the batch."""


class NotSupported(Exception):
    """The cache does not support the operation, at all or with its present content."""


class Shared(Exception):
    """A token that has to move also belongs to another sequence."""


def refuse(reasons: Sequence[Exception]) -> None:
    """Raises the reason to refuse a call, if there is a reason.

    If there are several reasons, raises an ExceptionGroup of all of them; an
    implementation may raise any of these errors.
    """
    if len(reasons) > 1:
        raise ExceptionGroup("several reasons", reasons)
    if reasons:
        raise reasons[0]
