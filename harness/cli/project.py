"""Reads the settings of a project from `[tool.lockstep]` in pyproject.toml and from
the environment."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from os.path import isfile
from pathlib import Path
from stat import S_IWOTH
from typing import Any

from lockstep.harness.contracts import KINDS
from lockstep.harness.core.document import read_text, show, suggest
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.settings import PROFILES
from lockstep.harness.workers.registry import get_target

FILE = "pyproject.toml"
TABLE = "[tool.lockstep]"

NAMES = ("backends", "kinds", "profile", "failures", "python-path")

SEPARATORS = {"backends": ",", "kinds": ",", "python-path": os.pathsep}
"""Settings that are lists → the separator in their environment variables."""

CHOICES = {"kinds": dict.fromkeys(KINDS), "profile": PROFILES}


@dataclass(frozen=True)
class Project:
    """The settings of a project; a command's options override them.

    Attributes:
        backends: the backends that are checked by default, and that a program file may
            name.
        kinds: the kinds that are checked by default.
        profile: the default profile; None if the project sets none.
        failures: the folder for failing programs.
        python_path: the folders from which workers import backends.
        origins: setting → a description of its value and origin.
        ignored: a table of settings that is ignored, and the reason; None if there is no
            such table.
    """

    backends: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    profile: str | None = None
    failures: Path = Path("failures")
    python_path: tuple[Path, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    ignored: str | None = None


def load_project() -> Project:
    """Reads the settings for the current folder; the environment overrides the file.

    Raises:
        UsageError: the file cannot be read, or a setting is invalid.
    """
    path, table, ignored = find_table()
    settings: dict[str, Any] = {}
    origins = {}
    for name in NAMES:
        variable = f"LOCKSTEP_{name.upper().replace('-', '_')}"
        text, value = os.environ.get(variable), table.get(name)
        where, folder, origin = f"{path}: {TABLE} {name}", path.parent, str(path)
        if text:
            where, folder, origin = variable, Path(), variable
            items = map(str.strip, text.split(SEPARATORS.get(name, "\0")))
            value = list(filter(None, items)) if name in SEPARATORS else text
        if "\0" in str(value):
            raise UsageError(f"{where}: {show(value)} has a NUL character")
        if text or name in table:
            reader = read_list if name in SEPARATORS else read_text_setting
            settings[name.replace("-", "_")] = reader(name, value, where, folder)
            origins[name] = f"{show(value)} ({origin})"
    return Project(**settings, origins=origins, ignored=ignored)


def find_table() -> tuple[Path, Mapping[str, Any], str | None]:
    """Finds the nearest pyproject.toml, in this folder or a parent folder, that has the
    table `[tool.lockstep]`.

    Settings are commands to run. The search therefore ends at a folder that other users
    control, and at the root of a repository.

    Returns:
        The path; the table; and, if a table beyond the end of the search is ignored, the
        path of this table and the reason.
    """
    end: str | None = None
    try:
        folder = Path.cwd()
    except FileNotFoundError:  # the current folder is gone
        return Path(FILE), {}, None
    for parent in (folder, *folder.parents):
        path = Path(os.path.relpath(parent / FILE))
        end = end or why_distrusted(parent) or why_distrusted(path)
        try:
            table = read_table(path)
        except UsageError:
            if end is None:
                raise
            table = None
        if table is not None and end is not None:
            ignored = f"{path}: {TABLE} is not obeyed: {end}"
            return Path(FILE), {}, f"{ignored}; use options or LOCKSTEP_ variables"
        if table is not None:
            return path, table, None
        if end is None and (parent / ".git").exists():
            end = f"the search ends at the root of the repository, {parent}"
    return Path(FILE), {}, None


def why_distrusted(path: Path) -> str | None:
    """Returns why other users control a file or folder; None if they do not, or it does
    not exist. Root controls everything."""
    try:
        status = path.stat()
    except OSError:
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user (uid {status.st_uid})"
    return f"every user can write to {path}" if status.st_mode & S_IWOTH else None


def read_table(path: Path) -> Mapping[str, Any] | None:
    """Returns the table `[tool.lockstep]` of a file; None if the file or table does not
    exist."""
    if not isfile(path):
        return None
    try:
        tool = tomllib.loads(read_text(path)).get("tool")
    except (ValueError, RecursionError) as error:  # also a number of 5,000 digits
        raise UsageError(f"{path}: is not TOML: {error}") from None
    table = tool.get("lockstep") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{path}: {TABLE} is {show(table)}, not a table")
    for name in table or ():
        require(name, dict.fromkeys(NAMES), f"{path}: {TABLE} has no setting {name}")
    return table


def read_text_setting(name: str, value: Any, where: str, folder: Path) -> Path | str:
    """Reads a setting that is a text.

    Args:
        name: the name of the setting.
        value: the value of the setting, not validated yet.
        where: the origin of the setting, for messages.
        folder: the folder that relative paths refer to.
    """
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where}: is {show(value)}, not a text")
    if name == "failures":
        return Path(os.path.normpath(folder / value))
    require(value, CHOICES[name], f"{where}: there is no profile {value}")
    return value


def read_list(
    name: str, value: Any, where: str, folder: Path
) -> tuple[str, ...] | tuple[Path, ...]:
    """Reads a setting that is a list; see `read_text_setting`."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{where}: is {show(value)}, not a list of texts")
    for item in value:
        if name == "kinds":
            require(item, CHOICES[name], f"{where}: there is no kind {item}")
        elif name == "python-path" and not (folder / item).is_dir():
            raise UsageError(f"{where}: {folder / item} is not a folder")
        elif name == "backends":
            try:
                get_target(item)
            except UsageError as error:
                reason = str(error).removeprefix(f"--backend {item}: ")
                raise UsageError(f"{where}: {item}: {reason}") from None
    return tuple(folder / item for item in value) if name == "python-path" else (*value,)


def require(value: str, choices: Mapping[str, Any], message: str) -> None:
    if value not in choices:
        raise UsageError(message + suggest(value, choices))


@contextmanager
def importing_from(folders: tuple[Path, ...]) -> Iterator[None]:
    """Makes processes that start in the `with` body import from these folders first."""
    inherited = os.environ.get("PYTHONPATH")
    paths = [str(folder.absolute()) for folder in folders]
    if paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [inherited])])
    try:
        yield
    finally:
        if inherited is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = inherited
