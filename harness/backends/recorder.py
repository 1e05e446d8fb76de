"""Records the operations of an engine on its live caches; see `programs.recording`.

The recorder of a library has a subclass of `Scribe` for each class of cache. The subclass
translates each call of the library to an operation. The engine's cache object is changed
to an instance of a new subclass of its class. This keeps the identity of the object, its
attributes, and the results of `isinstance`; a wrapper would change them.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from copyreg import __newobj__  # type: ignore[attr-defined]
from dataclasses import dataclass, replace
from string import ascii_lowercase
from types import new_class
from typing import Any, ClassVar, Protocol

from lockstep.harness.core.errors import UsageError, clean, format_raised

NAMES = tuple(ascii_lowercase[:16])
"""The names of the caches of a program."""

MOST_HEADS, DIM = 2, 4
"""K and V of a replay are small: no cache computes with their shapes."""


@dataclass(frozen=True)
class Form:
    """The backend, contract and config of a program that is recorded from a cache.

    Attributes:
        backend: the registered backend that makes the same calls.
        contract: the name of the contract.
        config: the config fields that differ from their defaults.
        about: the sizes of the engine's cache, as text; a replay uses smaller sizes.
    """

    backend: str
    contract: str
    config: Mapping[str, Any]
    about: str = ""

    def with_fields(self, **config: Any) -> Form:
        """Returns a copy of the form with these config fields added or replaced."""
        return replace(self, config={**self.config, **config})


class Draft(Protocol):
    """The program that is recorded from a layer, or from several layers of equal form."""

    form: Form

    @property
    def is_begun(self) -> bool:
        """Whether the program has an operation."""

    def turn(self, form: Form, first: Sequence[Mapping[str, Any]] = ()) -> None:
        """Changes the form. Inserts the operations `first`, which the new form needs,
        before the earlier operations."""

    def note(self, layer: str, op: Mapping[str, Any]) -> None:
        """Records an operation that is about to run."""

    def stop(self, layer: str, reason: str) -> None:
        """Ends the program, because no operation describes what the engine does next."""

    def remark(self, text: str) -> None:
        """Stores a description of content that is missing from the program."""


def say(line: str) -> None:
    """Prints a line on standard error, unless it is closed or full."""
    with suppress(Exception):
        if sys.stderr is not None:
            print(f"lockstep: {line}", file=sys.stderr, flush=True)


class Tape:
    """The operations on the caches of a layer, which have names in the program.

    Attributes:
        layer: the name of the layer, for messages.
        draft: the program that gets the operations.
        names: name → the current cache with this name.
        bound: all caches that ever had a name.
        gone: the names of caches that an operation has consumed.
        is_busy: whether a call of the library is running, so that its inner calls are not
            noted.
        process: the process that records; a process forked from it does not.
    """

    def __init__(self, layer: str, draft: Draft) -> None:
        self.layer, self.draft = layer, draft
        self.names: dict[str, weakref.ref[Any]] = {}
        self.bound: list[weakref.ref[Any]] = []
        self.gone: set[str] = set()
        self.is_busy, self.process = False, os.getpid()

    def is_listening(self) -> bool:
        """Returns whether the engine's calls are noted now."""
        if not self.is_busy and self.process != os.getpid():
            self.is_busy = True
            say(f"not recorded: {self.layer} in process {os.getpid()}, which was forked")
        return not self.is_busy

    def choose_name(self) -> str:
        """Returns a name for a new cache.

        Names that were never used are preferred, since an empty cache needs such a name.
        If there is none, the method returns the name of a cache that no longer exists.
        """
        unused = [name for name in NAMES if name not in self.names]
        dead = [name for name, cache in self.names.items() if cache() is None]
        if not unused + dead:
            self.stop(f"more than {len(NAMES)} caches at once")
        return (unused + dead + [NAMES[-1]])[0]

    def bind(self, name: str, cache: Any) -> None:
        self.names[name] = weakref.ref(cache)
        self.bound.append(self.names[name])
        self.gone.discard(name)

    def find_name(self, cache: Any) -> str | None:
        """Returns the name of a cache; None if it is not recorded."""
        names = (name for name, recorded in self.names.items() if recorded() is cache)
        return next(names, None)

    def note(self, name: str, op: str, **fields: Any) -> None:
        """Notes an operation on the cache of this name."""
        if name in self.gone:
            self.stop(f"{op} of a cache that became part of a batch")
        plain = {name: make_plain(value) for name, value in fields.items()}
        self.draft.note(self.layer, {"op": op, **plain, "cache": name})

    def stop(self, reason: str) -> None:
        self.draft.stop(self.layer, reason)

    def note_sizes(self, keys: Any, values: Any) -> None:
        """Records the shapes and the dtype of the program's first K and V.

        Their axes are [rows, heads, length, dim].
        """
        form = self.draft.form
        if "dtype" in form.config:
            return
        heads, key_dim, value_dim = keys.shape[1], keys.shape[3], values.shape[3]
        fields = {
            "heads": min(heads, MOST_HEADS),
            "key_dim": DIM,
            "value_dim": DIM if value_dim else 0,
            "dtype": str(keys.dtype).rpartition(".")[2],
        }
        # The form's dimensions, for example of a group, take precedence.
        form = form.with_fields(**{**fields, **form.config})
        sizes = f"{heads} heads of {key_dim} and {value_dim} numbers"
        about = ", ".join(filter(None, (form.about, sizes)))
        self.draft.turn(replace(form, about=about))


