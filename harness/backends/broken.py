"""How a backend breaks its word, where no answer of a trace can say it."""

from __future__ import annotations


class Broken(Exception):
    """The backend's answer is wrong in a way that has no counterpart in a trace.

    what: the name of what differs, as it stands in a signature. operation: the one that
    is to blame, if it is not the one that was running.
    """

    def __init__(self, what: str, message: str, operation: str | None = None) -> None:
        super().__init__(message)
        self.what = what
        self.operation = operation
