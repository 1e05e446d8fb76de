"""A backend that makes trouble where and how the environment says.

``make`` declares it; with `tests.harness.exec.relay` it is a driver as well. PLACE is one
of `PLACES`, ACT one of `ACTS`. In a step it acts when the cache holds a third token, and
it opens caches of one head well. MARK names a file that says that it has acted.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np

from lockstep.harness.backends.backend import Backend, Kind
from tests.harness import misbehaving
from tests.harness.misbehaving import ESCAPES, OPERATIONS, PLAIN, Array, throw

PLACE, ACT, MARK, FOLDER = (f"TRIAL_{n}" for n in ("PLACE", "ACT", "MARK", "FOLDER"))

LOADING = ("import", "factory", "open-any")
STEPS = ("open", "make_mask", "update", "state", "trim", "size", "snapshot", "close")
PLACES = (*LOADING, *STEPS, "between")


# --- acts -------------------------------------------------------------------------------


def busy() -> None:
    while True:
        pass


def leave_a_child() -> None:
    if os.fork() == 0:
        time.sleep(3600)


def write(descriptor: int, content: bytes) -> Callable[[], Any]:
    return lambda: os.write(descriptor, content)


def tell(content: bytes) -> Callable[[], Any]:
    """Writes to the harness: a driver to its output, a worker to its connection."""
    return lambda: os.write(1 if "relay" in sys.argv[0] else int(sys.argv[1]), content)


def flood() -> None:
    for _ in range(20):
        os.write(1, b"x" * (1 << 20))


ACTS: Mapping[str, Callable[[], Any]] = {
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: sys.exit(3),
    "exit-0": lambda: sys.exit(0),
    "leave": lambda: os._exit(0),
    "interrupt": lambda: throw(KeyboardInterrupt()),
    "system-exit": lambda: throw(SystemExit(ESCAPES)),
    "recursion": lambda: throw(RecursionError(ESCAPES)),
    "memory": lambda: throw(MemoryError()),
    "sleep": lambda: time.sleep(3600),
    "busy": busy,
    "hold": lambda: ctypes.PyDLL(None).sleep(3600),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "babble": tell(b"\0{}" + ESCAPES.encode()),
    "empty": tell(b"{}\n"),
    "print": write(1, ESCAPES.encode()),
    "complain": write(2, 1000 * ESCAPES.encode()),
    "flood": flood,
    "close": lambda: os.closerange(3, 256),
    "nan": lambda: float("nan"),
    "garbage": misbehaving.Coloured,
    "fork": leave_a_child,
    "chdir": lambda: os.chdir("/"),
    "delete": lambda: shutil.rmtree(os.environ[FOLDER], ignore_errors=True),
}

ANSWERS = ("nan", "garbage")
"""Acts that replace what is returned."""


def act() -> Any:
    path = Path(os.environ[MARK])
    if not path.exists():
        path.touch()
    elif os.environ[ACT] in ("fork", "delete"):
        return None  # once is enough
    return ACTS[os.environ[ACT]]()


def pass_by(place: str, returned: Any = None) -> Any:
    """Acts if this is the place. returned: what the place returns otherwise."""
    if os.environ.get(PLACE) != place:
        return returned
    answer = act()
    return answer if os.environ[ACT] in ANSWERS else returned


# --- places -----------------------------------------------------------------------------


@dataclass
class Snapshot:
    begin: int
    end: int


class Cache(misbehaving.Cache):
    def pass_by(self, place: str, returned: Any = None) -> Any:
        return pass_by(place, returned) if self.offset > 2 else returned

    def make_mask(self, length: int, rows: int) -> Any:
        return self.pass_by("make_mask", super().make_mask(length, rows))

    def update(self, keys: Array, values: Array) -> Any:
        pair = super().update(keys, values)
        if self.offset > 2 and os.environ.get(PLACE) == "between":
            Timer(0.02, act).start()
        if self.offset > 2 and (os.environ.get(PLACE), os.environ.get(ACT)) == (
            "update",
            "nan",
        ):
            act()
            return pair[0] * np.nan, pair[1]
        return self.pass_by("update", pair)

    def state(self) -> Any:
        return self.pass_by("state", super().state())

    def size(self) -> Any:
        return self.pass_by("size", super().size())

    def trim(self, count: int) -> Any:
        held = self.offset > 2
        trimmed = super().trim(count)
        return pass_by("trim", trimmed) if held else trimmed

    def snapshot(self, begin: int) -> Any:
        begin = max(0, begin)
        taken = Snapshot(begin, self.offset) if begin < self.offset else None
        return self.pass_by("snapshot", taken)

    def close(self, snapshot: Snapshot) -> Any:
        return self.pass_by("close")


def open_cache(config: Mapping[str, Any]) -> Any:
    cache = pass_by("open-any", Cache())
    return pass_by("open", cache) if config["heads"] == 2 else cache


def make() -> Any:
    kind = Kind(OPERATIONS | {"snapshot", "close"}, {**PLAIN, "heads": (1, 2)})
    backend: Backend = replace(
        misbehaving.correct(), contracts={"layer": {"kv": kind}}, open=open_cache
    )
    return pass_by("factory", backend)


pass_by("import")
