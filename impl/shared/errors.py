"""Refusals of a cache of many sequences. A mistake of the caller is a ValueError."""


class CacheFullError(Exception):
    """There is no room for the batch."""


class NotSupportedError(Exception):
    """The cache cannot do this with what it holds now, or never."""


class SharedError(Exception):
    """A token that would have to move belongs to another sequence too."""
