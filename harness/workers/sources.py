"""Lists the source files of a backend, which `lockstep watch` watches."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from lockstep.harness.backends.backend import is_driver, is_server
from lockstep.harness.backends.driver.backend import list_files
from lockstep.harness.workers.registry import get_target

NOT_WATCHED = ("lockstep.harness", "lockstep.reference")
"""Modules of the harness and the reference, which the user does not edit."""

INSTALLED = {"site-packages", "dist-packages"}


def list_sources(name: str) -> list[Path]:
    """Lists the imported files of a backend, except files of installed packages and of
    Python; for a driver, the files in its command; for a server, none."""
    if is_driver(name):
        return list(list_files(name))
    if is_server(name):
        return []
    files = set(find_module(name))
    for module_name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not module_name.startswith(NOT_WATCHED):
            files |= {Path(file)} if is_own(Path(file)) else set()
    return sorted(files)


def is_own(file: Path) -> bool:
    standard = Path(sysconfig.get_paths()["stdlib"])
    return INSTALLED.isdisjoint(file.parts) and not file.is_relative_to(standard)


def find_module(name: str) -> Iterator[Path]:
    """Yields the file of a backend's module, if it exists. Does not import the module,
    because it may be broken."""
    parts = get_target(name).partition(":")[0].split(".")
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for folder in (*given, *sys.path, "."):
        path = Path(folder or ".").joinpath(*parts)
        for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            if file.is_file() and is_own(file.absolute()):
                yield file.absolute()
                return
