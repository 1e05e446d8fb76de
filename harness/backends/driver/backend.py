"""Makes a backend from a driver, whose name is "exec:program arguments"."""

from __future__ import annotations

import os
import shlex
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import DRIVER_PREFIX, Backend, Duty, Kind
from lockstep.harness.backends.driver.client import Driver, Limits
from lockstep.harness.backends.driver.decoding import Malformed, Tensor, WireArrays, parse
from lockstep.harness.backends.driver.messages import (
    REFUSALS,
    Declared,
    Hello,
    Protocol,
)
from lockstep.harness.backends.driver.proxy import open_cache
from lockstep.harness.core.errors import UsageError

# --- the declaration of a driver --------------------------------------------------------


def make_backend(hello: Hello, driver: Driver) -> Backend:
    """Makes a `Backend` from the declaration of a driver.

    `harness.workers.registry` checks that the declared kinds, operations and config
    fields exist, as for every backend.

    Raises:
        Malformed: the declaration is invalid.
    """
    return Backend(
        name=hello.name,
        device=hello.device,
        contracts={
            contract: {
                kind: make_kind(declared, f"the {contract} kind {kind}")
                for kind, declared in kinds.items()
            }
            for contract, kinds in hello.contracts.items()
        },
        arrays=WireArrays(hello.causal),
        open=partial(open_cache, driver),
        follow=driver.follow,
        dtypes=hello.dtypes,
        lifetime="forever",  # data from a pipe is a copy
        causal=hello.causal,
        poison=hello.poison,
        overwrite=leave,
        tolerance=hello.tolerance,
        ledger=Path(hello.ledger) if hello.ledger else None,
        errors=REFUSALS,
        versions={hello.name: hello.version} if hello.version else {},
        notes=hello.notes or "",
    )


IN_PYTHON = ("at_once", "scope")
"""Config fields that have no meaning for a driver: the protocol has no `put_all`, and
a scope is a context manager in this process."""


def leave(array: Tensor) -> None:
    """Implements `Backend.overwrite`. Does nothing, because a driver gets a copy of the
    array."""


def make_kind(document: Any, location: str) -> Kind:
    declared = parse(document, Declared, location, strict=True)
    config = {
        field: tuple(values) if isinstance(values, list) else values
        for field, values in declared.config.items()
        if field not in IN_PYTHON
    }
    duties = tuple([Duty(duty.when, duty.rule) for duty in declared.duties])
    names = ("refuses", "atomic", "tells")
    promises = {name: getattr(declared, name) for name in names}
    return Kind(declared.operations, config, duties=duties, **promises)


# --- by name ----------------------------------------------------------------------------


def split_command(name: str) -> list[str]:
    """Splits a driver's name into the program and its arguments, without a shell.

    Raises:
        UsageError: the command is invalid, or the program does not exist.
    """
    text = name.removeprefix(DRIVER_PREFIX)
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--backend {name}: {str(error).lower()}") from None
    if not command:
        raise UsageError(
            f"--backend {name}: no program is named; write exec:./my-driver, followed"
            " by its arguments"
        )
    program, *arguments = command
    located = shutil.which(program, path=f".{os.pathsep}{os.environ.get('PATH', '')}")
    if located is None:
        path = Path(program)
        if path.is_file():
            problem = (
                f"cannot be executed; chmod +x {program}, or name the program that runs"
                " it first, as in exec:python3 driver.py"
            )
        elif path.is_dir():
            problem = "is a folder; name a program in it"
        else:
            problem = f"is neither in the current folder, {Path.cwd()}, nor on PATH"
        raise UsageError(f"--backend {name}: {program} {problem}")
    return [str(Path(located).absolute()), *arguments]


def load_driver(name: str, limits: Limits, protocol: Protocol) -> Backend:
    """Starts a driver, and makes a `Backend` from its declaration.

    Raises:
        Broken: the driver misbehaves.
        UsageError: the command is invalid.
    """
    driver = Driver(split_command(name), limits, protocol)
    hello = driver.start()
    try:
        return make_backend(hello, driver)
    except Malformed as malformed:
        driver.reject(malformed)


def get_driver(backend: Backend) -> Driver:
    """Returns the driver of a backend that `make_backend` has made."""
    assert isinstance(backend.open, partial)
    driver: Driver = backend.open.args[0]
    return driver
