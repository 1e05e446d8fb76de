"""Backends that misbehave, each in one way, for the tests of how the harness takes it.

All are the same small, correct full cache on numpy but for one thing. numpy and not one
of our frameworks, because most of these tests start several processes, and importing a
framework takes longer than everything else they do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from ctypes import PyDLL
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.harness.backends.backend import Backend, Kind, Planted

Array = npt.NDArray[Any]
Pair = tuple[Any, Any]

PID_FILE = "LOCKSTEP_TEST_PID_FILE"
"""The environment variable that names the file of `once`."""

DAEMON_SECONDS = "LOCKSTEP_TEST_DAEMON_SECONDS"
"""The environment variable with the argument of `sleep`, by which tests know a daemon."""

BYTES = "LOCKSTEP_TEST_BYTES"
"""The environment variable that tells `speaks_to_its_pool` what to write, in hex."""

OPERATIONS = frozenset({"update", "state", "size", "trim"})

# The least of everything, so that a crash is soon shrunk.
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "heads": (1,),
    "key_dim": (4,),
    "value_dim": (4,),
    "step": (1,),
    "conv_width": (2,),
}


class NumpyArrays:
    """The arrays of `harness.backends.interface.Arrays` on numpy."""

    def from_numpy(self, array: npt.NDArray[np.float32], dtype: str) -> Array:
        return np.array(array, dtype)

    def to_numpy(self, array: Array) -> Array:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{type(array).__name__} is no array of numpy")
        return array if array.dtype == np.bool_ else array.astype(np.float32)

    def dtype(self, array: Array) -> str:
        return str(array.dtype)

    def attend(self, queries: Array, keys: Array, values: Array, mask: Any) -> Array:
        scores = queries @ keys.swapaxes(2, 3) / np.sqrt(keys.shape[3])
        if mask is not None:
            scores = np.where(mask, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        result: Array = weights / weights.sum(-1, keepdims=True) @ values
        return result


class Cache:
    """A full cache that appends by making new arrays."""

    def __init__(self) -> None:
        self.keys: Array | None = None
        self.values: Array | None = None

    @property
    def offset(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def make_mask(self, length: int, rows: int) -> Any:
        mask = np.tri(rows, self.offset + length, self.offset, dtype=np.bool_)
        mask[length:] = False
        return mask

    def update(self, keys: Array, values: Array) -> Any:
        if self.keys is None or self.values is None:
            self.keys, self.values = keys, values
        else:
            self.keys = np.concatenate([self.keys, keys], axis=2)
            self.values = np.concatenate([self.values, values], axis=2)
        return self.keys, self.values

    def state(self) -> Any:
        return None if self.keys is None else (self.keys, self.values)

    def size(self) -> Any:
        return self.offset

    def trim(self, count: int) -> Any:
        trimmed = min(count, self.offset)
        if self.keys is not None and self.values is not None:
            left = self.offset - trimmed
            self.keys, self.values = self.keys[:, :, :left], self.values[:, :, :left]
        return trimmed


def declare(
    open_cache: Callable[[], Any], config: Mapping[str, tuple[Any, ...]] = PLAIN
) -> Backend:
    return Backend(
        name="misbehaving",
        device="cpu",
        contracts={"layer": {"kv": Kind(OPERATIONS, config)}},
        arrays=NumpyArrays(),
        open=lambda _: open_cache(),
        lifetime="forever",
        versions={"numpy": np.__version__},
    )


def correct() -> Backend:
    """The one that does not."""
    return declare(Cache, {})


def misbehave(update: Callable[[Cache, Array, Array], Any]) -> Callable[[], Backend]:
    """The correct cache with another `update`."""
    return lambda: declare(type("Misbehaving", (Cache,), {"update": update}))


plain = also_plain = misbehave(Cache.update)
"""What the others declare, and no mistake."""


def change_keys(change: Callable[[Array], Any]) -> Callable[[], Backend]:
    """The correct cache, its returned K changed."""

    def update(cache: Cache, keys: Array, values: Array) -> Pair:
        keys, values = Cache.update(cache, keys, values)
        return change(keys), values

    return misbehave(update)


# --- wrong answers ----------------------------------------------------------------------


def show_nan(keys: Array) -> Array:
    """NaN all over the key of the first token, once there are three."""
    keys = keys.copy()
    if keys.shape[2] > 2:
        keys[:, :, 0] = np.nan
    return keys


class Widened(Cache):
    def make_mask(self, length: int, rows: int) -> Any:
        return np.pad(super().make_mask(length, rows), ((0, 0), (0, 1)))


SHARED: dict[str, Any] = {}


class Sharing(Cache):
    """Correct as long as one cache of the process is used at a time, as of an engine that
    has one pool."""

    def __init__(self) -> None:
        self.__dict__ = SHARED
        super().__init__()


LEFT: list[Pair | None] = []


class Leaves(Cache):
    """Its last state stays behind."""

    def state(self) -> Any:
        LEFT[:] = [super().state()]
        return LEFT[0]


class Takes(Cache):
    """Its state is what somebody has left behind, or zeros."""

    def state(self) -> Any:
        own = super().state()
        return own and (LEFT.pop() if LEFT else (0 * own[0], 0 * own[1]))


FREED: list[Array] = []


class Fresh(Cache):
    """A program begins without memory that was freed."""

    def __init__(self) -> None:
        FREED.clear()
        super().__init__()


class Frees(Fresh):
    """Correct; an allocator of the process takes back the keys that it trims."""

    def trim(self, count: int) -> Any:
        FREED[:] = [] if self.keys is None else [self.keys]
        return super().trim(count)


class Reuses(Fresh):
    """Does not write the keys of an update if it gets memory that was used before."""

    def update(self, keys: Array, values: Array) -> Any:
        keys, values = super().update(keys, values)
        return (keys * 0 if FREED and FREED.pop().size else keys), values


class DiesReusing(Fresh):
    def update(self, keys: Array, values: Array) -> Any:
        if FREED:
            die()
        return super().update(keys, values)


class Numbered(Cache):
    """Answers with numbers of numpy, which are not numbers of JSON; wrong ones."""

    def trim(self, count: int) -> Any:
        return np.int64(super().trim(count) + 1)


CALLS = count(1)


def reverse_seldom(cache: Cache, keys: Array, values: Array) -> Pair:
    """Wrong about each 499th update of the process, whatever its program."""
    keys, values = Cache.update(cache, keys, values)
    return keys, values[:, :, ::-1] if next(CALLS) % 499 == 0 else values


class WrongTwice(Cache):
    """Two mistakes that look alike: about updates of many tokens, and after a trim."""

    trimmed = False

    def trim(self, count: int) -> Any:
        trimmed = super().trim(count)
        self.trimmed = trimmed > 0
        return trimmed

    def update(self, keys: Array, values: Array) -> Any:
        length, trimmed = keys.shape[2], self.trimmed
        self.trimmed = False
        keys, values = super().update(keys, values)
        return keys, np.zeros_like(values) if length > 4 or trimmed else values


returns_none = misbehave(lambda cache, keys, values: None)
one_column_less = change_keys(lambda keys: keys[:, :, 1:])
shows_nan = change_keys(show_nan)
wrong_mask_width = partial(declare, Widened)
shares = shares_too = partial(declare, Sharing)
leaves, takes = partial(declare, Leaves), partial(declare, Takes)
frees, reuses = partial(declare, Frees), partial(declare, Reuses)
dies_reusing = partial(declare, DiesReusing)
answers_in_numpy = partial(declare, Numbered)
wrong_now_and_then = misbehave(reverse_seldom)
wrong_twice = partial(declare, WrongTwice)

# --- raising ----------------------------------------------------------------------------


def throw(error: BaseException) -> Any:
    raise error


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even this")


raises = raises_too = misbehave(
    lambda *_: throw(RuntimeError("no room\nfor this token\n[/red]"))
)
raises_at_length = misbehave(lambda *_: throw(RuntimeError("x" * 2_000_000)))
raises_the_unspeakable = misbehave(lambda *_: throw(Unspeakable()))
exits_politely = misbehave(lambda *_: throw(SystemExit(0)))
"""sys.exit(0), which is an exception, and no Exception."""

# --- ending or stopping the process -----------------------------------------------------


def from_third_token(act: Callable[[], Any]) -> Callable[[], Backend]:
    """Appends two tokens well; the third does it."""

    def update(cache: Cache, keys: Array, values: Array) -> Pair:
        if cache.offset + keys.shape[2] > 2:
            act()
        return Cache.update(cache, keys, values)

    return misbehave(update)


def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


class DiesWhenFreed(Cache):
    """Its answers are wrong from the third token on; when it is freed then, it dies."""

    def update(self, keys: Array, values: Array) -> Any:
        keys, values = super().update(keys, values)
        start = keys.shape[2] > 2
        return keys[:, :, start:], values[:, :, start:]

    def __del__(self) -> None:
        if self.offset > 2:
            die()


def babble(*_: Any) -> Any:
    sys.stdout.buffer.write(b"\x1b[31m[bold]\xff noise \x00\n" * 50_000)
    sys.stdout.buffer.write(b"assertion failed: ring.size > 0\n")
    sys.stdout.flush()
    os._exit(7)


def speak(*_: Any) -> Any:
    os.write(int(sys.argv[1]), bytes.fromhex(os.environ[BYTES]))
    time.sleep(3600)


def open_two_heads(act: Callable[[], Any]) -> Callable[[], Backend]:
    """Opens caches of one head well; of two, it acts."""

    def make() -> Backend:
        def open_cache(config: Mapping[str, Any]) -> Cache:
            if config["heads"] == 2:
                act()
            return Cache()

        return replace(declare(Cache, {**PLAIN, "heads": (1, 2)}), open=open_cache)

    return make


def interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


class Coloured:
    """Its repr acts on a terminal."""

    def __repr__(self) -> str:
        return ESCAPES


ESCAPES = "\x1b[31m\x1b]0;title\x07\x9b2J"


def speak_later(*_: Any) -> Any:
    """Writes once the answer has gone, which is soon."""
    connection = int(sys.argv[1])
    Timer(0.5, lambda: os.write(connection, b"hello")).start()


def once(act: Callable[[], Any]) -> Callable[[], None]:
    """Writes the process id into a file, and acts; from then on, or if no file is named,
    nothing."""

    def act_once() -> None:
        path = Path(os.environ.get(PID_FILE, os.devnull))
        if not path.exists():
            draft = path.with_suffix(".tmp")
            draft.write_text(str(os.getpid()))
            draft.replace(path)
            act()

    return act_once


def reverse_slowly(cache: Cache, keys: Array, values: Array) -> Pair:
    """Wrong about the second token, and slow: something is soon found, and much is left
    to do."""
    time.sleep(0.002)
    keys, values = Cache.update(cache, keys, values)
    return keys, values[:, :, ::-1] if keys.shape[2] == 2 else values


class LostArrays(NumpyArrays):
    def to_numpy(self, array: Array) -> Array:
        raise LOST


LOST = RuntimeError("CUDA error: illegal address")


def lose(backend: Backend) -> Backend:
    """After the exception the process is of no use."""
    return replace(backend, is_fatal=lambda error: error is LOST)


def loses_its_device() -> Backend:
    return lose(misbehave(lambda *_: throw(LOST))())


def loses_it_when_read() -> Backend:
    return lose(replace(misbehave(Cache.update)(), arrays=LostArrays()))


def lose_for_all(*_: Any) -> Any:
    os.environ["LOCKSTEP_TEST_DEVICE"] = "lost"
    raise LOST


def need_the_device(cache: Cache, keys: Array, values: Array) -> Any:
    """One column less; every call fails in a process that has lost the device."""
    if os.environ.get("LOCKSTEP_TEST_DEVICE") == "lost":
        raise LOST
    keys, values = Cache.update(cache, keys, values)
    return keys[:, :, 1:], values


def loses_it_for_all() -> Backend:
    return lose(misbehave(lose_for_all)())


def needs_the_device() -> Backend:
    return lose(misbehave(need_the_device)())


class LateCache(Cache):
    """An error in a kernel shows in the step that waits for it; if launches block, in its
    own."""

    def update(self, keys: Array, values: Array) -> Any:
        if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
            raise LOST
        return super().update(keys, values)

    def size(self) -> Any:
        if self.keys is not None:
            raise LOST
        return 0

    state = trim = lambda self, *_: self.size()


def loses_its_device_late() -> Backend:
    return lose(declare(LateCache))


dies = from_third_token(die)
dies_in_open, hangs_in_open, interrupts_in_open = map(
    open_two_heads, (die, lambda: time.sleep(3600), interrupt)
)
interrupts = misbehave(interrupt)
dies_later = from_third_token(die)
dies_when_freed = partial(declare, DiesWhenFreed)
returns_colours = misbehave(lambda *_: Coloured())
raises_colours = misbehave(lambda *_: throw(RuntimeError(ESCAPES)))
says_colours = misbehave(lambda *_: os.write(1, ESCAPES.encode()) and os._exit(3))
hangs = misbehave(lambda *_: time.sleep(3600))
babbles = misbehave(babble)
speaks_to_its_pool = misbehave(speak)
"""Writes what the environment names to the connection of its worker, and waits."""
speaks_when_idle = from_third_token(speak_later)
stands_still = from_third_token(once(lambda: time.sleep(3600)))
dies_once = from_third_token(once(die))
wrong_and_slow = misbehave(reverse_slowly)

# --- loading without end ----------------------------------------------------------------


def hold_the_lock(*_: Any) -> Any:
    """Keeps the interpreter's lock: no other thread of the process runs."""
    PyDLL(None).sleep(3600)


