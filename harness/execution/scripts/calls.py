"""Notes the calls that a run makes of a backend's methods, as code.

Caches, snapshots and what else a backend hands out stand behind spies, whose names are
variables of the script.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.interface import Array
from lockstep.harness.contracts.recurrence import Recurrence
from lockstep.harness.contracts.system import PairReader
from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.payload import F32
from lockstep.harness.execution.scripts.follow import Notes
from lockstep.harness.execution.scripts.tables import MadeArray

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

Owner = PairReader | Recurrence
"""Knows the numbers of one layer."""


@dataclass(frozen=True, eq=False)
class NotedCall:
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
        return f"{self.variable} = {self.code}" if self.is_kept or is_used else self.code


@dataclass(frozen=True)
class NotedRead:
    """K and V, or the two arrays of a state, that the harness has read.

    Attributes:
        pair: the expression for both.
        after: how many calls of the step came before.
    """

    owner: Owner
    call: NotedCall
    pair: str
    after: int


@dataclass(eq=False)
class CallNotes(Notes):
    """The calls of one run.

    Attributes:
        calls: the calls and attributes of the last step.
        reads: (owner, array, calls before it) of the last step.
    """

    calls: list[NotedCall] = field(default_factory=list)
    reads: list[tuple[Owner, Array, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.arrays_made: dict[int, MadeArray] = {}
        self.spies: dict[int, Spy] = {}
        self.alive: list[Array] = []  # or another one could get the same id
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
        super().begin()
        self.calls, self.reads = [], []
        self.results.clear()

    def list_reads(self) -> Iterator[NotedRead]:
        """The pairs that were read of results of the last step."""
        for owner, array, after in self.reads:
            for call in reversed(self.calls[:after]):
                path = find_path(call.value, array)
                if path is not None and path.endswith("[0]"):
                    yield NotedRead(owner, call, call.variable + path[:-3], after)
                    break

    # --- what the run calls -------------------------------------------------------------

    def open(self, config: Mapping[str, Any]) -> Any:
        if self.config is None:
            self.config = {
                n: value for n, value in config.items() if not has_spies(value)
            }
        changed = {
            name: value
            for name, value in config.items()
            if name not in self.config or not is_same(self.config[name], value)
        }
        code = "CONFIG"
        if changed or self.config.keys() - config.keys():
            is_based = not self.config.keys() - config.keys()
            listed = changed if is_based else config
            items = [f'"{name}": {self.write(value)}' for name, value in listed.items()]
            code = f"{{{', '.join(['**CONFIG'] * is_based + items)}}}"
        method = self.backend.open
        return self.call("backend", "open", method, (config,), f"backend.open({code})")

    def call(
        self,
        receiver: str,
        name: str,
        method: Callable[..., Any],
        arguments: tuple[Any, ...],
        code: str | None = None,
    ) -> Any:
        """Makes a call and notes it; not one that a backend makes of its own caches."""
        if self.depth or self.is_over:
            return method(*map(unwrap, arguments))
        if code is None:
            code = f"{receiver}.{name}({', '.join(map(self.write, arguments))})"
        if name in INSIDE:
            return self.wrap(method(*map(unwrap, arguments)), code)
        word, lines = HANDED_OUT.get(name), self.steps[-1]
        variable = number(word or f"got_{name}", self.counts if word else self.results)
        noted = NotedCall(receiver, name, arguments, code, variable, None, bool(word))
        index = len(lines)
        lines.append(replace(noted, refused=True))
        self.depth += 1
        try:
            value = method(*map(unwrap, arguments))
        finally:
            self.depth -= 1
        if name == "save" and value is not None:  # whatever it is made of
            value = Spy(self, value, variable)
        elif word:
            value = self.wrap(value, variable)
        lines[index] = noted = replace(noted, value=value)
        self.calls.append(noted)
        return value

    def get(self, spy: Spy, name: str) -> Any:
        """Reads an attribute, or returns a method that notes its calls."""
        member = getattr(spy.target, name)
        code = f"{spy.expression}.{name}"
        if callable(member):
            return lambda *arguments: self.call(spy.expression, name, member, arguments)
        if self.depth or self.is_over:
            return member
        if name in INSIDE:
            return self.wrap(member, code)
        noted = NotedCall(spy.expression, name, (), code, code, member, is_call=False)
        self.calls.append(noted)
        return member

    def wrap(self, value: Any, expression: str) -> Any:
        """Puts spies before what a backend hands out, also in a list."""
        if isinstance(value, list | tuple):
            return [self.wrap(item, f"{expression}[{n}]") for n, item in enumerate(value)]
        if value is None or isinstance(value, int | float | str):
            return value
        return self.spies.setdefault(id(value), Spy(self, value, expression))

    def overwrite(self, array: Array) -> None:
        assert self.backend.overwrite is not None
        self.backend.overwrite(array)
        self.steps[-1].append(f"backend.overwrite({self.write(array)})")

    def write(self, value: Any) -> str:
        """A value of a call as code.

        Raises:
            UsageError: there is no code for it.
        """
        if isinstance(value, Spy):
            return value.expression
        if value is None or isinstance(value, bool | int):
            return repr(value)
        if isinstance(value, str) and WORD.fullmatch(value):
            return f'"{value}"'
        if isinstance(value, Mapping):
            listed = [f'"{name}": {self.write(item)}' for name, item in value.items()]
            return f"{{{', '.join(listed)}}}"
        if isinstance(value, set | frozenset):
            return f"frozenset({self.write(sorted(value))})"
        if isinstance(value, Sequence) and not isinstance(value, str):
            return f"[{', '.join(map(self.write, value))}]"
        if id(value) in self.arrays_made:
            return self.arrays_made[id(value)].variable
        if (spy := get_watched(value)) is not None:
            return spy.expression
        raise UsageError(f"a script has no code for a {type(value).__name__}")


class Spy:
    """Something that a backend has handed out; `expression` is its code."""

    def __init__(self, notes: CallNotes, target: Any, expression: str) -> None:
        self.notes, self.target, self.expression = notes, target, expression

    def __getattr__(self, name: str) -> Any:
        return self.notes.get(self, name)


class NotedArrays:
    """The array functions of a backend; arrays that are made or read are noted."""

    def __init__(self, arrays: Any, notes: CallNotes) -> None:
        self.arrays, self.notes = arrays, notes

    def from_numpy(self, array: F32, dtype: str) -> Array:
        content, notes = array.copy(), self.notes
        array_made = self.arrays.from_numpy(array, dtype)
        readers = list_readers(find_caller())
        noted = MadeArray(number("array", notes.counts), content, dtype, readers)
        notes.alive.append(array_made)
        notes.arrays_made[id(array_made)] = noted
        notes.steps[-1].append(noted)
        return array_made

    def to_numpy(self, array: Array) -> Any:
        caller = find_caller()
        if isinstance(caller, Owner):
            self.notes.reads.append((caller, array, len(self.notes.calls)))
        return self.arrays.to_numpy(array)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.arrays, name)


def find_caller() -> Any:
    """The object whose method asks for an array."""
    frame = sys._getframe(2)
    while frame is not None and "self" not in frame.f_locals:
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else frame.f_locals["self"]


def list_readers(system: Any) -> list[PairReader]:
    """The readers of a system, or a reader itself."""
    values = [system]
    for value in vars(system).values():
        values += value.values() if isinstance(value, dict) else [value]
        values += value if isinstance(value, list) else []
    return [value for value in values if isinstance(value, PairReader)]


def find_path(value: Any, array: Array) -> str | None:
    """The subscripts that lead to an array in a result; None if it is not there."""
    if value is array:
        return ""
    for index, item in enumerate(value if isinstance(value, list | tuple) else ()):
        path = find_path(item, array)
        if path is not None:
            return f"[{index}]{path}"
    return None


def number(word: str, counts: Counter[str]) -> str:
    """The word, numbered from the second time on."""
    counts[word] += 1
    return word if counts[word] == 1 else f"{word}_{counts[word]}"


def get_watched(value: Any) -> Spy | None:
    """The cache behind an object of the harness's own; None if there is none."""
    cache = getattr(value, "__dict__", {}).get("cache")
    return cache if isinstance(cache, Spy) else None


def unwrap(value: Any) -> Any:
    """What stands behind a spy, also in lists and configs; other lists stay the same
    object, for a cache may wrongly keep one."""
    if isinstance(value, Spy):
        return value.target
    if has_spies(value):
        return list(map(unwrap, value))
    if isinstance(value, dict):
        return {name: unwrap(item) for name, item in value.items()}
    return value


def has_spies(value: Any) -> bool:
    return isinstance(value, list) and any(
        isinstance(item, Spy) or get_watched(item) is not None for item in value
    )


def is_same(value: Any, second: Any) -> bool:
    return value is second or (not has_spies(second) and bool(value == second))
