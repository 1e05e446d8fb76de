"""Handles Ctrl-C and the other signals that ask a command to end.

The command keeps the failures that it found before the signal.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C asked the command to end. number: the signal number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def get_interrupt_status(interrupt: KeyboardInterrupt) -> int:
    """Returns the exit status of a command that a signal ended: 130 for Ctrl-C."""
    return 128 + getattr(interrupt, "number", signal.SIGINT)


noted: list[int] | None = None
"""The numbers of the signals that `noting` has seen; None outside of it."""


@contextmanager
def noting() -> Iterator[None]:
    """Notes SIGINT, so that `is_from_user` tells Ctrl-C from a KeyboardInterrupt that a
    backend has raised."""
    global noted
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    seen = noted = []

    def note(number: int, frame: Any) -> None:
        seen.append(number)
        handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        noted = None


def is_from_user(error: BaseException) -> bool:
    """Returns whether an exception may be the user's Ctrl-C. Returns False if SIGINT is
    ignored, as in a worker, or did not arrive: then a backend has raised it."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN and noted != []


ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command like Ctrl-C: the failures found so far are kept."""


@contextmanager
def signals() -> Iterator[None]:
    """Raises `Terminated` for signals that would otherwise end the process at once."""

    def end(number: int, _: Any) -> None:
        raise Terminated(number)

    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores SIGHUP
                previous[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def shielded() -> Iterator[None]:
    """Delays handled signals until the `with` body is over.

    The signals are not blocked by the system, because a process that the body starts
    would inherit the block.
    """
    waiting: list[int] = []
    previous: dict[int, Callable[[int, Any], Any]] = {}
    is_over = False

    def wait(number: int, frame: Any) -> None:
        if is_over:  # the signal came while the handlers were being restored
            previous[number](number, frame)
        else:
            waiting.append(number)

    try:
        if threading.current_thread() is threading.main_thread():
            for number in map(int, (*ENDING, signal.SIGINT)):
                handler = signal.getsignal(number)
                if callable(handler):  # neither the default nor ignored
                    previous[number] = handler
                    signal.signal(number, wait)
        yield
    finally:
        is_over = True
        for number, handler in previous.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(waiting):
            signal.raise_signal(number)
