"""Refusals of our caches. A refusal changes nothing, apart from exceptions that its
method documents."""


class MisuseError(ValueError):
    """A call that breaks a rule of usage. The message has the value and the rule.

    A class of its own: a ValueError that a framework raises by itself is no refusal.
    """


class CacheFullError(Exception):
    """There is no room for the batch."""


class NotSupportedError(Exception):
    """The cache cannot do this, either never or not with its present content."""


class SharedError(Exception):
    """A token that would have to move also belongs to another sequence."""
