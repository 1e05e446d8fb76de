"""Programs as they are handed around: in files, in folders, and in zips of artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

from harness.artifact import list_members
from harness.document import MAX_BYTES, decode, read_bytes
from harness.errors import UsageError
from harness.failures import RUNNING
from harness.program import Program, parse_programs

SUFFIXES = (".json", ".json.gz", ".jsonl", ".jsonl.gz")

Read = Callable[[], bytes]


def iterate_saved(paths: list[Path]) -> Iterator[tuple[Path, Program | UsageError]]:
    """The programs in files, and in the files of folders and zips; what is wrong with a
    file stands in the place of its programs. A file in a zip is called
    ``artifact.zip!folder/name.json``. Raises UsageError for a folder or a zip without
    any, and for a zip that is none."""
    for path in paths:
        for file, read in list_files(path):
            try:
                programs = list(parse_programs(decode(read(), str(file)), str(file)))
                if not programs:
                    raise UsageError(f"{file}: holds no program")
            except UsageError as error:
                yield file, error
                continue
            for program in programs:
                yield file, program


def list_files(path: Path) -> list[tuple[Path, Read]]:
    """The program files at a path, each with how it is read, in the order of names; one
    that was recorded as running, but holds nothing, does not count."""
    if path.is_dir():
        files = {
            file: make_reader(file) for file in path.rglob("*.json*") if file.is_file()
        }
    elif path.name.endswith(".zip"):
        files = {Path(f"{path}!{name}"): read for name, read in list_members(path)}
    else:
        return [(path, make_reader(path))]
    programs = sorted(file for file in files if is_program(file, files[file]))
    if not programs:
        what = "zip" if path.is_file() else "folder"
        raise UsageError(f"{path}: no program file (.json, .jsonl) in this {what}")
    return [(file, files[file]) for file in programs]


def make_reader(path: Path) -> Read:
    return lambda: read_bytes(path, MAX_BYTES)


def is_program(file: PurePath, read: Read) -> bool:
    """Whether a file among others is to be read as programs."""
    if not file.name.endswith(SUFFIXES):
        return False
    try:
        return file.parent.name != RUNNING or read().strip() != b"{}"
    except UsageError:  # it will be raised again where the file is read
        return True
