"""Programs as they are handed around: in files, in folders, and in zips of artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os.path import isdir, lexists  # of a name that is too long, too
from pathlib import Path, PurePath

from lockstep.harness.core.document import MAX_BYTES, decode, read_bytes
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.artifact import list_members
from lockstep.harness.programs.program import Program, parse_programs

OUTCOME = "outcome.json"
"""The file, beside the folders of signatures, that says what a check has come to."""

RUNNING = "running"
"""The folder, among those of signatures, where the write-ahead records are."""

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
                programs = parse_programs(decode(read(), str(file)), str(file))
            except UsageError as error:
                yield file, error
                continue
            for program in programs:
                yield file, program


def load_saved(path: Path) -> list[Program]:
    """The programs in a file, in a folder, in a zip, or in one file of a zip. Raises
    UsageError for the first that is none."""
    programs = []
    for _, program in iterate_saved([path]):
        if isinstance(program, UsageError):
            raise program
        programs.append(program)
    return programs


def list_files(path: Path) -> list[tuple[Path, Read]]:
    """The program files at a path, each with how it is read, in the order of names; one
    that was recorded as running, but holds nothing, does not count."""
    if not is_several(path):
        return [(path, find_member(path) or make_reader(path))]
    files = dict(list_all_files(path))
    programs = sorted(file for file in files if is_program(file, files[file]))
    if not programs:
        what = "zip" if path.is_file() else "folder"
        raise UsageError(f"{path}: no program file (.json, .jsonl) in this {what}")
    return [(file, files[file]) for file in programs]


def is_several(path: Path) -> bool:
    """Whether there are files in it: a folder or a zip."""
    return isdir(path) or path.name.endswith(".zip")


def find_member(path: Path) -> Read | None:
    """How the file ``artifact.zip!folder/name.json`` is read, in the zip; None for a path
    that is not of this form, or is there itself."""
    archive, mark, name = str(path).partition(".zip!")
    if not mark or lexists(path):
        return None
    members = dict(list_members(Path(f"{archive}.zip")))
    if name not in members:
        raise UsageError(f"{path}: there is no such file in the zip")
    return members[name]


def list_all_files(path: Path) -> Iterator[tuple[Path, Read]]:
    """The files in a folder or a zip that may be of ours."""
    if isdir(path):
        files = (file for file in path.rglob("*.json*") if file.is_file())
        yield from ((file, make_reader(file)) for file in files)
    else:
        for name, read in list_members(path):
            yield Path(f"{path}!{name}"), read


def list_outcomes(path: Path) -> list[tuple[Path, Read]]:
    """The outcomes of checks in a folder or a zip, in the order of names."""
    return sorted((file, read) for file, read in list_all_files(path) if is_outcome(file))


def is_outcome(file: PurePath) -> bool:
    """Whether a file is called as a check calls its outcome. In a zip it may stand at the
    top, behind the name of the zip."""
    return file.name.rpartition("!")[2] == OUTCOME


def get_folder(file: PurePath) -> str:
    """The folder that a file is in, without the name of a zip before it."""
    return file.parent.name.rpartition("!")[2]


def make_reader(path: Path) -> Read:
    return lambda: read_bytes(path, MAX_BYTES)


def is_program(file: PurePath, read: Read) -> bool:
    """Whether a file among others is to be read as programs."""
    if not file.name.endswith(SUFFIXES) or is_outcome(file):
        return False
    try:
        return get_folder(file) != RUNNING or read().strip() != b"{}"
    except UsageError:  # it will be raised again where the file is read
        return True
