"""Exceptions of the harness itself. Each says what, where and what to do."""


class UsageError(Exception):
    """The command cannot run as it was asked to (exit status 2). The message is for the
    user."""


class Unavailable(Exception):
    """A backend cannot be used here (exit status 2). The message says why and what to
    do."""


class DeviceLost(BaseException):
    """A device answers no more in this process: an illegal access on CUDA makes every
    later call fail. The process ends, so that no later program is blamed."""
