"""What Ctrl-C and its like must not cut in two."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from lockstep.harness.core.interrupts import Terminated, shielded, signals
from tests.harness.commands import handling_ctrl_c

MASK = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    with handling_ctrl_c():
        yield


def get_handlers() -> list[object]:
    return [
        signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ]


@shielded()
def interrupt(number: int, done: list[int]) -> None:
    signal.raise_signal(number)
    signal.raise_signal(number)
    done.append(number)
    raise ValueError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_the_end(number: signal.Signals) -> None:
    """An error of the body stays its context."""
    done: list[int] = []
    with signals():
        before = get_handlers()
        with pytest.raises(KeyboardInterrupt) as raised:
            interrupt(number, done)
        assert get_handlers() == before
    assert done == [number]
    assert isinstance(raised.value, Terminated) == (number != signal.SIGINT)
    assert isinstance(raised.value.__context__, ValueError)


def test_all_that_waited_come() -> None:
    """Those of handlers that raise nothing, in their order."""
    came: list[int] = []
    numbers = signal.SIGTERM, signal.SIGINT
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in numbers
    }
    try:
        with shielded():
            for number in numbers:
                signal.raise_signal(number)
            assert not came
        assert came == [*numbers]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_handler_that_was_not_put_back_does_what_the_one_before_it_does() -> None:
    """As if another signal had come while they were put back."""
    with shielded():
        left = signal.getsignal(signal.SIGINT)
    assert callable(left)
    with pytest.raises(KeyboardInterrupt):
        left(signal.SIGINT, None)


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with shielded():
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_process_that_is_started_inherits_nothing() -> None:
    with shielded():
        out = subprocess.check_output([sys.executable, "-c", MASK], text=True)
    assert out == "set()\n"


def test_another_thread_may_do_it_without_handlers() -> None:
    """Only the main thread may set them."""
    done = []

    def work() -> None:
        with shielded():
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done