def leave_a_child(*_: Any) -> Any:
    """Leaves a process behind that holds every file that was open, and hangs."""
    if os.fork() == 0:
        time.sleep(3600)
    write_pid()
    time.sleep(3600)


def start_daemon(*_: Any) -> None:
    """Starts a process that leaves its session and its parent, and has no environment."""
    starts = "import os; os.setsid(); os.fork() and os._exit(0); "
    sleeps = "import sys; os.execve('/bin/sleep', ['sleep', sys.argv[1]], {})"
    seconds = os.environ[DAEMON_SECONDS]
    subprocess.run([sys.executable, "-S", "-c", starts + sleeps, seconds], check=True)
    write_pid()


def write_pid() -> None:
    draft = Path(os.environ[PID_FILE]).with_suffix(".tmp")
    draft.write_text(str(os.getpid()))
    draft.replace(os.environ[PID_FILE])


def then(act: Callable[[], Any]) -> Callable[[], Any]:
    return lambda *_: (write_pid(), act())


hangs_while_loaded = then(lambda: time.sleep(3600))
holds_while_loaded = then(hold_the_lock)
hangs_in_a_step = misbehave(then(lambda: time.sleep(3600)))
holds_in_a_step = misbehave(then(hold_the_lock))
leaves_a_child = misbehave(leave_a_child)
leaves_a_daemon = misbehave(lambda *_: (start_daemon(), time.sleep(3600)))
leaves_a_daemon_and_dies = misbehave(lambda *_: (start_daemon(), os._exit(3)))
leaves_a_daemon_and_agrees = misbehave(
    lambda *update: (start_daemon(), Cache.update(*update))[1]
)


