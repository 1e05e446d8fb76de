"""Reads and writes files in a local folder or in a remote store that fsspec supports.

Files are written atomically. If several processes write the same file, the content of the
first process is kept.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePath
from secrets import token_hex
from typing import Any

from lockstep.harness.core.document import MAX_BYTES, check_size, read_bytes, walk_files
from lockstep.harness.core.errors import UsageError, format_error

MAX_TOGETHER = 200
"""The maximum number of files in one read request to a store."""


class Folder(ABC):
    """A folder of files with names such as ``shards/x.json``.

    Attributes:
        location: the path or URL of the folder, as the user wrote it.
    """

    location: str

    @property
    @abstractmethod
    def path(self) -> PurePath:
        """The path of the folder, for messages and to build file paths."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Returns the content of a file, or None if the file does not exist.

        Raises:
            UsageError: the file cannot be read, or is too large.
        """

    @abstractmethod
    def put(self, name: str, content: bytes) -> bool:
        """Writes a file unless it exists. Returns whether it was written. Raises
        OSError."""

    @abstractmethod
    def replace(self, name: str, content: bytes) -> None:
        """Writes a file and replaces an existing file. Raises OSError."""

    @abstractmethod
    def take(self, name: str) -> bool:
        """Removes a file. If several processes remove it, one of them gets True and the
        others get False."""

    @abstractmethod
    def list(self, below: str = "") -> list[str]:
        """Returns the sorted names of all files below a folder.

        Raises:
            UsageError: the folder cannot be read, or is a file.
        """

    def read_all(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | UsageError]]:
        """Yields each file name with the file's content, or with the error if the file
        cannot be read."""
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

    def __init__(self, location: str) -> None:
        self.location = location

    @property
    def path(self) -> Path:
        return Path(self.location)

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
            path.rename(taken)  # if two processes rename it, one gets FileNotFoundError
            taken.unlink()
        except FileNotFoundError:
            return False
        with suppress(OSError):
            path.parent.rmdir()  # succeeds only if the folder is empty
        return True

    def list(self, below: str = "") -> list[str]:
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.location}: is not a folder; give a folder")
        files = walk_files(self.path / below)
        paths = [path for path in files if path.suffix != ".tmp"]
        return sorted(path.relative_to(self.path).as_posix() for path in paths)


class RemoteFolder(Folder):
    """A folder in a store, such as ``s3://bucket/night``.

    Many stores have no operation that writes a file unless it exists. A writer therefore
    reads the file again to see whether its content was kept. The name of a shard
    determines its content, so it does not matter which of two writers is first.
    """

    def __init__(self, location: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise UsageError(
                f"{location}: a store needs fsspec; pip install 'kv-lockstep[ray]', or"
                " give a folder of this machine"
            ) from None
        self.location = location.rstrip("/")
        try:
            self.store, self.root = url_to_fs(self.location)
        except (ValueError, ImportError, OSError) as error:
            raise UsageError(f"{location}: cannot be opened: {error}") from None

    @property
    def path(self) -> PurePath:
        return PurePath(self.root)

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls a method of the store and converts its exceptions, which depend on the
        library of the store.

        Raises:
            FileNotFoundError: the file does not exist.
            FileExistsError: the file exists.
            OSError: the call failed for another reason.
        """
        try:
            return getattr(self.store, name)(*arguments)
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{self.location}: {format_error(error)}") from error

    def locate(self, name: str) -> str:
        return f"{self.root}/{name}"

    def read(self, name: str) -> bytes | None:
        try:
            content: bytes = self.call("cat_file", self.locate(name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"{self.location}/{name}: cannot be read: {error}") from None
        return check_size(content, MAX_BYTES, f"{self.location}/{name}")

    def read_all(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | UsageError]]:
        """Reads many files in each request, because each request to a store is slow."""
        waiting = [*names]
        for begin in range(0, len(waiting), MAX_TOGETHER):
            batch = waiting[begin : begin + MAX_TOGETHER]
            try:
                contents = self.store.cat([*map(self.locate, batch)], on_error="return")
            except Exception as error:
                reason = f"{self.location}: cannot be read: {format_error(error)}"
                raise UsageError(reason) from None
            for name in batch:
                content = contents[self.locate(name)]
                if isinstance(content, bytes):
                    yield name, check_size(content, MAX_BYTES, f"{self.location}/{name}")
                elif not isinstance(content, FileNotFoundError):  # else it has gone
                    yield name, UsageError(f"{self.location}/{name}: cannot be read")

    def put(self, name: str, content: bytes) -> bool:
        if self.call("exists", self.locate(name)):
            return False
        self.replace(name, content)
        return self.read(name) == content

    def replace(self, name: str, content: bytes) -> None:
        location = self.locate(name)
        self.call("makedirs", location.rpartition("/")[0], True)
        self.call("pipe_file", location, content)

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
            paths: list[str] = self.call("find", root)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"{self.location}: cannot be read: {error}") from None
        if paths == [self.root]:
            raise UsageError(f"{self.location}: is not a folder; give a folder")
        start = f"{self.root}/"
        return sorted(name.removeprefix(start) for name in paths)


def open_folder(location: str) -> Folder:
    """Opens a folder by its path or URL."""
    if location.startswith("file://"):
        return LocalFolder(location.removeprefix("file://"))
    return RemoteFolder(location) if "://" in location else LocalFolder(location)
