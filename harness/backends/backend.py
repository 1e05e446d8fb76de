"""What a backend declares; `harness.backends.interface` has what its caches look like.

A backend is found by name or as ``package.module:factory``. The factory takes no argument
and returns a `Backend`: a declaration of what is promised, the array functions of the
framework, and `open`, which makes one empty cache. What is declared is checked; what is
not declared is listed and left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lockstep.harness.backends.code import Code
from lockstep.harness.backends.interface import Array, Arrays

Alignment = Literal["lower-right", "upper-left"]
"""Where the diagonal of a mask called "causal" ends: in the last column or the first."""

Lifetime = Literal["forever", "until-write"]
"""How long a returned array keeps its content: it is a value, or it is a view that holds
until the next update, restore, trim or free of the cache that returned it."""


@dataclass(frozen=True)
class Kind:
    """What a backend promises for one kind of cache.

    operations: the operations of the contract that are implemented.
    config: for a config field, the values that are supported; a field that is not named
    takes any value that the contract draws.
    builds_on: the caches below are opened, watched and handed over by the harness (prefix
    contract).
    refuses: a call that breaks a rule of usage raises ValueError and changes nothing; so
    such calls are drawn, too.
    """

    operations: frozenset[str]
    config: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    builds_on: bool = False
    refuses: bool = False


@dataclass(frozen=True)
class Planted:
    """A mistake that was planted in a backend, to see that it is found.

    backend: with the mistake, as package.module:factory. correct: the same without it.
    source: where a real cache made it. shortest: operations of the shortest program known
    to show it.
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

    open: makes one empty cache from a complete config (all fields set, defaults filled
    in; see `harness.contracts.layer.model.CONFIG` and those of the other contracts).
    Kinds of different contracts have different names. A kind that builds on others finds
    them in config["caches"], opened: for session and trie one for each layer, None where
    a layer has none; for slots one unified cache. A kind that brings its own gets None,
    and the complete configs of what it must bring in config["below"].
    errors: the exceptions for "cache-full", "not-supported" and "shared" (unified), and
    "no-slot" (slots); a usage error is a ValueError.
    poison: `open` heeds config["poison"] and fills memory that holds no token with NaN.
    scope: what a program runs in, a context manager; torch without gradients, as engines
    run it.
    overwrite: fills an array that was handed to a cache with other numbers, in place, as
    a model does that reuses its buffers; a cache must not notice. None where arrays are
    values, or where a cache keeps its caller's arrays by design.
    tolerance: by how much a number may change in storage; 0 for everything that only
    moves data, more for quantized storage.
    ledger: the folder of its known divergences; see `harness.programs.ledger`.
    code: from a complete config, how a program of it is written in the framework's own
    API; see `harness.execution.snippet`.
    faults: "package.module:function", which returns the mistakes `Planted` in it.
    versions: package name to version, for failure files.
    execute: runs a program without the reference beside it, instead of the executor; see
    `harness.execution.executor.run` for its arguments. Nothing is opened then.
    share: of the programs that other backends run, it gets one in so many.
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
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    overwrite: Callable[[Array], Any] | None = None
    tolerance: float = 0.0
    ledger: Path | None = None
    code: Callable[[Mapping[str, Any]], Code] | None = None
    faults: str | None = None
    errors: Mapping[str, type[Exception]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""
    execute: Callable[..., Any] | None = None
    share: int = 1
