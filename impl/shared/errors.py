"""Refusals of a cache of many sequences. A mistake of the caller is a ValueError."""


class CacheFullError(Exception):
    """There is no room for the batch."""


class NotSupportedError(Exception):
    """The cache cannot do this, either never or not with its present content."""


class SharedError(Exception):
    """A token that would have to move also belongs to another sequence."""
