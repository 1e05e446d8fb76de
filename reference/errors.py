"""The refusals of a cache of many sequences. A mistake of the caller is a ValueError."""


class CacheFull(Exception):
    """There is no room for the batch."""


class NotSupported(Exception):
    """The cache cannot do this, either never or not with its present content."""


class Shared(Exception):
    """A token that has to move belongs to another sequence too."""
