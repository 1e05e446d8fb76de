"""What a cache of many sequences may refuse. A mistake of the caller is a ValueError."""


class CacheFull(Exception):
    """There is no room for the batch."""


class NotSupported(Exception):
    """The cache cannot do this with what it holds now, or never."""


class Shared(Exception):
    """A token that would have to move belongs to another sequence too."""
