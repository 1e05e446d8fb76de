"""Programs in files, folders and zips of artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from os.path import isdir, lexists  # unlike Path, these accept a name that is too long
from pathlib import Path, PurePath

from lockstep.harness.core.document import MAX_BYTES, decode, read_bytes
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.artifact import list_members
from lockstep.harness.programs.program import Program, parse_programs

OUTCOME = "outcome.json"
"""The file with the outcome of a check, beside the folders of signatures."""

RUNNING = "running"
"""The folder, among those of signatures, where the write-ahead records are."""

SUFFIXES = (".json", ".json.gz", ".jsonl", ".jsonl.gz")

Read = Callable[[], bytes]


def iterate_saved(paths: list[Path]) -> Iterator[tuple[Path, Program | UsageError]]:
    """The programs in files, and in the files of folders and zips.

    An error takes the place of the programs of a broken file. A file in a zip is called
    ``artifact.zip!folder/name.json``.

    Raises:
        UsageError: a folder or a zip has no program file, or a zip is refused.
    """
    for path in paths:
        for file, read in list_files(path):
            try:
                programs = parse_programs(decode(read(), str(file)), str(file))
            except UsageError as error:
                yield file, error
                continue
            yield from ((file, program) for program in programs)


def load_saved(path: Path) -> list[Program]:
    """The programs in a file, in a folder, in a zip, or in one file of a zip.

    Raises:
        UsageError: one of them is not a program.
    """
    programs = []
    for _, program in iterate_saved([path]):
        if isinstance(program, UsageError):
            raise program
        programs.append(program)
    return programs


def list_files(path: Path) -> list[tuple[Path, Read]]:
    """The program files at a path, each with a function that reads it, sorted by name.

    A write-ahead record in which nothing is running does not count.
    """
    if not is_several(path):
        return [(path, find_member(path) or make_reader(path))]
    files = [own for own in list_all_files(path) if is_program(*own)]
    if not files:
        what = "zip" if path.is_file() else "folder"
        raise UsageError(f"{path}: no program file (.json, .jsonl) in this {what}")
    return sort_by_name(files)


def list_outcomes(path: Path) -> list[tuple[Path, Read]]:
    """The outcomes of checks in a folder or a zip, sorted by name."""
    return sort_by_name(own for own in list_all_files(path) if is_outcome(own[0]))


def sort_by_name(files: Iterable[tuple[Path, Read]]) -> list[tuple[Path, Read]]:
    return sorted(files, key=lambda own: own[0])


def is_several(path: Path) -> bool:
    """Whether a path is a folder or a zip."""
    return isdir(path) or path.name.endswith(".zip")


def find_member(path: Path) -> Read | None:
    """The function that reads ``artifact.zip!folder/name.json`` in the zip; None if the
    path has another form, or exists itself."""
    archive, mark, name = str(path).partition(".zip!")
    if not mark or lexists(path):
        return None
    members = dict(list_members(Path(f"{archive}.zip")))
    if name not in members:
        raise UsageError(f"{path}: there is no such file in the zip")
    return members[name]


def list_all_files(path: Path) -> Iterator[tuple[Path, Read]]:
    """The files of a folder or a zip whose names may be ours."""
    if isdir(path):
        files = (file for file in path.rglob("*.json*") if file.is_file())
        yield from ((file, make_reader(file)) for file in files)
    else:
        for name, read in list_members(path):
            yield Path(f"{path}!{name}"), read


def is_outcome(file: PurePath) -> bool:
    """Whether a file has the name of an outcome, possibly at the top of a zip."""
    return file.name.rpartition("!")[2] == OUTCOME


def make_reader(path: Path) -> Read:
    return lambda: read_bytes(path, MAX_BYTES)


def is_program(file: PurePath, read: Read) -> bool:
    """Whether a file of a folder or a zip is read as programs."""
    if not file.name.endswith(SUFFIXES) or is_outcome(file):
        return False
    try:
        is_record = file.parent.name.rpartition("!")[2] == RUNNING
        return not is_record or read().strip() != b"{}"
    except UsageError:  # it is raised again where the file is read
        return True
