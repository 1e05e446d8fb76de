"""The declaration of a backend; `harness.backends.interface` defines its caches.

A backend is found by name or as ``package.module:factory``. The factory takes no argument
and returns a `Backend`: a declaration of what is promised, the array functions of the
framework, and `open`, which makes one empty cache. The harness checks what is declared,
and lists what is not. A factory raises `Unavailable` if this machine does not have what
it needs; any other exception means that it is broken.
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
"""Where the diagonal of a mask called "causal" ends: in the last column or the first."""

Lifetime = Literal["forever", "until-write"]
"""How long a returned array keeps its content: forever (a value), or until the next
update, restore, trim or free of the cache that returned it (a view)."""


Inputs = Literal["copied", "kept"]
"""What a cache does with arrays that it is given."""

Scope = Callable[[], AbstractContextManager[Any]]
"""Makes what a program runs in."""

REFERENCE_NAME = "reference"
"""The name of the reference as a backend."""

DRIVER_PREFIX = "exec:"


def is_driver(name: str) -> bool:
    """Says whether the name of a backend is that of a driver."""
    return name.startswith(DRIVER_PREFIX)


@dataclass(frozen=True)
class Duty:
    """A duty of the callers of a cache: calls that they must not make.

    No program makes such a call, and reports list the rule as not checked.

    Attributes:
        when: describes the calls, in the vocabulary of the ledger; see
            `harness/programs/README.md`.
        rule: the calls in words, and where the makers of the cache document the duty.
    """

    when: Mapping[str, Any]
    rule: str


@dataclass(frozen=True)
class Kind:
    """The promise of a backend for one kind of cache.

    Attributes:
        operations: the operations of the contract that are implemented.
        config: config field → the values that are supported. A field that is not named
            takes any value that the contract draws.
        builds_on: (prefix contract) the harness opens the caches below, watches them and
            hands them over.
        refuses: a call that breaks a rule of usage raises the "usage" error and changes
            nothing. Such calls are drawn only if this is True.
        inputs: "copied", or "kept" if the cache keeps or returns arrays that it was
            given, in place of copies, since the callers of its framework never write to
            them afterwards. Then nothing is checked about them.
        held: the caches tell what they hold (`LayerCache.held`), which is never more than
            this many times what their contents need; see `harness.contracts.memory`. None
            if they do not tell. Of a prefix kind, it is about the caches below.
        atomic: (unified contract) a `remove` that is refused changes nothing. If this is
            False, the next operation of every program clears the sequence.
        duties: calls that the makers of the cache leave to its callers to avoid.
        tells: (paged contract) what the cache tells beside its tables, and what is
            checked then: names of `harness.backends.paged.TELLS`.
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
    """A mistake that was planted in a backend, to see that it is found.

    Attributes:
        id: its name.
        source: where a real cache made the mistake.
        contract: the contract that it breaks.
        kind: the kind of cache that makes it.
        mistake: the mistake, in words.
        shortest: operations of the shortest program known to show it.
        backend: the backend with the mistake, as "package.module:factory".
        correct: the same backend without it.
    """

    id: str
    source: str
    contract: str
    kind: str
    mistake: str
    shortest: int
    backend: str
    correct: str


@dataclass(frozen=True)
class Backend:
    """One implementation on one device, as it declares itself.

    Attributes:
        name: what reports call it.
        device: the device, for reports.
        contracts: contract → kind → what is promised for it. Kinds of different contracts
            have different names.
        arrays: the array functions of the framework.
        open: makes one empty cache from a complete config: every field is set, see
            `CONFIG` of each contract. A kind that builds on others finds them opened in
            config["caches"]: for session and trie one for each layer (None where a layer
            has none), for slots one unified cache. A prefix kind that brings its own gets
            None there, and in config["below"] the complete configs of what it must bring.
        dtypes: the dtypes that its caches store.
        lifetime: how long a returned array keeps its content.
        causal: how a mask "causal" is aligned.
        poison: `open` heeds config["poison"] and fills unused memory with NaN.
        scope: a context manager that a program runs in, such as torch.no_grad; where
            other backends run the program beside this one, each of its steps.
        scopes: others that it may run in, with the same answers: those of the numbers 1,
            2, … of the config field "scope". Only numbers that a kind declares are drawn.
        overwrite: fills an array with other numbers, in place, as a model does that uses
            its buffers again. After each call the arrays that a cache was given are
            overwritten, unless `Kind.inputs` is "kept"; the cache must not notice. None
            if that cannot be done in the framework.
        tolerance: the largest absolute error of one stored number of K or V, where all
            numbers lie between -1 and 1; 0 if storage only moves data. Of int8 with one
            scale it is 1/254. For layer caches; reports show the share that was used.
        ledger: the folder of its known divergences; see `harness/programs/README.md`.
        code: packages of which scripts of its failures have copies, as far as they use
            them, in place of imports: then they need the framework alone.
        faults: "package.module:function" that returns the mistakes `Planted` in it.
        errors: the exceptions for "usage" (a call that breaks a rule of usage; without
            an entry, ValueError), for "cache-full", "not-supported" and "shared"
            (unified) and for "no-slot" (slots). Any other exception is an error of the
            backend, so a class of its own tells its refusals from a framework's.
        versions: package → version, for failure files.
        notes: for people.
        execute: runs a program in place of the executor, without the reference beside
            it; its arguments are those of `harness.execution.executor.run`. Nothing is
            opened then.
        share: it gets one of this many programs that other backends run.
        follow: for a backend that is a process of its own: is called after each step with
            False, and with True when the caches of a program are gone. Raises `Broken` if
            the process has ended.
        is_fatal: whether an exception means that nothing more can run in this process,
            such as an illegal access on CUDA. The program counts as one that ends its
            process, and the next one gets a new process.
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

    def get_scope(self, number: int) -> Scope:
        """Returns the scope of a program; its own only, if it has none of this number."""
        return (self.scope, *self.scopes)[number if number <= len(self.scopes) else 0]


def list_unchecked(backend: Backend, declared: Kind) -> list[str]:
    """Lists, in words, the promises of a kind that its declaration leaves unchecked."""
    if backend.execute is not None:
        return []
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


# Packages that are compared: a file is other people's data, and may name too many.
MOST_VERSIONS = 8


def get_environment(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Versions, device and platform, for the `meta` of a failure.

    Args:
        declared: a worker's event with the versions and the device of the backend.
    """
    own = {"python": platform.python_version(), "kv-lockstep": __version__}
    return {
        "versions": {**declared["versions"], **own},
        "device": declared["device"],
        "platform": f"{platform.system()} {platform.machine()}",
    }


def compare_environments(
    meta: Mapping[str, Any], backend: str, here: Mapping[str, Any]
) -> str | None:
    """Words for the differences between this place and the one of a failure.

    Args:
        meta: of the failure.
        backend: the backend that runs here.
        here: see `get_environment`.

    Returns:
        None if the failure's file does not say where it was found.
    """
    if not isinstance(meta.get("versions"), Mapping):
        return None
    pairs = list(list_pairs(meta, {"backend": backend, **here}))
    found, now = ([words[side] for words in pairs] for side in (0, 1))
    if not pairs:
        return "found with the same versions on the same device"
    return f"found with {', '.join(found)}; here with {', '.join(now)}"


def list_pairs(
    found: Mapping[str, Any], here: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Differences, in words for either side. Only what the file names is compared."""
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
