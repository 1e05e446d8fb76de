"""Reads programs from files, folders and zips of CI artifacts."""

from __future__ import annotations

import json
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from io import BytesIO
from itertools import pairwise
from os.path import isdir, lexists
from pathlib import Path, PurePath, PurePosixPath
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from lockstep.harness.core.document import (
    MAX_BYTES,
    check_size,
    decode,
    read_bytes,
    walk_files,
    write_whole,
)
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.program import LINES, Program, parse_programs

# --- zips, read in memory and never unpacked --------------------------------------------


MAX_ARCHIVE = 64 << 20
"""The maximal number of bytes of a zip."""
MAX_MEMBERS = 10_000
MAX_UNPACKED = 256 << 20
"""The maximal sum of the sizes that a zip's directory states for its members.

Only programs are unpacked, but the limit applies to all members: no artifact of this
project is larger."""

ENTRY = b"PK\1\2"
"""The signature at the start of each entry in a zip's directory."""
ENCRYPTED = 1
BROKEN = (
    BadZipFile, ValueError, NotImplementedError, OSError, EOFError, OverflowError,
    struct.error, zlib.error,
)  # fmt: skip
"""The exceptions that `zipfile` raises for bytes that are not a valid zip."""


def list_members(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yields the name of each file in a zip, with a function that reads the file.

    A downloaded zip may be malicious. Therefore, the list of members is checked before
    any member is read. If one member is suspicious, the whole zip is refused.

    Raises:
        UsageError: the file is not a zip, is too large, or has a suspicious member.
    """
    content = read_bytes(path, MAX_ARCHIVE)
    if content.count(ENTRY) > MAX_MEMBERS:  # a directory takes more memory than its zip
        raise UsageError(f"{path}: has more than {MAX_MEMBERS:,} members")
    try:
        archive = ZipFile(BytesIO(content))
    except BROKEN as error:
        raise UsageError(f"{path}: cannot be read as a zip: {error}") from None
    members = archive.infolist()
    reason = why_refused(members)
    if reason:
        raise UsageError(f"{path}: {reason}")
    for member in members:
        if not member.is_dir():
            location = f"{path}!{member.filename}"
            yield member.filename, partial(read_member, archive, member, location)


def why_refused(members: Sequence[ZipInfo]) -> str | None:
    """Returns why a zip with these members is refused, or None if it is accepted."""
    for member in members:
        reason = why_odd(member)
        if reason:
            return f"its member {member.filename!r} {reason}"
    if len({PurePosixPath(member.filename) for member in members}) < len(members):
        return "has two members with the same name"
    size = sum(member.file_size for member in members)
    if size > MAX_UNPACKED:
        most = f"at most {MAX_UNPACKED >> 20} MiB are read"
        return f"would unpack to {size >> 20:,} MiB; {most}"
    placed = sorted(members, key=lambda member: member.header_offset)
    for first, second in pairwise(placed):
        if first.header_offset + first.compress_size > second.header_offset:
            return f"its members {first.filename!r} and {second.filename!r} overlap"
    return None


def why_odd(member: ZipInfo) -> str | None:
    """Returns why a member is suspicious, or None if an artifact may contain it."""
    name = PurePosixPath(member.filename)
    if not name.parts:
        return "has no name"
    if name.is_absolute() or ".." in name.parts or set(member.filename) & {"\\", ":"}:
        return "would be written outside of its folder"
    mode = member.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a device, not a file"
    if member.flag_bits & ENCRYPTED:
        return "is encrypted; unpack the zip, and give its folder"
    if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        return "uses a compression other than deflate; give the unpacked folder"
    return None


def read_member(archive: ZipFile, member: ZipInfo, where: str) -> bytes:
    """Returns the content of a member; raises UsageError above MAX_BYTES."""
    try:
        with archive.open(member) as file:
            return check_size(file.read(MAX_BYTES + 1), MAX_BYTES, where)
    except BROKEN as error:
        raise UsageError(f"{where}: cannot be read: {error}") from None


# --- files and folders ------------------------------------------------------------------


OUTCOME = "outcome.json"
"""The file with the outcome of a check, next to the folders of signatures.

If another check has written this file in the meantime, a check uses a name such as
outcome-1a2b3c4d.json."""

OUTCOMES = re.compile(r"outcome(-[0-9a-f]{8})?\.json")

RUNNING = "running"
"""The folder of the write-ahead records, next to the folders of signatures."""

SUFFIXES = (".json", ".json.gz", ".jsonl", ".jsonl.gz")

Read = Callable[[], bytes]


def iterate_saved(paths: Sequence[Path]) -> Iterator[tuple[Path, Program | UsageError]]:
    """Yields (location, program) for files, and for the files in folders and zips.

    For a broken file, the function yields an error instead of programs. The location of a
    file in a zip is ``artifact.zip!folder/name.json``; the location of a program in a
    file with several programs has its line number, as in ``found.jsonl:3``. The caller
    may also pass such locations.

    Raises:
        UsageError: a folder or a zip has no program file, or a zip is refused.
    """
    for path in paths:
        whole = find_whole(path)
        for file, read in list_files(whole or path):
            try:
                programs = parse_programs(decode(read(), str(file)), str(file))
            except UsageError as error:
                yield file, error
                continue
            if whole:
                program = programs.get(str(path))
                yield path, program or UsageError(f"{path}: no program in this line")
            elif len(programs) == 1:
                yield file, next(iter(programs.values()))
            else:
                yield from ((Path(name), program) for name, program in programs.items())


def find_whole(path: Path) -> Path | None:
    """Returns the file of a path that ends in a line number; None for other paths."""
    text, colon, line = str(path).rpartition(":")
    is_line = colon and line.isdecimal() and text.endswith(LINES) and not lexists(path)
    return Path(text) if is_line else None


def load_saved(paths: Sequence[Path]) -> list[tuple[Path, Program]]:
    """Lists the locations and programs that `iterate_saved` yields.

    Raises:
        UsageError: `iterate_saved` yields an error, or raises it.
    """
    programs = []
    for path, program in iterate_saved(paths):
        if isinstance(program, UsageError):
            raise program
        programs.append((path, program))
    return programs


def list_files(path: Path) -> list[tuple[Path, Read]]:
    """Lists the program files at a path, each with a function that reads the file.

    The list is sorted by name. Write-ahead records without a running program are skipped.
    """
    if not is_several(path):
        return [(path, find_member(path) or make_reader(path))]
    files = [file for file in list_all_files(path) if is_program(*file)]
    if not files:
        container = "zip" if path.is_file() else "folder"
        raise UsageError(f"{path}: no program file (.json, .jsonl) in this {container}")
    return sort_by_name(files)


def list_outcomes(path: Path) -> list[tuple[Path, Read]]:
    """Lists the outcome files of checks in a folder or a zip, sorted by name."""
    return sort_by_name(file for file in list_all_files(path) if is_outcome(file[0]))


def sort_by_name(files: Iterable[tuple[Path, Read]]) -> list[tuple[Path, Read]]:
    return sorted(files, key=lambda file: file[0])


def is_several(path: Path) -> bool:
    """Returns whether a path is a folder or a zip."""
    return isdir(path) or path.name.endswith(".zip")


def find_member(path: Path) -> Read | None:
    """Returns a function that reads the zip member ``artifact.zip!folder/name.json``.

    Returns None if the path does not have this form, or if a file of this name exists.
    """
    archive, mark, name = str(path).partition(".zip!")
    if not mark or lexists(path):
        return None
    members = dict(list_members(Path(f"{archive}.zip")))
    if name not in members:
        raise UsageError(f"{path}: there is no such file in the zip")
    return members[name]


def list_all_files(path: Path) -> Iterator[tuple[Path, Read]]:
    """Yields all files of a zip, or the files of a folder with ".json" in their names."""
    if isdir(path):
        files = (file for file in walk_files(path) if ".json" in file.name)
        yield from ((file, make_reader(file)) for file in files)
    else:
        for name, read in list_members(path):
            yield Path(f"{path}!{name}"), read


def is_outcome(file: PurePath) -> bool:
    """Returns whether a file, possibly at the top of a zip, has an outcome's name."""
    return OUTCOMES.fullmatch(file.name.rpartition("!")[2]) is not None


def make_reader(path: Path) -> Read:
    return lambda: read_bytes(path, MAX_BYTES)


def is_program(file: PurePath, read: Read) -> bool:
    """Returns whether a file of a folder or a zip is read as a program file."""
    if not file.name.endswith(SUFFIXES) or is_outcome(file):
        return False
    try:
        return not is_record(file) or read().strip() != b"{}"
    except UsageError:  # it is raised again where the file is read
        return True


def is_record(file: PurePath) -> bool:
    """Returns whether a file of a folder or a zip is a write-ahead record."""
    return file.parent.name.rpartition("!")[2] == RUNNING


def write_program(path: Path, program: Program) -> None:
    """Writes a program to a file, atomically."""
    write_whole(path, format_program(program))


def format_program(program: Program) -> str:
    """Returns the text of a program's file: one line for each field."""
    document = program.to_json()
    lines = [f' "{name}": {json.dumps(document[name])}' for name in document]
    return "{" + ",\n".join(lines).removeprefix(" ") + "}\n"
