"""Finds and loads backends by name.

A name is an entry point of an installed package, in the group "lockstep.backends", or
"module:factory". A name "exec:COMMAND" starts a driver, and "http://HOST:PORT" connects
to a server. No other module imports backends, starts drivers or connects to servers. A
backend is imported when it is needed.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args

from lockstep.harness.backends.backend import (
    Alignment,
    Backend,
    Inputs,
    Kind,
    Lifetime,
    Planted,
    is_driver,
    is_server,
)
from lockstep.harness.backends.driver.backend import (
    load_driver,
    split_command,
)
from lockstep.harness.backends.driver.client import LIMITS, Limits
from lockstep.harness.backends.http.backend import load_server
from lockstep.harness.backends.http.client import parse_url
from lockstep.harness.backends.interface import Arrays
from lockstep.harness.backends.native import open_native
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.protocol import make_protocol
from lockstep.harness.core.document import check_field
from lockstep.harness.core.errors import (
    Broken,
    Unavailable,
    Unloadable,
    UsageError,
    format_raised,
)
from lockstep.harness.core.interrupts import is_from_user
from lockstep.harness.core.payload import UNIT, choose_levels, count_digits
from lockstep.harness.programs.condition import parse_duties
from lockstep.harness.workers.requirements import require_packages

GROUP = "lockstep.backends"

REFUSALS = dict.fromkeys(
    ["usage", *(error for contract in CONTRACTS.values() for error in contract.errors)]
)
"""The names in `Backend.errors`."""


def list_names() -> dict[str, str]:
    """Returns a map from each registered name to "module:factory", sorted by name."""
    entries = list_entries(tuple(sys.path))
    return {entry.name: f"{entry.module}:{entry.attr}" for entry in entries}


@cache
def list_entries(path: tuple[str, ...]) -> Sequence[EntryPoint]:
    """Lists the registered backends, sorted by name. The result is cached, because
    reading the metadata of all packages takes ten milliseconds.

    Args:
        path: the folders where Python looks for packages.
    """
    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


def find_entry(name: str) -> EntryPoint | None:
    """Returns the entry point of a backend; None if the name is not registered."""
    entries = list_entries(tuple(sys.path))
    return next((entry for entry in entries if entry.name == name), None)


def get_target(name: str) -> str:
    """Returns the "module:factory" of a name; for a driver or server, the name itself.

    Raises:
        UsageError: no backend has this name.
    """
    if is_driver(name):
        split_command(name)
        return name
    if is_server(name):
        parse_url(name)
        return name
    names = list_names()
    if name in names:
        return names[name]
    module, colon, factory = name.partition(":")
    if colon and module.replace(".", "_").isidentifier() and ":" not in factory:
        return name
    matches = get_close_matches(name, names)
    hint = (
        f"did you mean {', '.join(matches)}?"
        if matches
        else "`lockstep backends` lists them."
    )
    raise UsageError(
        f"--backend {name}: no backend has this name; {hint} For your own backend,"
        " write package.module:factory, exec:program if it is not in Python, or"
        " http://host:port for a server"
    )


def load(name: str, limits: Limits = LIMITS) -> Backend:
    """Imports the backend, or starts the driver, and checks its declaration.

    Raises:
        Unavailable: the backend needs a missing package, device or setting.
        Unloadable: the backend is broken.
        UsageError: no backend has this name.
    """
    entry = find_entry(name)
    if entry is not None:
        require_packages(entry, limits.unsupported)
    if is_server(name):
        backend, module = load_server(name, limits), ""
    elif is_driver(name):
        backend, module = start_driver(name, limits), ""
    else:
        backend, module = import_backend(name), get_target(name).partition(":")[0]
    with loading("checking its declaration", module):
        check_declaration(backend, module)
    return backend


@contextmanager
def loading(doing: str, module: str) -> Iterator[None]:
    """Converts exceptions of a backend's code to `Unavailable` or `Unloadable`.

    Args:
        doing: a description of the `with` body, for the message.
        module: the module of the backend; a missing module of the backend's package is
            `Unloadable`.

    Raises:
        Unavailable: a package is missing, or the backend raised this exception.
        Unloadable: the code raised another exception.
    """
    try:
        yield
    except (Unavailable, Unloadable):
        raise
    except ModuleNotFoundError as error:
        raise explain_missing(error, doing, module) from error
    except BaseException as error:
        if is_from_user(error):
            raise
        raise Unloadable(f"{doing} {format_raised(error)}") from error


def explain_missing(
    error: ModuleNotFoundError, doing: str, module: str
) -> Unavailable | Unloadable:
    """Returns `Unavailable` for a package that is not installed, and `Unloadable` for a
    missing module of the backend or of an installed package."""
    absent = error.name or ""
    package = absent.partition(".")[0]
    if absent and f"{module}.".startswith(f"{absent}."):
        if absent.endswith(".py"):
            hint = f"{absent.removesuffix('.py')}:FACTORY"
            return Unloadable(f"there is no module {absent}; write {hint}, without .py")
        return Unloadable(
            f"there is no module {absent} in the current folder or on PYTHONPATH; name"
            " its folder in python-path of [tool.lockstep]"
        )
    if not absent or is_importable(package):
        return Unloadable(f"{doing} {format_raised(error)}")
    return Unavailable(f"needs the package {package}: pip install {package}")


def is_importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # the module in sys.modules has no valid spec
        return True


def start_driver(name: str, limits: Limits) -> Backend:
    try:
        return load_driver(name, limits, make_protocol())
    except Broken as broken:
        raise Unloadable(str(broken)) from None
    except UsageError:
        raise
    except Exception as error:
        raise Unloadable(f"it refused to describe itself: {error}") from error


def import_backend(name: str) -> Backend:
    target = get_target(name)
    factory = import_function(target, "factory")
    with loading("its factory", target.partition(":")[0]):
        backend = factory()
    if not isinstance(backend, Backend):
        raise Unloadable(f"its factory returned {type(backend).__name__}, not a Backend")
    return replace(backend, open=open_native(backend.open))


def load_faults(target: str) -> list[Planted]:
    """Returns the planted faults that the function `target` of a backend lists."""
    function = import_function(target, "function")
    with loading(target, target.partition(":")[0]):
        faults = list(function())
    for planted in faults:
        if not isinstance(planted, Planted):
            raise Unloadable(f"{target} returned {planted!r}, not a Planted")
    return faults


def import_function(target: str, what: str) -> Callable[[], Any]:
    """Imports the function that "module:function" names."""
    module_name, _, function_name = target.partition(":")
    with loading(f"importing {module_name}", module_name):
        module = importlib.import_module(module_name)
    function = getattr(module, function_name, None)
    if function is not None and not callable(function):
        raise Unloadable(f"{target} is a {type(function).__name__}, not a function")
    if function is None:
        matches = get_close_matches(function_name, dir(module))
        hint = f"; did you mean {', '.join(matches)}?" if matches else ""
        raise Unloadable(f"{module_name} has no {what} {function_name}{hint}")
    return function  # type: ignore[no-any-return]


def check_declaration(backend: Backend, module: str) -> None:
    """Checks that the declared names exist and the operations are implemented."""
    for name, values in (("lifetime", Lifetime), ("causal", Alignment)):
        require(getattr(backend, name), dict.fromkeys(get_args(values)), name)
    if isinstance(backend.dtypes, str):
        raise Unloadable(f"declares dtypes as a str; give a tuple: {(backend.dtypes,)}")
    for dtype in backend.dtypes:
        require(dtype, UNIT, "dtype")
    if not backend.dtypes or not any(backend.contracts.values()):
        raise Unloadable("declares no kind, or no dtype")
    for contract_name, kinds in backend.contracts.items():
        require(contract_name, CONTRACTS, "contract")
        contract = CONTRACTS[contract_name]
        if backend.execute is None:
            if contract.interfaces:
                check_arrays(backend)
            check_errors(backend, contract, kinds)
        for kind, declared in kinds.items():
            require(kind, dict.fromkeys(contract.kinds), f"kind of {contract_name}")
            check_kind(kind, declared, contract)
            check_tolerance(backend.tolerance, kind, declared, contract)
            if backend.execute is None:
                check_operations(backend, module, contract_name, kind, declared)


def check_arrays(backend: Backend) -> None:
    """Checks that `arrays` has all methods of the interface."""
    names = [name for name in vars(Arrays) if not name.startswith("_")]
    missing = [
        name for name in names if not callable(getattr(backend.arrays, name, None))
    ]
    if missing:
        raise Unloadable(
            f"its `arrays` ({type(backend.arrays).__name__}) has no method"
            f" {', '.join(missing)}"
        )


def check_errors(backend: Backend, contract: Contract, kinds: Iterable[str]) -> None:
    """Checks that the backend declares an exception for every refusal of the contract."""
    needed = contract.list_errors(kinds)
    for name in [*needed, *backend.errors]:
        require(name, REFUSALS, "refusal")
        error = backend.errors.get(name)
        if not (isinstance(error, type) and issubclass(error, Exception)):
            raise Unloadable(
                f"declares {contract.name} kinds, but its `errors` has no exception"
                f' class for "{name}"'
            )
        if issubclass(Broken, error):
            raise Unloadable(
                f'its `errors` has {error.__name__} for "{name}", but every failure is'
                f" a {error.__name__}; give the class that it raises to refuse"
            )


def check_kind(kind: str, declared: Any, contract: Contract) -> None:
    """Checks the types and the names in the declaration of a kind."""
    if not isinstance(declared, Kind):
        raise Unloadable(f"declares {kind} as a {type(declared).__name__}, not a Kind")
    for name in ("operations", "tells"):
        names = getattr(declared, name)
        if not isinstance(names, frozenset | set):
            raise Unloadable(
                f"declares {kind} with {name} as a {type(names).__name__}; give a"
                " frozenset"
            )
    for operation in declared.operations:
        require(operation, contract.operations, f"operation of {contract.name}")
    held = declared.held
    if held is not None and not (isinstance(held, int | float) and held >= 1):
        raise Unloadable(
            f"declares {kind} with held={held!r}; held must be a factor of 1 or more"
        )
    require(declared.inputs, dict.fromkeys(get_args(Inputs)), f"inputs of {kind}")
    for name in sorted(declared.tells - frozenset(contract.tells)):
        known = ", ".join(contract.tells) or "nothing"
        raise Unloadable(
            f'declares {kind} with "{name}" in tells; {contract.name} caches can have'
            f" {known}"
        )
    for operation in contract.required:
        if operation not in declared.operations:
            raise Unloadable(f"declares {kind} without {operation}")
    for field, values in declared.config.items():
        require(field, contract.config, f"config field of {contract.name}")
        if not isinstance(values, tuple | list) or not values:
            raise Unloadable(
                f"declares {kind} with {field}: {values!r}; give a tuple of values"
            )
        for value in values:
            try:
                check_field(value, contract.config[field], f"declares {kind}: {field}")
            except UsageError as error:
                raise Unloadable(str(error)) from None
    try:
        parse_duties(declared, contract, kind)
    except UsageError as error:
        raise Unloadable(f"declares {error}") from None


def require(name: str, options: Mapping[str, Any], what: str) -> None:
    if name not in options:
        matches = get_close_matches(name, options) or list(options)
        raise Unloadable(
            f'declares "{name}", an unknown {what}; did you mean {", ".join(matches)}?'
        )


def check_tolerance(
    tolerance: float, kind: str, declared: Kind, contract: Contract
) -> None:
    """Checks that tokens stay distinguishable if their numbers are rounded."""
    if not tolerance:
        return
    try:
        digits = count_digits(choose_levels(tolerance))
    except ValueError as error:
        raise Unloadable(f"declares tolerance={tolerance!r}: {error}") from None
    for name in ("key_dim", "value_dim"):
        dims = declared.config.get(name, contract.choices.get(name, ()))
        small = [dim for dim in dims if 0 < dim < digits]
        if small and digits > count_digits():
            raise Unloadable(
                f"declares tolerance={tolerance:g}, and {kind} with {name} {small[0]},"
                f" but needs at least {digits} dimensions to distinguish tokens with"
                f" this tolerance; declare, for example, config {name}: [{2 * digits}]"
            )


def check_operations(
    backend: Backend, module: str, contract: str, kind: str, declared: Kind
) -> None:
    """Opens a cache, and checks that it has the methods of the declared operations."""
    rules = CONTRACTS[contract]
    config = rules.get_plain_config(kind, declared, backend.dtypes)
    with loading(f"opening a {kind} cache", module):
        try:
            cache = rules.open_cache(backend, config)
        except Broken as broken:
            raise Unloadable(f"opening a {kind} cache: {broken}") from None
    reported = rules.list_told(config, declared.tells)
    methods = [*rules.list_methods(kind, declared.operations), *reported]
    if declared.held is not None and rules.tells_memory:
        methods = [*methods, "held"]
    missing = [name for name in methods if not callable(getattr(cache, name, None))]
    if missing:
        raise Unloadable(
            f"declares {kind}, but its cache ({type(cache).__name__}) has no"
            f" method {', '.join(missing)}"
        )
    for name in methods:
        check_parameters(cache, name, getattr(rules.interfaces.get(kind), name, None))


def check_parameters(cache: Any, name: str, expected: Callable[..., Any] | None) -> None:
    """Checks that a method takes the arguments of the interface's method `expected`."""
    if expected is None:
        return
    parameters = [*inspect.signature(expected).parameters.values()][1:]
    needed = [item.name for item in parameters if item.default is item.empty]
    try:
        signature = inspect.signature(getattr(cache, name))
    except (TypeError, ValueError):  # native code may have no signature
        return
    try:
        signature.bind(*needed)
    except TypeError as error:
        raise Unloadable(
            f"its cache ({type(cache).__name__}) has {name}{signature}, which is called"
            f" as {name}({', '.join(needed)}): {error}"
        ) from None
