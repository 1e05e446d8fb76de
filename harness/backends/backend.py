"""The declaration of a backend; `harness.backends.interface` defines its caches.

A backend is loaded by its registered name or as ``package.module:factory``. The factory
takes no arguments and returns a `Backend`, which has the declared promises, the array
functions of the framework, and `open`, which makes an empty cache. The harness checks all
declared promises, and lists the promises that it cannot check. A factory raises
`Unavailable` if this machine lacks a requirement, such as a package or a GPU; any other
exception means that the backend is broken.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lockstep.harness import __version__
from lockstep.harness.backends.interface import Array, Arrays
from lockstep.harness.core.errors import clean

# --- the declaration --------------------------------------------------------------------


Alignment = Literal["lower-right", "upper-left"]
"""The alignment of the mask "causal": the diagonal ends in the last column, or begins
in the first column."""

Lifetime = Literal["forever", "until-write"]
"""How long a returned array keeps its content: forever (a value), or until the next
update, restore, trim or free of the cache that returned it (a view)."""


Inputs = Literal["copied", "kept"]
"""Whether a cache copies the arrays that are passed in, or keeps them; see
`Kind.inputs`."""

Scope = Callable[[], AbstractContextManager[Any]]
"""Makes the context manager in which a program runs."""

REFERENCE_NAME = "reference"
"""The name of the reference as a backend."""

DRIVER_PREFIX = "exec:"
SERVER_PREFIXES = ("http://", "https://")


def is_driver(name: str) -> bool:
    """Returns whether the name of a backend names a driver."""
    return name.startswith(DRIVER_PREFIX)


def is_server(name: str) -> bool:
    """Returns whether the name of a backend names a server."""
    return name.startswith(SERVER_PREFIXES)


@dataclass(frozen=True)
class Duty:
    """A duty: a precondition that callers of a cache must meet.

    No program makes a call that breaks a duty, and reports list the rule as not checked.

    Attributes:
        when: a condition that describes the forbidden calls, as in a ledger entry; see
            `harness/programs/README.md`.
        rule: a description of the forbidden calls, and the location where the authors of
            the cache document the duty.
    """

    when: Mapping[str, Any]
    rule: str


@dataclass(frozen=True)
class Kind:
    """The promise of a backend for one kind of cache.

    Attributes:
        operations: the implemented operations of the contract.
        config: config field → the values that are supported. A field that is not named
            takes any value that the contract draws.
        builds_on: (prefix contract) the harness opens and watches the underlying caches,
            and passes them in.
        refuses: if True, an invalid call raises the "usage" error and changes nothing,
            and programs make invalid calls. If False, programs make none.
        inputs: "copied", or "kept" if the cache keeps or returns the arrays that are
            passed in, because callers in its framework never write to these arrays
            afterwards. If "kept", the harness does not check these arrays.
        held: `LayerCache.held` is at most this many times the bytes of the contents; see
            `harness.contracts.memory`. None if the caches have no `held`. For a prefix
            kind, it concerns the underlying caches.
        atomic: (unified contract) a `remove` that is refused changes nothing. If this is
            False, the next operation of every program clears the sequence.
        duties: calls that the authors of the cache forbid to its callers.
        tells: (paged contract) the optional methods and promises that the cache has,
            which are then checked; names in `harness.backends.paged.TELLS`.
    """

    operations: frozenset[str]
    config: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    builds_on: bool = False
    refuses: bool = False
    inputs: Inputs = "copied"
    held: float | None = None
    atomic: bool = True
    duties: tuple[Duty, ...] = ()
    tells: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Planted:
    """A mistake that is planted in a backend to test the check.

    Attributes:
        id: the name of the mistake.
        source: the location of the mistake in a real cache.
        contract: the contract that the mistake violates.
        kind: the kind of cache with the mistake.
        mistake: a description of the mistake.
        shortest: the number of operations in the shortest known program that shows the
            mistake; None if it is unknown.
        backend: the backend with the mistake, as "package.module:factory".
        correct: the same backend without the mistake.
    """

    id: str
    source: str
    contract: str
    kind: str
    mistake: str
    shortest: int | None = None
    backend: str = ""
    correct: str = ""

    def __post_init__(self) -> None:
        if not self.backend or not self.correct:
            raise TypeError(f"Planted {self.id}: names no backend, or no correct one")


@dataclass(frozen=True)
class Backend:
    """The declaration of an implementation on a device.

    Attributes:
        name: the name of the backend in reports.
        device: the device, for reports.
        contracts: contract → kind → its declaration. Kinds of different contracts have
            different names.
        arrays: the array functions of the framework; `NO_ARRAYS` of
            `harness.backends.engine` for an engine.
        open: makes an empty cache from a complete config, in which every field is set,
            see `CONFIG` of each contract. For a kind with `builds_on`, config["caches"]
            has the open underlying caches: for session and trie the cache of each layer
            (None for a layer without a cache), for slots a unified cache. For other
            prefix kinds, config["caches"] is None, and config["below"] has the complete
            configs of the underlying caches.
        dtypes: the dtypes that the caches can store.
        lifetime: how long a returned array keeps its content.
        causal: how a mask "causal" is aligned.
        poison: `open` fills unused memory with NaN if config["poison"] is True.
        scope: a context manager in which a program runs, such as torch.no_grad. If
            several backends run the program side by side, each step of this backend runs
            in it.
        scopes: alternative scopes with the same answers, for the values 1, 2, … of the
            config field "scope". Only values that a kind declares are drawn.
        overwrite: fills an array with other numbers in place, like a model that reuses
            its buffers. After each call, the harness overwrites the arrays that it passed
            in, unless `Kind.inputs` is "kept"; the cache must not be affected. None if
            the framework cannot write to arrays.
        tolerance: (layer caches) the largest absolute error of a stored number of K or V,
            which lie between -1 and 1; 0 if storage only moves data, 1/254 for int8 with
            one scale. Reports show the used share.
        ledger: the folder of the known divergences; see `harness/programs/README.md`.
        code: the packages from which failure scripts copy the code that they use, so that
            the scripts need no package except the framework.
        faults: "package.module:function"; the function returns the mistakes that are
            planted in the backend (`Planted`).
        errors: the exceptions for "usage" (an invalid call; default: ValueError), for
            "cache-full", "not-supported" and "shared" (unified), and for "no-slot"
            (slots). Any other exception is an error of the backend. Use an exception
            class of your own, so that an exception of the framework does not count as a
            refusal.
        versions: package → version, for failure files.
        notes: free text for readers.
        execute: runs a program instead of the executor and the reference, with the
            arguments of `harness.execution.executor.run`; `open` is not called.
        share: the backend runs 1/`share` of the programs that other backends run.
        follow: for a backend in another process: called with False after each step, and
            with True when the caches of a program are dropped. Raises `Broken` if the
            process has ended.
        is_fatal: returns whether an exception, such as an illegal access on CUDA, makes
            the process unusable. The program then counts as a crash, and the next program
            runs in a new process.
        beside: other backends that run each program together with this one, in one
            process, by name. Only the harness sets it.
    """

    name: str
    device: str
    contracts: Mapping[str, Mapping[str, Kind]]
    arrays: Arrays
    open: Callable[[Mapping[str, Any]], Any]
    dtypes: tuple[str, ...] = ("float32",)
    lifetime: Lifetime = "until-write"
    causal: Alignment = "lower-right"
    poison: bool = False
    scope: Scope = nullcontext
    scopes: tuple[Scope, ...] = ()
    overwrite: Callable[[Array], Any] | None = None
    tolerance: float = 0.0
    ledger: Path | str | None = None
    code: tuple[str, ...] = ()
    faults: str | None = None
    errors: Mapping[str, type[Exception]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""
    execute: Callable[..., Any] | None = None
    share: int = 1
    follow: Callable[[bool], None] = lambda is_over: None
    is_fatal: Callable[[Exception], bool] = lambda error: False
    beside: Mapping[str, Backend] = field(default_factory=dict)

    def get_scope(self, number: int) -> Scope:
        """Returns the scope of a program by its number: 0 for `scope`, then `scopes`."""
        return (self.scope, *self.scopes)[number if number <= len(self.scopes) else 0]


def list_unchecked(backend: Backend, declared: Kind) -> list[str]:
    """Lists descriptions of the promises of a kind that the harness cannot check."""
    if backend.execute is not None:
        return []
    if backend.arrays is None:
        return [duty.rule for duty in declared.duties]
    unchecked = []
    if declared.inputs == "kept":
        unchecked.append("inputs kept")
    elif backend.overwrite is None:
        unchecked.append("inputs, since overwrite is not declared")
    if declared.held is None:
        unchecked.append("memory held")
    if not declared.atomic:
        unchecked.append("after a refused remove")
    return unchecked + [duty.rule for duty in declared.duties]


# --- versions, device and platform: where a failure was found, and where it is replayed -


# Only these packages are compared: a file is untrusted, and may name too many packages.
MOST_VERSIONS = 8


def get_environment(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the versions, device and platform for the `meta` of a failure.

    Args:
        declared: a worker's event with the versions and the device of the backend.
    """
    versions = {"python": platform.python_version(), "kv-lockstep": __version__}
    return {
        "versions": {**declared["versions"], **versions},
        "device": declared["device"],
        "platform": f"{platform.system()} {platform.machine()}",
    }


