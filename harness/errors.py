"""What ends a command with exit status 2: one line that says what, where and what to do."""


class UsageError(Exception):
    """The command cannot run as it was asked to. The message is for the user."""
