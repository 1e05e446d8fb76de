"""Notes the calls that a run makes of a backend's methods, as code.

Caches, snapshots and what else a backend hands out stand behind spies, whose names are
variables of the script.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.interface import Array
from lockstep.harness.contracts.prefix.conversations import WatchedCache
from lockstep.harness.contracts.prefix.slots import WatchedPool
from lockstep.harness.core.errors import UsageError

WORD = re.compile(r"[A-Za-z0-9:._-]*")
"""Texts that are written: of configs, and the names that programs get beforehand."""

HANDED_OUT: Mapping[str, str] = {
    **dict.fromkeys(("open", "clone", "extract"), "cache"),
    **dict.fromkeys(("snapshot", "split", "merge", "take"), "snapshot"),
    "save": "saved",
    "get_statistics": "statistics",
}
"""Methods that return what has methods, or is passed on, itself → the variable for it."""

INSIDE = ("of", "parts", "layers", "cache")
"""Methods and attributes that name a part of a cache: written where it is used."""


LOOKS = ("held", "pool", "entries", "host_entries", "tables")
"""Methods that only tell something: written where the last step needs them."""


@dataclass(frozen=True, eq=False)
class Noted:
    """A call, or an attribute that was read.

    Attributes:
        receiver: the expression for the object.
        name: of the method or the attribute.
        arguments: of the call.
        code: the expression of the call or the attribute.
        variable: for the result.
        value: the result; None if it was refused.
        is_kept: later lines use the result.
        refused: it raised an exception.
        is_call: it is a call, not an attribute.
    """

    receiver: str
    name: str
    arguments: tuple[Any, ...]
    code: str
    variable: str
    value: Any = None
    is_kept: bool = False
    refused: bool = False
    is_call: bool = True

    def write(self, used: str | None = None) -> str:
        """The line of a call.

        Args:
            used: of the last step, the code that may use the result.
        """
        if self.refused and used is None:
            return f"refuse(lambda: {self.code})"
        is_used = re.search(rf"\b{self.variable}\b", used or "")
        is_kept = self.is_kept or is_used
        return f"{self.variable} = {self.code}" if is_kept else self.code


@dataclass(eq=False)
class CallNotes:
    """The calls of one run.

    Attributes:
        backend: which the run is about.
        steps: the lines of each step; a number stands for an array of `made`.
        read: the calls and attributes of the last step.
        made: the arrays that were made: variable, content and dtype.
    """

    backend: Backend
    steps: list[list[Noted | str | int]] = field(default_factory=lambda: [[]])
    read: list[Noted] = field(default_factory=list)
    made: list[tuple[str, npt.NDArray[np.float32], str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names: dict[int, str] = {}
        self.spies: dict[int, Spy] = {}
        self.alive: list[Any] = []
        self.counts: Counter[str] = Counter()
        self.results: Counter[str] = Counter()  # of one step
        self.config: Mapping[str, Any] | None = None
        self.depth = 0

    def watch(self) -> Backend:
        """The backend, whose calls are noted."""
        backend = self.backend
        overwrite = None if backend.overwrite is None else self.overwrite
        arrays = NotedArrays(backend.arrays, self)
        return replace(backend, open=self.open, arrays=arrays, overwrite=overwrite)

    def begin(self) -> None:
        """A step begins."""
        self.steps.append([])
        self.read = []
        self.results.clear()

    def end(self) -> None:
        """The program is over: what follows is not noted."""
        self.depth += 1

    def name(self, word: str) -> str:
        """A variable that is not in use."""
        return number(word, self.counts)

    # --- what the run calls -------------------------------------------------------------

    def open(self, config: Mapping[str, Any]) -> Any:
        if self.config is None:
            self.config = {
                name: value for name, value in config.items() if not has_spies(value)
            }
        own = {
            name: value
            for name, value in config.items()
            if name not in self.config or not is_same(self.config[name], value)
        }
        left_out = self.config.keys() - config.keys()
        base = "" if left_out else "**CONFIG"
        listed = [f'"{n}": {self.write(v)}' for n, v in (own if base else config).items()]
        code = f"backend.open({{{', '.join([base, *listed] if base else listed)}}})"
        code = "backend.open(CONFIG)" if code == "backend.open({**CONFIG})" else code
        return self.call("backend", "open", self.backend.open, (config,), code)

    def call(
        self,
        receiver: str,
        name: str,
        method: Callable[..., Any],
        arguments: tuple[Any, ...],
        code: str | None = None,
    ) -> Any:
        """Makes a call and notes it; not one that a backend makes of its own caches."""
        if self.depth:
            return method(*map(unwrap, arguments))
        if code is None:
            written = ", ".join(map(self.write, arguments))
            code = f"{receiver}.{name}({written})"
        if name in INSIDE:
            return self.wrap(method(*map(unwrap, arguments)), code)
        own = HANDED_OUT.get(name)
        variable = self.name(own) if own else number(f"got_{name}", self.results)
        noted = Noted(receiver, name, arguments, code, variable, is_kept=own is not None)
        place, lines = len(self.steps[-1]), self.steps[-1]
        lines.append(replace(noted, refused=True))
        self.depth += 1
        try:
            value = method(*map(unwrap, arguments))
        finally:
            self.depth -= 1
        if name == "save" and value is not None:  # whatever it is made of
            value = Spy(self, value, variable)
        elif own:
            value = self.wrap(value, variable)
        lines[place] = noted = replace(noted, value=value)
        self.read.append(noted)
        return value

    def get(self, spy: Spy, name: str) -> Any:
        """Reads an attribute, or returns a method that notes its calls."""
        member = getattr(spy.target, name)
        receiver = spy.expression
        code = f"{receiver}.{name}"
        if self.depth and not callable(member):
            return member
        if callable(member):
            return lambda *given: self.call(receiver, name, member, given)
        if name in INSIDE:
            return self.wrap(member, code)
        noted = Noted(receiver, name, (), code, name, member, is_call=False)
        self.read.append(noted)
        return member

    def wrap(self, value: Any, expression: str) -> Any:
        """Puts spies before what a backend hands out, also in a list."""
        if isinstance(value, list | tuple):
            return [self.wrap(one, f"{expression}[{n}]") for n, one in enumerate(value)]
        if value is None or isinstance(value, int | float | str):
            return value
        spy = self.spies.get(id(value))
        if spy is None:
            spy = self.spies[id(value)] = Spy(self, value, expression)
        return spy

    def make(self, array: npt.NDArray[np.float32], dtype: str, made: Array) -> None:
        """Notes an array that was made for the backend."""
        self.alive.append(made)
        variable = self.name("array")
        self.names[id(made)] = variable
        self.steps[-1].append(len(self.made))
        self.made.append((variable, array.copy(), dtype))

    def find_made(self, array: Any) -> npt.NDArray[np.float32] | None:
        """The content of an array that was made; None if it is none of these."""
        variable = self.names.get(id(array))
        contents = {name: content for name, content, _ in self.made}
        return None if variable is None else contents[variable]

    def overwrite(self, array: Array) -> None:
        assert self.backend.overwrite is not None
        self.backend.overwrite(array)
        self.steps[-1].append(f"backend.overwrite({self.write(array)})")

    # --- as code ------------------------------------------------------------------------

    def write(self, value: Any) -> str:
        """A value of a call as code.

        Raises:
            UsageError: there is no code for it.
        """
        if isinstance(value, Spy):
            return value.expression
        if value is None or isinstance(value, bool | int):
            return repr(value)
        if isinstance(value, WatchedCache | WatchedPool):
            return self.write(value.cache)
        if isinstance(value, str) and WORD.fullmatch(value):
            return f'"{value}"'
        if isinstance(value, Mapping):
            listed = [f'"{name}": {self.write(each)}' for name, each in value.items()]
            return f"{{{', '.join(listed)}}}"
        if isinstance(value, set | frozenset):
            return f"frozenset({self.write(sorted(value))})"
        if isinstance(value, Sequence) and not isinstance(value, str):
            return f"[{', '.join(map(self.write, value))}]"
        if id(value) in self.names:
            return self.names[id(value)]
        raise UsageError(f"a script has no code for a {type(value).__name__}")


class Spy:
    """Something that a backend has handed out; `expression` is its code."""

    def __init__(self, notes: CallNotes, target: Any, expression: str) -> None:
        self.notes, self.target, self.expression = notes, target, expression

    def __getattr__(self, name: str) -> Any:
        return self.notes.get(self, name)


class NotedArrays:
    """The array functions of a backend; arrays that are made are noted."""

    def __init__(self, arrays: Any, notes: CallNotes) -> None:
        self.arrays, self.notes = arrays, notes

    def from_numpy(self, array: npt.NDArray[np.float32], dtype: str) -> Array:
        content = array.copy()
        made = self.arrays.from_numpy(array, dtype)
        self.notes.make(content, dtype, made)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.arrays, name)


def number(word: str, counts: Counter[str]) -> str:
    """The word, numbered from the second time on."""
    counts[word] += 1
    return word if counts[word] == 1 else f"{word}_{counts[word]}"


def unwrap(value: Any) -> Any:
    """What stands behind a spy, also in lists and configs; other lists stay the same
    object, for a cache may wrongly keep one."""
    if isinstance(value, Spy):
        return value.target
    if has_spies(value):
        return [unwrap(one) for one in value]
    if isinstance(value, dict):
        return {name: unwrap(one) for name, one in value.items()}
    return value


def has_spies(value: Any) -> bool:
    caches = Spy, WatchedCache, WatchedPool
    return isinstance(value, list) and any(isinstance(one, caches) for one in value)


def is_same(one: Any, other: Any) -> bool:
    return one is other or (not has_spies(other) and bool(one == other))
