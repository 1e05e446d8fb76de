"""Exceptions that end a command with status 2. Each says what, where and what to do."""


class UsageError(Exception):
    """The command cannot run as it was asked to. The message is for the user."""


class Unavailable(Exception):
    """A backend cannot be used here. The message says why and what to do."""
