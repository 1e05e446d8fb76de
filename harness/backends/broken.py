"""The exception for a backend that breaks its word in a way that no answer shows."""

from __future__ import annotations


class Broken(Exception):
    """The backend's answer is wrong in itself: a trace has no counterpart of it.

    Attributes:
        what: the name of what differs, as it stands in a signature.
        operation: the operation to blame, if it is not the one that was running.
    """

    def __init__(self, what: str, message: str, operation: str | None = None) -> None:
        super().__init__(message)
        self.what = what
        self.operation = operation
