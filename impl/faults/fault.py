"""What a fault is, and how one gets into a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from inspect import cleandoc
from typing import Any

from lockstep.harness.backends import Backend, Kind, Planted

MakeBand = Callable[..., Any]
"""The `make_band` of the cache's framework."""

Open = Callable[[Mapping[str, Any]], Any]
"""Makes one empty cache from a complete config."""


PLACES = {
    "torch": "torch-cpu",
    "torch_cuda": "torch-cuda",
    "mlx": "mlx-cpu",
    "mlx_gpu": "mlx-gpu",
}
"""Modules that plant the mistakes, and the backends in which they do."""

INVENTED = "our own invention"
"""The source of a mistake that no real cache is known to have made."""

NATURES = (
    "bound",
    "order",
    "aliasing",
    "stale metadata",
    "wrong layer",
    "wrong sequence",
    "wrong dtype",
    "missing rollback",
    "evicted too early",
    "evicted too late",
    "error class",
    "silent clamp",
)
"""In how many ways a cache goes wrong."""


@dataclass(frozen=True)
class Form:
    """A layer cache of a form that real ones have and ours do not, made of one of ours.

    It makes no mistake; some mistakes are possible in it alone. build: the cache, whose
    clones have the form too. config: what it declares beyond its kind. operations: those
    it has; None for all of its kind. tolerance: see `Backend`.
    """

    id: str
    kind: str
    build: Callable[[Any, MakeBand], Any]
    config: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    operations: frozenset[str] | None = None
    tolerance: float = 0.0

    def adapt(self, kind: Kind) -> Kind:
        """What the form declares, where our own cache declares `kind`."""
        return Kind(self.operations or kind.operations, {**kind.config, **self.config})


@dataclass(frozen=True)
class Fault:
    """One mistake.

    source: where a real cache made it, or INVENTED. shortest: operations of the shortest
    program known to show it. change: makes the mistake in a correct cache. contract: of
    the kind. form: of the cache, if ours has not the right one. operation, nature: of an
    invented one, the operation that is carried out wrongly, and in what way: one of
    NATURES. opening: instead of `change`, makes the mistake in what opens such caches.
    """

    id: str
    source: str
    kind: str
    mistake: str
    shortest: int
    change: Callable[[Any, MakeBand], None]
    contract: str = "layer"
    form: Form | None = None
    operation: str | None = None
    nature: str | None = None
    opening: Callable[[Open], Open] | None = None

    def get_correct(self, place: str) -> str:
        """The name of the backend without the mistake; place: one of PLACES."""
        if self.form is None:
            return PLACES[place]
        return f"lockstep.impl.faults.forms_{place}:{self.form.id}"


def make_plain_fault(
    contract: str,
    id: str,
    source: str,
    kind: str,
    mistake: str,
    shortest: int,
    change: Callable[[Any], None],
    form: Form | None = None,
) -> Fault:
    """A mistake that needs nothing of the cache's framework."""

    def plant(cache: Any, make_band: object) -> None:
        change(cache)

    return Fault(id, source, kind, mistake, shortest, plant, contract, form)


class Inventor:
    """Collects the mistakes of a contract that we thought up ourselves.

    A function that makes one becomes a fault: its name is the id, its docstring says what
    the mistake is. It gets a correct cache, and replaces a method or two.
    """

    def __init__(self, contract: str) -> None:
        self.contract = contract
        self.faults: dict[str, Fault] = {}

    def __call__(
        self, operation: str, nature: str, kind: str, shortest: int
    ) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
        """operation: of the contract, carried out wrongly. nature: one of NATURES.
        shortest: see `Fault`."""

        def keep(change: Callable[[Any], None]) -> Callable[[Any], None]:
            self.keep(change, change, operation, nature, kind, shortest)
            return change

        return keep

    def opening(
        self, nature: str, kind: str, shortest: int
    ) -> Callable[[Callable[[Open], Open]], Callable[[Open], Open]]:
        """The same for a function that gets what opens such caches, and returns what
        opens them wrongly."""

        def keep(opening: Callable[[Open], Open]) -> Callable[[Open], Open]:
            id = self.keep(opening, lambda _: None, "open", nature, kind, shortest)
            self.faults[id] = replace(self.faults[id], opening=opening)
            return opening

        return keep

    def keep(
        self,
        named: Callable[..., Any],
        change: Callable[[Any], None],
        operation: str,
        nature: str,
        kind: str,
        shortest: int,
    ) -> str:
        """One more; its id. named: has its name and its description."""
        id = named.__name__.replace("_", "-")
        assert id not in self.faults, f"two mistakes are called {id}"
        mistake = " ".join(cleandoc(named.__doc__ or "").split())
        own = self.contract, id, INVENTED, kind, mistake, shortest, change
        fault = make_plain_fault(*own)
        self.faults[id] = replace(fault, operation=operation, nature=nature)
        return id


def find(faults: Mapping[str, Fault], name: str) -> Fault:
    """The fault whose factory has this name; raises AttributeError if there is none."""
    fault = faults.get(name.replace("_", "-"))
    if fault is None:
        raise AttributeError(f"there is no fault {name}; known: {', '.join(faults)}")
    return fault


def describe(faults: Iterable[Fault], place: str) -> list[Planted]:
    """The faults as they are planted in one of PLACES."""
    return [
        Planted(
            fault.id,
            fault.source,
            fault.contract,
            fault.kind,
            fault.mistake,
            fault.shortest,
            f"lockstep.impl.faults.{place}:{fault.id.replace('-', '_')}",
            fault.get_correct(place),
            fault.operation,
            fault.nature,
        )
        for fault in faults
    ]


def plant(fault: Fault, cache: Any, make_band: MakeBand) -> Any:
    """The cache in the form of the fault, with the mistake, which its clones have too."""
    if fault.form is not None:
        cache = fault.form.build(cache, make_band)
    return make_mistake(fault, cache, make_band)


def make_mistake(fault: Fault, cache: Any, make_band: MakeBand) -> Any:
    fault.change(cache, make_band)
    if fault.contract == "layer":  # the others have no clones
        clone = cache.clone
        cache.clone = lambda: make_mistake(fault, clone(), make_band)
    return cache


def declare(fault: Fault, backend: Backend, open_cache: Open) -> Backend:
    """The backend with the mistake in all caches of the fault's kind, which `open_cache`
    opens, and no others; those that may stand below them are as they were."""
    kind = backend.contracts[fault.contract][fault.kind]
    if fault.form is not None:
        backend = declare_form(fault.form, backend, open_cache)
        kind = backend.contracts[fault.contract][fault.kind]
    if fault.opening is not None:
        open_cache = fault.opening(open_cache)

    def open_either(config: Mapping[str, Any]) -> Any:
        is_other = config["kind"] != fault.kind
        return backend.open(config) if is_other else open_cache(config)

    return replace(
        backend,
        name=f"{backend.name}+{fault.id}",
        contracts={fault.contract: {fault.kind: kind}},
        open=open_either,
    )


def declare_form(form: Form, backend: Backend, open_cache: Open) -> Backend:
    """The backend with caches of the form, which `open_cache` opens, and no others."""
    kind = form.adapt(backend.contracts["layer"][form.kind])
    return replace(
        backend,
        name=f"{backend.name}+{form.id}",
        contracts={"layer": {form.kind: kind}},
        open=open_cache,
        tolerance=form.tolerance,
    )
