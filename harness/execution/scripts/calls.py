"""Notes the calls of a backend's methods as code.

The objects that a backend returns, such as caches and snapshots, are wrapped in spies. A
spy knows the expression for its object in the script.
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
"""The texts that a script may hold: values in configs, and renamed names."""

HANDED_OUT: Mapping[str, str] = {
    **dict.fromkeys(("open", "clone", "extract"), "cache"),
    **dict.fromkeys(("snapshot", "split", "merge", "take"), "snapshot"),
    "save": "saved",
    "get_statistics": "statistics",
}
"""Method whose result has methods or is passed to other methods → its variable."""

INSIDE = ("of", "parts", "layers", "cache")
"""Methods and attributes that return a member of a cache; their code is inlined."""

LOOKS = ("held", "pool", "entries", "host_entries", "tables")
"""Methods that only report something; a script calls them in the last step."""

Owner = PairReader | Recurrence
"""An object that knows the numbers of one layer."""


@dataclass(frozen=True, eq=False)
class NotedCall:
    """A call, or an attribute that was read.

    Attributes:
        receiver: the expression for the object.
        name: the name of the method or the attribute.
        arguments: the arguments of the call.
        code: the expression of the call or the attribute.
        variable: the variable for the result.
        value: the result; None if the call was refused.
        is_kept: whether later lines use the result.
        refused: whether the call raised an exception.
    """

    receiver: str
    name: str
    arguments: tuple[Any, ...]
    code: str
    variable: str
    value: Any = None
    is_kept: bool = False
    refused: bool = False

    def write(self, used: str | None = None) -> str:
        """Returns the line of the call.

        Args:
            used: in the last step, the code that may use the result.
        """
        if self.refused and used is None:
            return f"refuse(lambda: {self.code})"
        is_used = re.search(rf"\b{self.variable}\b", used or "")
        return f"{self.variable} = {self.code}" if self.is_kept or is_used else self.code


@dataclass(frozen=True)
class NotedRead:
    """K and V, or the two arrays of a state, that the harness has read.

    Attributes:
        owner: the reader of the layer.
        call: the call that returned the arrays.
        pair: the expression for both arrays.
        after: the number of earlier calls in the step.
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
        reads: (owner, array, number of earlier calls) for each array that was read in the
            last step.
        arrays_made: id of an array → the array that was made for the backend.
        spies: id of an object → its spy.
        alive: all arrays that were made, so that no other array gets the same id.
        counts: name → how many variables with this name the script has.
        results: name → how many variables with this name hold results of the current
            step.
        config: the config of the first cache.
        is_inside: whether a method of the backend is running; its calls are not noted.
    """

    calls: list[NotedCall] = field(default_factory=list)
    reads: list[tuple[Owner, Array, int]] = field(default_factory=list)
    arrays_made: dict[int, MadeArray] = field(default_factory=dict)
    spies: dict[int, Spy] = field(default_factory=dict)
    alive: list[Array] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    config: Mapping[str, Any] | None = None
    is_inside: bool = False

    def watch(self) -> Backend:
        backend = self.backend
        overwrite = None if backend.overwrite is None else self.overwrite
        arrays = NotedArrays(backend.arrays, self)
        return replace(backend, open=self.open, arrays=arrays, overwrite=overwrite)

    def begin(self) -> None:
        super().begin()
        self.calls, self.reads = [], []
        self.results.clear()

    def list_reads(self) -> Iterator[NotedRead]:
        """Yields the pairs that were read from results of the last step."""
        for owner, array, after in self.reads:
            for call in reversed(self.calls[:after]):
                path = find_path(call.value, array)
                if path is not None and path.endswith("[0]"):
                    yield NotedRead(owner, call, call.variable + path[:-3], after)
                    break

    # --- calls of the run ---------------------------------------------------------------

    def open(self, config: Mapping[str, Any]) -> Any:
        if self.config is None:
            self.config = config
        base = self.config if self.config.keys() <= config.keys() else {}
        changes = {
            name: value
            for name, value in config.items()
            if name not in base or not is_same(base[name], value)
        }
        items = [f'"{name}": {self.write(value)}' for name, value in changes.items()]
        if base:
            items = ["**CONFIG", *items]
        code = f"{{{', '.join(items)}}}" if changes else "CONFIG"
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
        """Makes a call and notes it, unless a backend calls its own caches."""
        if self.is_inside or self.is_over:
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
        self.is_inside = True
        try:
            value = method(*map(unwrap, arguments))
        finally:
            self.is_inside = False
        if name == "save" and value is not None:  # its type does not matter
            value = Spy(self, value, variable)
        elif word:
            value = self.wrap(value, variable)
        lines[index] = noted = replace(noted, value=value)
        self.calls.append(noted)
        return value

    def get(self, spy: Spy, name: str) -> Any:
        """Reads an attribute; for a method, returns a method that notes its calls."""
        member = getattr(spy.target, name)
        code = f"{spy.expression}.{name}"
        if callable(member):
            return lambda *arguments: self.call(spy.expression, name, member, arguments)
        if self.is_inside or self.is_over:
            return member
        if name in INSIDE:
            return self.wrap(member, code)
        self.calls.append(NotedCall(spy.expression, name, (), code, code, member))
        return member

    def wrap(self, value: Any, expression: str) -> Any:
        """Wraps an object that a backend returns, or each object in a list, in a spy."""
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
        """Returns an argument of a call as code.

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
    """An object that a backend has returned, with its expression in the script."""

    def __init__(self, notes: CallNotes, target: Any, expression: str) -> None:
        self.notes, self.target, self.expression = notes, target, expression

    def __getattr__(self, name: str) -> Any:
        return self.notes.get(self, name)


class NotedArrays:
    """The array functions of a backend. Notes the arrays that are made or read."""

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
    """Returns the object whose method called an array function."""
    frame = sys._getframe(2)
    while frame is not None and "self" not in frame.f_locals:
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else frame.f_locals["self"]


def list_readers(system: Any) -> list[PairReader]:
    """Lists the readers of a system. If `system` is itself a reader, lists just this
    reader."""
    values = [system]
    for value in vars(system).values():
        values += value.values() if isinstance(value, dict) else [value]
        values += value if isinstance(value, list) else []
    return [value for value in values if isinstance(value, PairReader)]


def find_path(value: Any, array: Array) -> str | None:
    """Returns the subscripts that lead to an array in a result; None if the array is not
    there."""
    if value is array:
        return ""
    for index, member in enumerate(value if isinstance(value, list | tuple) else ()):
        path = find_path(member, array)
        if path is not None:
            return f"[{index}]{path}"
    return None


def number(word: str, counts: Counter[str]) -> str:
    """Returns the name of a new variable: the word, or the word with a number if the word
    was used before."""
    counts[word] += 1
    return word if counts[word] == 1 else f"{word}_{counts[word]}"


def get_watched(value: Any) -> Spy | None:
    """Returns the spy of the cache in an object of the harness, or None."""
    cache = getattr(value, "__dict__", {}).get("cache")
    return cache if isinstance(cache, Spy) else None


def unwrap(value: Any) -> Any:
    """Replaces spies by their objects, also in lists and configs.

    Other lists stay the same objects, because a cache may keep a list by mistake.
    """
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
