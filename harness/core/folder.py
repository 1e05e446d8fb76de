"""Files in a folder: on this machine, or in a store that fsspec knows.

Files are written whole. Where several may write one file, the first writer wins.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from secrets import token_hex
from typing import Any

from lockstep.harness.core.document import MAX_BYTES, check_size, read_bytes, walk_files
from lockstep.harness.core.errors import UsageError, format_error

MOST_AT_ONCE = 200
"""Files of a store that are read or written together."""


class Folder(ABC):
    """A folder of files with names such as ``shards/x.json``.

    Attributes:
        place: as the user wrote it.
    """

    place: str

    @property
    @abstractmethod
    def path(self) -> PurePath:
        """For messages, and to make paths of files."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none.

        Raises:
            UsageError: it cannot be read, or is too large.
        """

    @abstractmethod
    def put(self, name: str, content: bytes) -> bool:
        """Writes a file, unless there is one; says whether it did. Raises OSError."""

    @abstractmethod
    def replace(self, name: str, content: bytes) -> None:
        """Writes a file in the place of what is there. Raises OSError."""

    @abstractmethod
    def take(self, name: str) -> bool:
        """Removes a file; of several that do, one is told that it did."""

    @abstractmethod
    def list(self, below: str = "") -> list[str]:
        """The names of all files below a folder, sorted.

        Raises:
            UsageError: it cannot be read, or is a file.
        """

    def exists(self) -> bool:
        """Says whether the folder is there; in a store it is if it has files."""
        return bool(self.list())

    def replace_all(self, contents: Mapping[str, bytes]) -> None:
        """Writes files in the place of what is there. Raises OSError.

        Args:
            contents: name → what the file is to hold.
        """
        for name, content in contents.items():
            self.replace(name, content)

    def sweep(self, records: str) -> None:  # noqa: B027
        """Removes what a process that was killed has written half.

        Args:
            records: the folder of its write-ahead records: those shards run again.
        """

    def read_all(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | UsageError]]:
        """The contents of files; in the place of one that cannot be read, why."""
        for name in names:
            try:
                content = self.read(name)
            except UsageError as error:
                yield name, error
            else:
                if content is not None:
                    yield name, content


class LocalFolder(Folder):
    """A folder on a file system."""

    def __init__(self, place: str) -> None:
        self.place = place

    @property
    def path(self) -> Path:
        return Path(self.place)

    def read(self, name: str) -> bytes | None:
        path = self.path / name
        return read_bytes(path, MAX_BYTES) if path.exists() else None

    def put(self, name: str, content: bytes) -> bool:
        draft = self.write_draft(name, content)
        try:
            os.link(draft, self.path / name)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        return True

    def replace(self, name: str, content: bytes) -> None:
        draft = self.write_draft(name, content)
        try:
            draft.replace(self.path / name)
        finally:
            draft.unlink(missing_ok=True)

    def write_draft(self, name: str, content: bytes) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}-{token_hex(4)}.tmp")
        try:
            draft.write_bytes(content)
        except OSError:  # such as a full disk
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        return draft

    def take(self, name: str) -> bool:
        path = self.path / name
        taken = path.with_name(f".{path.name}.{os.getpid()}-{token_hex(4)}.tmp")
        try:
            path.rename(taken)  # of two that do, one finds no such file
            taken.unlink()
        except FileNotFoundError:
            return False
        with suppress(OSError):
            path.parent.rmdir()  # if it is empty now
        return True

    def sweep(self, records: str) -> None:
        drafts = self.path.rglob(".*.tmp")
        for path in [*drafts, *(self.path / records).glob("*.json")]:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def exists(self) -> bool:
        return self.path.is_dir()

    def list(self, below: str = "") -> list[str]:
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.place}: is not a folder; give a folder")
        found = walk_files(self.path / below)
        names = [path for path in found if path.suffix != ".tmp"]
        return sorted(path.relative_to(self.path).as_posix() for path in names)


class RemoteFolder(Folder):
    """A folder in a store, such as ``s3://bucket/night``.

    A store may have no way to write a file only where there is none. Who has written
    reads back then: the names of shards say what is in them, so it does not matter
    which of two writers was first.
    """

    def __init__(self, place: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise UsageError(
                f"{place}: a store needs fsspec; pip install 'kv-lockstep[ray]', or give"
                " a folder of this machine"
            ) from None
        self.place = place.rstrip("/")
        try:
            self.store, self.root = url_to_fs(self.place)
        except (ValueError, ImportError, OSError) as error:
            raise UsageError(f"{place}: cannot be opened: {error}") from None

    @property
    def path(self) -> PurePath:
        return PurePath(self.root)

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls the store. A store raises whatever the library below it does.

        Raises:
            FileNotFoundError: there is no such file.
            FileExistsError: there is one.
            OSError: anything else.
        """
        try:
            return getattr(self.store, name)(*arguments)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{self.place}: {format_error(error)}") from error

    def locate(self, name: str) -> str:
        return f"{self.root}/{name}"

    def read(self, name: str) -> bytes | None:
        try:
            content: bytes = self.call("cat_file", self.locate(name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"{self.place}/{name}: cannot be read: {error}") from None
        return check_size(content, MAX_BYTES, f"{self.place}/{name}")

    def read_all(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | UsageError]]:
        """Many at once: a store takes a while for each answer."""
        waiting = [*names]
        for begin in range(0, len(waiting), MOST_AT_ONCE):
            own = waiting[begin : begin + MOST_AT_ONCE]
            try:
                found = self.store.cat([*map(self.locate, own)], on_error="return")
            except Exception as error:
                why = f"{self.place}: cannot be read: {format_error(error)}"
                raise UsageError(why) from None
            for name in own:
                content = found[self.locate(name)]
                if isinstance(content, bytes):
                    yield name, check_size(content, MAX_BYTES, f"{self.place}/{name}")
                elif not isinstance(content, FileNotFoundError):  # else it has gone
                    yield name, UsageError(f"{self.place}/{name}: cannot be read")

    def put(self, name: str, content: bytes) -> bool:
        if self.call("exists", self.locate(name)):
            return False
        self.replace(name, content)
        return self.read(name) == content

    def replace(self, name: str, content: bytes) -> None:
        place = self.locate(name)
        self.call("makedirs", place.rpartition("/")[0], True)
        self.call("pipe_file", place, content)

    def replace_all(self, contents: Mapping[str, bytes]) -> None:
        """Many at once, as they are read."""
        waiting = {self.locate(name): content for name, content in contents.items()}
        for place in {place.rpartition("/")[0] for place in waiting}:
            self.call("makedirs", place, True)
        places = [*waiting]
        for begin in range(0, len(places), MOST_AT_ONCE):
            own = places[begin : begin + MOST_AT_ONCE]
            self.call("pipe", {place: waiting[place] for place in own})

    def take(self, name: str) -> bool:
        try:
            self.call("rm_file", self.locate(name))
        except FileNotFoundError:
            return False
        return True

    def list(self, below: str = "") -> list[str]:
        root = self.locate(below) if below else self.root
        try:
            self.store.invalidate_cache()
            found: list[str] = self.call("find", root)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"{self.place}: cannot be read: {error}") from None
        if found == [self.root]:
            raise UsageError(f"{self.place}: is not a folder; give a folder")
        start = f"{self.root}/"
        return sorted(name.removeprefix(start) for name in found)


def open_folder(place: str) -> Folder:
    """A folder by its path or URL."""
    if place.startswith("file://"):
        return LocalFolder(place.removeprefix("file://"))
    return RemoteFolder(place) if "://" in place else LocalFolder(place)
