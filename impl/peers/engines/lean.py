"""Imports modules of an engine without the packages that its server and its GPUs need.

A block manager imports modules that it hardly uses, and these modules import CUDA
kernels, web servers and tokenizers. A lean import loads chosen packages without their
`__init__`, and replaces listed modules by *stand-ins*. The list gives a reason for each
stand-in. A stand-in has the names in its row of the list. Every other name is a
placeholder: annotations may contain it, but using it raises an exception.

No other code sees a stand-in. Stand-ins never enter `sys.modules`; the engine's modules
get a special `__import__`, which returns the stand-ins. The engine's modules are in
`sys.modules` while they load, and are then removed. Therefore, a later `import vllm`
imports the real package.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, resolve_name
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

from lockstep.impl.peers.engines.engine import (
    Engine,
    StandIn,
    has_dependencies,
    require_installed,
)


class Importer(Protocol):
    """Imports modules of one engine."""

    def load(self, name: str) -> Any:
        """Returns the module `name`; its type is Any, because few machines have the
        engine."""

    def visible(self) -> AbstractContextManager[None]:
        """Returns a context in which the engine's modules are in `sys.modules`, for
        engine code that reads `sys.modules` or calls importlib."""


class PlainImporter:
    """Imports an engine that is installed with all its dependencies."""

    load: Callable[[str], Any] = staticmethod(importlib.import_module)
    visible = staticmethod(nullcontext)


@cache
def open_engine(engine: Engine) -> Importer:
    """Returns the importer of an engine.

    Raises:
        Unavailable: the pinned version, or a package that it needs, is not installed.
    """
    require_installed(engine)
    return PlainImporter() if has_dependencies(engine) else LeanImporter(engine)


def take(importer: Importer, names: Mapping[str, Sequence[str]]) -> SimpleNamespace:
    """Returns the attributes of several modules as one namespace."""
    return SimpleNamespace(
        **{
            name: getattr(importer.load(module), name)
            for module, taken in names.items()
            for name in taken
        }
    )


# --- stand-ins --------------------------------------------------------------------------


class Absent(type):
    """The type of the placeholder for a name that a stand-in lacks. Code can import and
    annotate with the placeholder, but not use it."""

    reason: str

    def refuse(cls) -> NotImplementedError:
        return NotImplementedError(f"{cls.__name__} is not loaded: {cls.reason}")

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        if "reason" in vars(cls):  # not a class of the engine that derives from it
            raise cls.refuse()
        return super().__call__(*arguments, **keywords)

    def __bool__(cls) -> bool:
        raise cls.refuse()

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __getattr__(cls, name: str) -> Any:
        return make_absent(cls.__name__, name, cls.reason)


def make_absent(path: str, name: str, reason: str) -> Any:
    """Returns a placeholder for a name.

    Raises:
        AttributeError: the name is a special name that Python looks up.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent(f"{path}.{name}", (), {"reason": reason})


class StandInModule(ModuleType):
    """A module with the names of its row in the list, and placeholders for all other
    names."""

    def __init__(self, name: str, row: StandIn) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._row = row
        if name == row.name:
            vars(self).update(row.holds)

    def __getattr__(self, name: str) -> Any:
        absent = make_absent(self.__name__, name, self._row.reason)
        setattr(self, name, absent)
        return absent


# --- the import -------------------------------------------------------------------------


class LeanImporter:
    """Imports an engine that is installed without its dependencies.

    Attributes:
        modules: name → module, for all loaded modules, including stand-ins.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.modules: dict[str, ModuleType] = {}
        self.builtins = {**vars(builtins), "__import__": self.import_name}
        self.rows = {row.name: row for row in engine.stand_ins if self.is_missing(row)}
        self.is_visible = False

    def is_missing(self, row: StandIn) -> bool:
        package = row.name.partition(".")[0]
        return package == self.engine.package or PathFinder.find_spec(package) is None

    def get_row(self, name: str) -> StandIn | None:
        """Returns the row of the stand-in that replaces a module or a package around the
        module."""
        while name not in self.rows and "." in name:
            name = name.rpartition(".")[0]
        return self.rows.get(name)

    def import_name(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Replaces `__import__` in the engine's modules; has the same arguments."""
        package = (globals or {}).get("__package__")
        absolute = resolve_name("." * level + name, package)
        top = absolute.partition(".")[0]
        if top != self.engine.package and self.get_row(absolute) is None:
            return __import__(name, globals, locals, fromlist or (), level)
        module = self.load(absolute)
        if not fromlist:
            return self.modules[top]
        for item in fromlist:
            if not hasattr(module, item) and self.find(f"{absolute}.{item}") is not None:
                self.load(f"{absolute}.{item}")
        return module

    def load(self, name: str) -> ModuleType:
        """Returns a module of the engine, and executes the module on the first call.

        Raises:
            ModuleNotFoundError: the engine has no module of this name.
        """
        package, _, last = name.rpartition(".")
        parent = self.load(package) if package else None
        if name in self.modules:  # maybe since its package was loaded
            return self.modules[name]
        with self.visible():
            module = self.execute(name)
        if parent is not None:
            setattr(parent, last, module)
        return module

    def execute(self, name: str) -> ModuleType:
        spec = self.find(name)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if isinstance(spec, StandIn):
            self.modules[name] = StandInModule(name, spec)
            return self.modules[name]
        module = module_from_spec(spec)
        self.modules[name] = sys.modules[name] = module
        if name in self.engine.bare or spec.loader is None:
            return module
        vars(module)["__builtins__"] = self.builtins
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del self.modules[name], sys.modules[name]
            raise
        return module

    def find(self, name: str) -> StandIn | ModuleSpec | None:
        package = name.rpartition(".")[0]
        path = vars(self.modules[package]).get("__path__", ()) if package else None
        return self.get_row(name) or PathFinder.find_spec(name, path)

    @contextmanager
    def visible(self) -> Iterator[None]:
        """Puts the engine's modules into `sys.modules`, where dataclasses and extension
        modules look for them; restores `sys.modules` at the end."""
        if self.is_visible:
            yield
            return
        modules = self.take_out()
        sys.modules.update(
            (name, module)
            for name, module in self.modules.items()
            if not isinstance(module, StandInModule)
        )
        self.is_visible = True
        try:
            yield
        finally:
            self.is_visible = False
            self.modules.update(self.take_out())
            sys.modules.update(modules)

    def take_out(self) -> dict[str, ModuleType]:
        """Removes the modules of the engine's package from `sys.modules`, and returns
        them."""
        names = [name for name in sys.modules if self.is_own(name)]
        return {name: sys.modules.pop(name) for name in names}

    def is_own(self, name: str) -> bool:
        return name.partition(".")[0] == self.engine.package
