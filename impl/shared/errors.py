"""Refusals of our caches.

A refusal changes nothing, except in cases that the refusing method documents."""


class MisuseError(ValueError):
    """The call is invalid; the message contains the value and the violated precondition.

    This is a subclass of ValueError, so that a ValueError of a framework does not count
    as a refusal.
    """


class CacheFullError(Exception):
    """The cache does not have enough free cells for the batch."""


class NotSupportedError(Exception):
    """The cache does not support the operation, at all or with its present content."""


class SharedError(Exception):
    """A token that would have to move also belongs to another sequence."""
