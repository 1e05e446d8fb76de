"""The settings of a project: `[tool.lockstep]` of pyproject.toml, and the environment."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from os.path import isfile
from pathlib import Path
from typing import Any

from lockstep.harness.contracts import KINDS
from lockstep.harness.core.document import read_text, show, suggest
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.settings import (
    PROFILES,
)
from lockstep.harness.workers.registry import get_target

FILE = "pyproject.toml"
TABLE = "[tool.lockstep]"

SEPARATORS = {"backends": ",", "kinds": ",", "python-path": os.pathsep}
"""Settings that are lists → what is between two items in an environment variable."""

NAMES = ("backends", "kinds", "profile", "failures", "python-path")


@dataclass(frozen=True)
class Project:
    """What a project has settled. Options of a command win over it.

    Attributes:
        backends: those that are checked where no other is named; a program file may name
            them, too.
        kinds: the same of kinds.
        profile: None if the project has no choice.
        failures: folder for failing programs.
        python_path: folders from which workers import backends.
        origins: setting → where it is settled, and its value, in words.
    """

    backends: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    profile: str | None = None
    failures: Path = Path("failures")
    python_path: tuple[Path, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)


def load_project() -> Project:
    """Reads the settings for the current folder; the environment wins over the file.

    Raises:
        UsageError: the file cannot be read, or a setting cannot be used.
    """
    path, table = find_table()
    found: dict[str, Any] = {}
    origins = {}
    for name in NAMES:
        variable = f"LOCKSTEP_{name.upper().replace('-', '_')}"
        text = os.environ.get(variable)
        if text:
            where, folder, origin = variable, Path(), variable
            parts = text.split(SEPARATORS.get(name, "\0"))
            value: Any = [part.strip() for part in parts if part.strip()]
            value = value if name in SEPARATORS else text
        elif name in table:
            where, folder, origin = f"{path}: {TABLE} {name}", path.parent, str(path)
            value = table[name]
        else:
            continue
        found[name.replace("-", "_")] = read_setting(name, value, where, folder)
        origins[name] = f"{show(value)} ({origin})"
    return Project(**found, origins=origins)


def find_table() -> tuple[Path, Mapping[str, Any]]:
    """The nearest pyproject.toml upwards that has our table, and the table."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the current folder is gone
        return Path(FILE), {}
    for folder in (here, *here.parents):
        path = Path(os.path.relpath(folder / FILE))
        if not isfile(path):
            continue
        try:
            tool = tomllib.loads(read_text(path)).get("tool")
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise UsageError(f"{path}: is not TOML: {error}") from None
        table = tool.get("lockstep") if isinstance(tool, dict) else None
        if table is not None:
            check_names(path, table)
            return path, table
    return Path(FILE), {}


def check_names(path: Path, table: Any) -> None:
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {TABLE} is {show(table)}, not a table")
    for name in table:
        if name not in NAMES:
            near = suggest(name, dict.fromkeys(NAMES))
            raise UsageError(f"{path}: {TABLE} has no setting {name}{near}")


def read_setting(name: str, value: Any, where: str, folder: Path) -> Any:
    """Returns a setting as `Project` has it.

    Args:
        name: of the setting.
        value: as it stands there.
        where: it stands, for messages.
        folder: relative paths begin there.
    """
    if name not in SEPARATORS:
        if not isinstance(value, str) or not value:
            raise UsageError(f"{where}: is {show(value)}, not a text")
        if name == "failures":
            return Path(os.path.normpath(folder / value))
        require(value, PROFILES, f"{where}: there is no profile {value}")
        return value
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UsageError(f"{where}: is {show(value)}, not a list of texts")
    if name == "python-path":
        for one in value:
            if not (folder / one).is_dir():
                raise UsageError(f"{where}: {folder / one} is not a folder")
        return tuple(folder / one for one in value)
    for one in value:
        check_name(one, name, where)
    return tuple(value)


def check_name(value: str, name: str, where: str) -> None:
    if name == "kinds":
        require(value, dict.fromkeys(KINDS), f"{where}: there is no kind {value}")
        return
    try:
        get_target(value)
    except UsageError as error:
        why = str(error).removeprefix(f"--backend {value}: ")
        raise UsageError(f"{where}: {value}: {why}") from None


def require(value: str, known: Mapping[str, Any], message: str) -> None:
    if value not in known:
        raise UsageError(message + suggest(value, known))


@contextmanager
def importing_from(folders: tuple[Path, ...]) -> Iterator[None]:
    """Lets processes that start in its body import from these folders first."""
    before = os.environ.get("PYTHONPATH")
    own = [str(folder.absolute()) for folder in folders]
    if own:
        os.environ["PYTHONPATH"] = os.pathsep.join([*own, *filter(None, [before])])
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before
