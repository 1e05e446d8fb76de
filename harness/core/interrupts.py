"""Ctrl-C, and the other signals that ask a command to end.

What was found until then is kept.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """A signal that asks the command to end, as Ctrl-C does. number: of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def get_interrupt_status(interrupt: KeyboardInterrupt) -> int:
    """The exit status of a command that was asked to end: 130 for Ctrl-C."""
    return 128 + getattr(interrupt, "number", signal.SIGINT)


def is_from_user(error: BaseException) -> bool:
    """Whether an exception may be the user's Ctrl-C. Where SIGINT is ignored, as in a
    worker, it cannot be: there, the code of a backend has raised it."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command as Ctrl-C does: what was found is kept."""


@contextmanager
def signals() -> Iterator[None]:
    """Raises `Terminated` for signals that would end the process on the spot."""

    def end(number: int, _: Any) -> None:
        raise Terminated(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores SIGHUP
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def shielded() -> Iterator[None]:
    """Lets signals that are handled wait until its body is over.

    They are not blocked: a process that the body starts would inherit that.
    """
    waiting: list[int] = []
    before: dict[int, Callable[[int, Any], Any]] = {}
    is_over = False

    def wait(number: int, frame: Any) -> None:
        if is_over:  # another signal came while the handlers were put back
            before[number](number, frame)
        else:
            waiting.append(number)

    try:
        if threading.current_thread() is threading.main_thread():
            for number in map(int, (*ENDING, signal.SIGINT)):
                handler = signal.getsignal(number)
                if callable(handler):  # neither the default nor ignored
                    before[number] = handler
                    signal.signal(number, wait)
        yield
    finally:
        is_over = True
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(waiting):
            signal.raise_signal(number)