# --- declarations -----------------------------------------------------------------------


def factory_raises() -> Backend:
    raise OSError("the driver is too old")


def factory_returns_five() -> int:
    return 5


class WithoutTrim(Cache):
    def trim(self, count: int) -> int:
        raise NotImplementedError("take back the last tokens")


class Unwritten(Cache):
    def update(self, keys: Array, values: Array) -> Any:
        raise NotImplementedError("append tokens")

    state = size = trim = lambda self, *_: self.update(None, None)


lacks_a_method = partial(declare, type("Lacking", (Cache,), {"size": None}))
has_no_trim_yet = partial(declare, WithoutTrim)
has_nothing_yet = partial(declare, Unwritten)
plain_with_variants = partial(declare, Cache, {**PLAIN, "variant": (0, 1)})
cannot_open = partial(declare, lambda: throw(OSError("no device")))


def plant(id: str, factory: str, shortest: int | None = 1) -> Planted:
    here, mistake = "tests.harness.misbehaving", f"as in {factory}"
    names = f"{here}:{factory}", f"{here}:correct"
    return Planted(id, "constructed", "layer", "kv", mistake, shortest, *names)


def list_deadly() -> list[Planted]:
    return [plant("loses-it", "loses_it_for_all"), plant("one-less", "needs_the_device")]


def list_found() -> list[Planted]:
    return [
        plant("nan-in-the-third", "shows_nan", 1),
        plant("one-less", "one_column_less"),
        plant("raises-late", "raises_at_length"),
    ]


def list_survivor() -> list[Planted]:
    return [plant("one-less", "one_column_less"), plant("no-mistake", "correct")]


def list_unknown() -> list[Planted]:
    return [plant("raises-late", "raises_at_length", None)]


def list_too_short() -> list[Planted]:
    return [plant("raises-late", "raises_at_length", -9)]


def list_broken() -> list[Planted]:
    return [plant("no-factory", "there_is_no_such_factory")]


def declare_faults(name: str) -> Callable[[], Backend]:
    """The correct cache, with the faults that a function lists."""
    return lambda: replace(correct(), faults=f"tests.harness.misbehaving:{name}")


has_faults = declare_faults("list_found")
has_a_survivor = declare_faults("list_survivor")
has_a_deadly_fault = declare_faults("list_deadly")
has_a_fault_of_unknown_length = declare_faults("list_unknown")
has_a_fault_that_is_never_so_short = declare_faults("list_too_short")
has_a_broken_fault = declare_faults("list_broken")
names_no_function = declare_faults("there_is_none")
