"""Defines faults: mistakes that are planted in our caches. Each faulted backend has one
fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import cleandoc, getsource
from textwrap import dedent
from types import MethodType
from typing import Any, Literal

from lockstep.harness.backends import Backend, Kind, Planted
from lockstep.harness.contracts import CONTRACTS
from lockstep.impl.shared.batched import CacheBatch

Of = Literal["cache", "singles"]

Change = Callable[[Any], object]
"""Plants a mistake in a correct cache, which has its framework's `make_band`."""

MakeBand = Callable[..., Any]
"""`make_band` of a framework."""


@dataclass(frozen=True)
class Form:
    """A form of layer cache that is common in other projects, such as a quantized cache;
    built from our caches.

    Attributes:
        id: name of the form.
        kind: kind of the layer cache.
        build: builds the form from our cache of the kind; its clones have the form too.
        config: values of config fields beyond those of the kind.
        operations: its operations; None for all of the kind.
        tolerance: see `Backend`.
    """

    id: str
    kind: str
    build: Callable[[Any, MakeBand], Any]
    config: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    operations: frozenset[str] | None = None
    tolerance: float = 0.0


@dataclass(frozen=True)
class Fault:
    """One mistake.

    Attributes:
        id: name of the mistake.
        source: the real cache that made it, or "constructed".
        contract, kind: of the cache.
        mistake: description.
        shortest: number of operations of the shortest known program that shows it.
        change: plants it.
        form: form of the cache, if it differs from ours.
        of: the changed objects: each cache, or the single caches that become a batch.
    """

    id: str
    source: str
    contract: str
    kind: str
    mistake: str
    shortest: int
    change: Change
    form: Form | None = None
    of: Of = "cache"


FAULTS: dict[str, Fault] = {}
FORMS: dict[str, Fault] = {}
"""Each form of a fault, without a mistake."""


def mistake(
    kind: str,
    shortest: int,
    source: str = "constructed",
    form: Form | None = None,
    of: Of = "cache",
) -> Callable[[Change], Change]:
    """Registers the decorated function as a fault; see `Fault` for the arguments.

    The name of the function is the id, and its docstring describes the mistake.
    """

    contract = next(name for name, rules in CONTRACTS.items() if kind in rules.kinds)

    def register(change: Change) -> Change:
        id = change.__name__.replace("_", "-")
        assert id not in FAULTS, f"two faults are called {id}"
        text = " ".join(cleandoc(change.__doc__ or "").split())
        FAULTS[id] = Fault(id, source, contract, kind, text, shortest, change, form, of)
        if form is not None:
            none = "no mistake"
            FORMS[form.id] = Fault(form.id, none, "layer", kind, none, 0, keep, form)
        return change

    return register


def edit(target: Any, method: str, original: str, wrong: str) -> None:
    """Changes a method of one object; see `rewrite`."""
    changed = rewrite(getattr(type(target), method), original, wrong)
    setattr(target, method, MethodType(changed, target))


def rewrite(function: Any, original: str, wrong: str) -> Any:
    """Returns a function of a class or a module with a piece of its source replaced."""
    source, name = dedent(getsource(function)), function.__qualname__
    assert source.count(original) == 1, f"{name} has another source"
    owner = name.rpartition(".")[0]
    source = source.replace(original, wrong).replace("super()", f"super({owner}, self)")
    scope: dict[str, Any] = {}
    exec(source, function.__globals__, scope)
    return scope[function.__name__]


def keep(cache: object) -> None:
    """Plants no mistake."""


def apply(opened: Any, change: Callable[[Any], Any]) -> Any:
    return change(opened)


@dataclass(frozen=True)
class FaultedBackend:
    """A correct backend, and a copy of it for each fault.

    A module of `impl.faults` has the factories of the copies as attributes.

    Attributes:
        module: full name of that module.
        correct: name of the backend without a fault.
        factory: makes that backend.
        make_band: of its framework.
        change_cache: applies a function to the innermost cache, and returns the opened
            cache.
    """

    module: str
    correct: str
    factory: Callable[[], Backend]
    make_band: MakeBand
    change_cache: Callable[[Any, Callable[[Any], Any]], Any] = apply

    def list_names(self) -> list[str]:
        return ["list_faults", *(id.replace("-", "_") for id in FAULTS | FORMS)]

    def list_faults(self) -> list[Planted]:
        return [self.describe(fault) for fault in FAULTS.values()]

    def describe(self, fault: Fault) -> Planted:
        return Planted(
            fault.id,
            fault.source,
            fault.contract,
            fault.kind,
            fault.mistake,
            fault.shortest,
            f"{self.module}:{fault.id.replace('-', '_')}",
            self.correct if fault.form is None else f"{self.module}:{fault.form.id}",
        )

    def get_factory(self, name: str) -> Callable[[], Backend]:
        """Returns the factory of a backend with a fault, or with a form and no fault.

        Raises:
            AttributeError: there is no such fault or form.
        """
        id = name.replace("_", "-")
        fault = FAULTS.get(id) or FORMS.get(id)
        if fault is None:
            raise AttributeError(f"there is no fault {name}; known: {', '.join(FAULTS)}")
        return lambda: self.make_backend(fault)

    def unwrap(self, opened: Any) -> Any:
        caches: list[Any] = []
        self.change_cache(opened, lambda cache: (caches.append(cache), cache)[1])
        return caches[0]

    def make_backend(self, fault: Fault) -> Backend:
        """Makes a backend of one kind with the fault in each cache; lower caches are
        correct."""
        backend = self.factory()
        kind, form = backend.contracts[fault.contract][fault.kind], fault.form
        if form is not None:
            operations = form.operations or kind.operations
            kind = Kind(operations, {**kind.config, **form.config})
            backend = replace(backend, tolerance=form.tolerance)

        def open_cache(config: Mapping[str, Any]) -> Any:
            if fault.of == "singles":
                fault.change([*map(self.unwrap, config["caches"] or ())])
                return backend.open(config)
            opened = backend.open(config)
            if config["kind"] != fault.kind:
                return opened
            return self.change_cache(opened, plant)

        def plant(cache: Any) -> Any:
            return spoil(form.build(cache, self.make_band) if form else cache)

        def spoil(cache: Any) -> Any:
            if fault.contract == "batched" and not isinstance(cache, CacheBatch):
                return cache  # a single one
            cache.make_band = self.make_band
            fault.change(cache)
            if fault.contract in ("layer", "batched"):  # only these have clones
                clone = cache.clone
                cache.clone = lambda: spoil(clone())
            return cache

        return replace(
            backend,
            name=f"{backend.name}+{fault.id}",
            contracts={fault.contract: {fault.kind: kind}},
            open=open_cache,
        )
