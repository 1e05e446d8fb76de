"""Backends by name: the registered ones, and how a name becomes a declaration.

Names come from the entry points of installed packages, in the group "lockstep.backends";
"exec:" and a command is a driver of its own. This is the only module that imports the
module of a backend or starts a driver, and only when that backend is asked for.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args

from lockstep.harness.backends.backend import Alignment, Backend, Kind, Lifetime, Planted
from lockstep.harness.backends.driver.backend import (
    is_driver,
    list_files,
    load_driver,
    split_command,
)
from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.backends.native import open_native
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.core.document import check_field
from lockstep.harness.core.errors import Broken, Unavailable, UsageError, format_error
from lockstep.harness.core.payload import UNIT

GROUP = "lockstep.backends"

REFUSALS = dict.fromkeys(
    ["usage", *(error for contract in CONTRACTS.values() for error in contract.errors)]
)
"""The names in `Backend.errors`."""

LIMITS = Limits()

INSTALL = {
    "torch": "pip install 'kv-lockstep[torch]'",
    "mlx": "pip install 'kv-lockstep[mlx]'",
    "mlx_lm": "pip install 'kv-lockstep[peers]'",
    "transformers": "pip install 'kv-lockstep[peers]'",
}


def list_names() -> dict[str, str]:
    """Registered name → "module:factory", in the order of names."""
    found = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    return dict(sorted(found.items()))


def get_target(name: str) -> str:
    """The "module:factory" that a name stands for; the name itself if it is a driver's.

    Raises:
        UsageError: no backend has this name.
    """
    if is_driver(name):
        split_command(name)
        return name
    names = list_names()
    if name in names:
        return names[name]
    module, colon, factory = name.partition(":")
    if colon and module.replace(".", "_").isidentifier() and ":" not in factory:
        return name
    near = get_close_matches(name, names)
    hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(names)}."
    raise UsageError(
        f"--backend {name}: no backend has this name; {hint} One of your own is given as"
        " package.module:factory, or as exec:program if it is no Python"
    )


def load(name: str, limits: Limits = LIMITS) -> Backend:
    """Imports the backend, or starts the driver, and checks its declaration.

    Raises:
        Unavailable: it cannot be used here; the message says what to do.
    """
    backend = start_driver(name, limits) if is_driver(name) else import_backend(name)
    check_declaration(backend)
    return backend


def start_driver(name: str, limits: Limits) -> Backend:
    try:
        return load_driver(name, limits)
    except Broken as broken:
        raise Unavailable(str(broken)) from None
    except UsageError:
        raise
    except Exception as error:
        raise Unavailable(f"it refused to say what it has: {error}") from error


def import_backend(name: str) -> Backend:
    factory = import_function(get_target(name), "factory")
    try:
        backend = factory()
    except Exception as error:
        raise Unavailable(f"its factory raised {format_error(error)}") from error
    if not isinstance(backend, Backend):
        raise Unavailable(f"its factory returned {type(backend).__name__}, not a Backend")
    return replace(backend, open=open_native(backend.open))


def load_faults(target: str) -> list[Planted]:
    """The mistakes that the function `target` of a backend lists."""
    faults = list(import_function(target, "function")())
    for planted in faults:
        if not isinstance(planted, Planted):
            raise Unavailable(f"{target} returned {planted!r}, not a Planted")
    return faults


def import_function(target: str, what: str) -> Callable[[], Any]:
    """The function that "module:function" names."""
    module_name, _, function_name = target.partition(":")
    module = import_module(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        near = get_close_matches(function_name, dir(module))
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise Unavailable(f"{module_name} has no {what} {function_name}{hint}")
    return function  # type: ignore[no-any-return]


def import_module(module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        absent = error.name or ""
        missing = absent.partition(".")[0]
        if absent and f"{module_name}.".startswith(f"{absent}."):
            raise Unavailable(
                f"there is no module {absent}; is its folder on PYTHONPATH?"
            ) from error
        install = INSTALL.get(missing, f"pip install {missing}")
        if missing != absent and importlib.util.find_spec(missing):
            raise Unavailable(
                f"the {missing} that is installed has no {absent}; it takes another"
                f" version: {install} --upgrade"
            ) from error
        raise Unavailable(f"needs the package {missing}: {install}") from error
    except Exception as error:
        raise Unavailable(
            f"importing {module_name} raised {format_error(error)}"
        ) from error


def check_declaration(backend: Backend) -> None:
    """Requires that all declared names exist, and that every operation is implemented."""
    for name, values in (("lifetime", Lifetime), ("causal", Alignment)):
        require(getattr(backend, name), dict.fromkeys(get_args(values)), name)
    for dtype in backend.dtypes:
        require(dtype, UNIT, "dtype")
    if not backend.dtypes or not any(backend.contracts.values()):
        raise Unavailable("declares no kind, or no dtype")
    for contract_name, kinds in backend.contracts.items():
        require(contract_name, CONTRACTS, "contract")
        contract = CONTRACTS[contract_name]
        if backend.execute is None:
            check_errors(backend, contract, kinds)
        for kind, declared in kinds.items():
            require(kind, dict.fromkeys(contract.kinds), f"kind of {contract_name}")
            check_kind(kind, declared, contract)
            for operation in declared.operations:
                require(operation, contract.operations, f"operation of {contract_name}")
            if backend.execute is None:
                check_operations(backend, contract_name, kind, declared)


def check_errors(backend: Backend, contract: Contract, kinds: Iterable[str]) -> None:
    """Requires an exception for everything that the contract lets a cache refuse."""
    needed = contract.list_errors(kinds)
    for name in [*needed, *backend.errors]:
        require(name, REFUSALS, "refusal")
        error = backend.errors.get(name)
        if not (isinstance(error, type) and issubclass(error, Exception)):
            raise Unavailable(
                f"declares {contract.name} kinds, but its errors name no exception class"
                f' for "{name}"'
            )
        if issubclass(Broken, error):
            raise Unavailable(
                f'its errors name {error.__name__} for "{name}", which any failure is;'
                " name the class that it raises to refuse"
            )


def check_kind(kind: str, declared: Any, contract: Contract) -> None:
    """Requires that the declaration of a kind has the right types."""
    if not isinstance(declared, Kind):
        raise Unavailable(f"declares {kind} as a {type(declared).__name__}, not a Kind")
    for operation in contract.required:
        if operation not in declared.operations:
            raise Unavailable(f"declares {kind} without {operation}")
    for field, values in declared.config.items():
        require(field, contract.config, f"config field of {contract.name}")
        if not isinstance(values, tuple | list) or not values:
            raise Unavailable(
                f"declares {kind} with {field}: {values!r}, not a tuple of values"
            )
        for value in values:
            try:
                check_field(value, contract.config[field], f"declares {kind}: {field}")
            except UsageError as error:
                raise Unavailable(str(error)) from None


def require(name: str, options: Mapping[str, Any], what: str) -> None:
    if name not in options:
        near = get_close_matches(name, options) or list(options)
        raise Unavailable(
            f'declares "{name}", which is no {what}; did you mean {", ".join(near)}?'
        )


def check_operations(backend: Backend, contract: str, kind: str, declared: Kind) -> None:
    """Opens one cache, and requires its declared operations."""
    rules = CONTRACTS[contract]
    config = rules.get_plain_config(kind, declared, backend.dtypes)
    try:
        cache = rules.open_cache(backend, config)
    except Broken as broken:
        raise Unavailable(f"opening a {kind} cache: {broken}") from None
    except Exception as error:
        raise Unavailable(
            f"opening a {kind} cache raised {format_error(error)}"
        ) from error
    methods = rules.list_methods(kind, declared.operations)
    missing = [name for name in methods if not callable(getattr(cache, name, None))]
    if missing:
        raise Unavailable(
            f"declares {kind}, but its cache ({type(cache).__name__}) has no"
            f" method {', '.join(missing)}"
        )


def hash_code(target: str) -> str:
    """A digest of the Python files of a backend, the reference and the harness.

    Args:
        target: "module:factory"; of a driver, the files that its command names count.
    """
    files: list[Path] = []
    names = ["lockstep.harness", "lockstep.reference"]
    if is_driver(target):
        files += list_files(target)
    else:
        package = target.partition(":")[0].partition(".")[0]
        names.append("lockstep.impl" if package == "lockstep" else package)
    for name in names:
        spec = importlib.util.find_spec(name)
        for folder in (spec and spec.submodule_search_locations) or ():
            files += Path(folder).rglob("*.py")
        if spec and spec.origin and Path(spec.origin).is_file():
            files.append(Path(spec.origin))
    digest = hashlib.sha256()
    for file in sorted(set(files)):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