def make_plain(value: Any) -> Any:
    """Converts an array, or the arrays in a nested list, to plain numbers."""
    if isinstance(value, list | tuple):
        return [make_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


Then = Callable[[Any], None] | None
"""A function that processes the result of a call; None if nothing has to be done."""

DEEPCOPY = "__deepcopy__"


class Scribe:
    """Notes the calls on one live cache.

    A subclass lists calls of the library in `calls`, and has a method for each. The
    method gets the arguments before the library does, notes the operation, and may return
    a function, which is called with the result.

    Args:
        cache: the cache of the engine.
        tapes: the tapes of the layers that use the cache.
        name: the name of the cache in all tapes.
    """

    calls: ClassVar[Sequence[str]] = ()

    def __init__(self, cache: Any, tapes: Sequence[Tape], name: str) -> None:
        self.tapes, self.name = list(tapes), name
        self.plain = type(cache)
        self.attributes = frozenset(dir(cache))
        self.cache = weakref.ref(cache)
        self.watched = make_watched(self)
        try:
            object.__setattr__(cache, "__class__", self.watched)
        except TypeError as error:
            raise UsageError(
                f"a cache of class {self.plain.__name__} cannot be recorded: {error}"
            ) from None
        for tape in tapes:
            tape.bind(name, cache)

    def leave(self, cache: Any) -> None:
        """Restores the original class of the cache."""
        object.__setattr__(cache, "__class__", self.plain)

    def note(self, op: str, **fields: Any) -> None:
        """Notes an operation on the cache in each of its layers."""
        for tape in self.tapes:
            tape.note(self.name, op, **fields)

    def stop(self, reason: str) -> None:
        with suppress(Exception):  # the engine must not see it
            for tape in self.tapes:
                tape.stop(reason)

    def is_heard(self, cache: Any) -> bool:
        """Returns whether the engine makes this call on the recorded cache.

        Returns False for inner calls of the library, and for other objects of the class.
        """
        return cache is self.cache() and all(tape.is_listening() for tape in self.tapes)

    @contextmanager
    def working(self, cache: Any) -> Iterator[None]:
        """Restores the cache's original class during the context, so that nothing is
        recorded."""
        were_busy = [tape.is_busy for tape in self.tapes]
        watched = type(cache)
        object.__setattr__(cache, "__class__", self.plain)
        for tape in self.tapes:
            tape.is_busy = True
        try:
            yield
        finally:
            object.__setattr__(cache, "__class__", watched)
            for tape, was_busy in zip(self.tapes, were_busy, strict=False):
                tape.is_busy = was_busy

    def call(self, cache: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Makes a call, and records it if the engine makes it."""
        is_heard = self.is_heard(cache)
        note_call = self.copy if name == DEEPCOPY else self.get_note(name)
        then: Then = self.attempt(name, note_call, *args, **kwargs) if is_heard else None
        try:
            with self.working(cache):
                if name == DEEPCOPY:
                    result = deepcopy(cache, *args)
                else:
                    result = getattr(cache, name)(*args, **kwargs)
        except Exception as error:
            if is_heard:
                self.stop(f"{name} raised {type(error).__name__}: {clean(str(error))}")
            raise
        if then is not None:
            self.attempt(f"the result of {name}", then, result)
        return result

    def get_note(self, name: str) -> Callable[..., Then]:
        """Returns the function that notes the calls of a method."""
        note: Callable[..., Then] = getattr(self, name)
        return note

    def attempt(
        self, noted: str, note: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Calls code of the recorder; its exceptions must not end the engine."""
        try:
            return note(*args, **kwargs)
        except Exception as error:
            self.stop(f"{noted} could not be told: {format_raised(error)}")

    def copy(self, memo: Any) -> Then:
        """Records a copy by `copy.deepcopy`; a copy of a cache without layers is recorded
        like a new cache.
        """
        if not self.tapes:
            return lambda copied: self.join(copied, self.name)
        name = self.tapes[0].choose_name()
        self.note("clone", into=name)
        return lambda copied: self.join(copied, name)

    def join(self, copied: Any, name: str) -> None:
        """Records a copy of the cache as another cache of the program."""
        type(self)(copied, self.tapes, name)

    def copy_aside(self, cache: Any, protocol: Any) -> Any:
        """Implements `__reduce_ex__`, so that a copy has the library's class."""
        if self.is_heard(cache):
            for tape in self.tapes:  # never raises
                tape.draft.remark("a shallow or pickled copy, and what was done with it")
        with self.working(cache):
            make, *state = cache.__reduce_ex__(protocol)
        return make_anew if make is __newobj__ else make, *state

    def set(self, cache: Any, name: str, value: Any) -> None:
        """Implements `__setattr__`. Ignores attributes that the library does not use."""
        is_content = name in self.attributes and name != "__class__"
        if is_content and self.is_heard(cache):
            self.stop(f"{self.plain.__name__}.{name} was set from outside of the cache")
        plain: Any = self.plain
        plain.__setattr__(cache, name, value)

    def delete(self, cache: Any, name: str) -> None:
        """Implements `__delattr__`."""
        if name in self.attributes and self.is_heard(cache):
            self.stop(f"{self.plain.__name__}.{name} was deleted from outside")
        plain: Any = self.plain
        plain.__delattr__(cache, name)


def make_anew(plain: type, *arguments: Any) -> Any:
    """Replaces `copyreg.__newobj__`, which fails for an object with a changed class."""
    return plain.__new__(plain, *arguments)


Calls = Mapping[str, Callable[..., Mapping[str, Any] | None]]
"""Name of a method → a function that gets the arguments of a call before the method does,
and returns the operation without its cache; None for a call that only reads."""


class Listed(Scribe):
    """Notes the calls that `table` maps to operations. A subclass sets `table` and
    `calls`."""

    table: ClassVar[Calls] = {}

    def get_note(self, name: str) -> Callable[..., Then]:
        def note(*args: Any, **kwargs: Any) -> Then:
            op = self.table[name](*args, **kwargs)
            if op is not None:
                self.note(**op)
            return None

        return note


def record_calls(
    layers: Sequence[Any],
    form: Form,
    calls: Calls,
    open_tape: Callable[[str, Form], Tape],
) -> None:
    """Records the calls of a table on empty caches of one form.

    Raises:
        UsageError: a cache lacks a method of the table, or is already recorded.
    """
    scribe = type("Listed", (Listed,), {"table": calls, "calls": tuple(calls)})
    for number, layer in enumerate(layers):
        if get_scribe(layer) is not None:
            raise UsageError(f"layer {number} is recorded already")
        for name in calls:
            if not callable(getattr(layer, name, None)):
                raise UsageError(f"calls: a {type(layer).__name__} has no method {name}")
        tape = open_tape(f"layer {number}", form)
        scribe(layer, [tape], tape.choose_name())


SCRIBE = "lockstep_scribe"


def get_scribe(cache: Any) -> Scribe | None:
    """Returns the scribe of a cache; None if it is not recorded."""
    scribe = getattr(type(cache), SCRIBE, None)
    is_own = isinstance(scribe, Scribe) and scribe.cache() is cache
    return scribe if is_own else None


def make_watched(scribe: Scribe) -> type:
    """Makes the class of a recorded cache, with the name and module of its original
    class."""
    plain = scribe.plain

    def make_method(call: Callable[..., Any], *names: str) -> Callable[..., Any]:
        def method(cache: Any, *args: Any, **kwargs: Any) -> Any:
            return call(cache, *names, *args, **kwargs)

        return method

    body: dict[str, Any] = {
        "__slots__": (),
        "__doc__": plain.__doc__,
        "__module__": plain.__module__,
        "__qualname__": plain.__qualname__,
        "__reduce_ex__": make_method(scribe.copy_aside),
        "__setattr__": make_method(scribe.set),
        "__delattr__": make_method(scribe.delete),
        SCRIBE: scribe,
    }
    for name in {*scribe.calls, DEEPCOPY} & {*dir(plain), DEEPCOPY}:
        body[name] = make_method(scribe.call, name)
    # The new class has the metaclass of the original class, such as ABCMeta.
    return new_class(plain.__name__, (plain,), exec_body=lambda space: space.update(body))