def compare_environments(
    meta: Mapping[str, Any], backend: str, here: Mapping[str, Any]
) -> str | None:
    """Describes how this environment differs from the environment of a failure.

    Args:
        meta: the `meta` of the failure.
        backend: the name of the backend that runs here.
        here: this environment; see `get_environment`.

    Returns:
        The description, or None if the failure's file does not name its environment.
    """
    if not isinstance(meta.get("versions"), Mapping):
        return None
    pairs = list(list_pairs(meta, {"backend": backend, **here}))
    if not pairs:
        return "found with the same versions on the same device"
    found, now = map(", ".join, zip(*pairs, strict=True))
    return f"found with {found}; here with {now}"


def list_pairs(
    found: Mapping[str, Any], here: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yields descriptions of each difference: (in the failure's environment, here).

    Fields that the failure's file does not have are not compared.
    """
    versions = [
        (clean(name), clean(version))
        for name, version in found["versions"].items()
        if isinstance(version, str)
    ]
    for name, version in versions[:MOST_VERSIONS]:
        now = here["versions"].get(name)
        if now != version:
            yield f"{name} {version}", f"{name} {now}" if now else f"no {name}"
    for name in ("device", "platform", "backend"):
        said = found.get(name)
        if isinstance(said, str) and said != here[name]:
            yield f"{name} {clean(said)}", f"{name} {here[name]}"
