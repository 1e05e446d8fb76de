"""Zips of artifacts, as a CI service hands them out: read in memory, never unpacked.

A zip that came from elsewhere may have been made to harm. So all of it is looked at
before anything is read: what is odd in one place is refused whole.
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path, PurePosixPath
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from lockstep.harness.core.document import MAX_BYTES, check_size, read_bytes
from lockstep.harness.core.errors import UsageError

MAX_ARCHIVE = 64 << 20
"""Bytes of a zip."""
MAX_MEMBERS = 10_000
MAX_UNPACKED = 256 << 20
"""Bytes that the members of a zip claim to have, in sum. Those that are no programs are
never unpacked, but one that claims more is no artifact of ours."""

ENTRY = b"PK\1\2"
"""What each entry of a zip's directory begins with."""
ENCRYPTED = 1
BROKEN = (
    BadZipFile, ValueError, NotImplementedError, OSError, EOFError, OverflowError,
    struct.error, zlib.error,
)  # fmt: skip
"""What `zipfile` raises for bytes that are no zip."""


def list_members(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The files in a zip, each with how it is read. Raises UsageError if it is none, is
    too large, or has a member that no artifact of ours has."""
    content = read_bytes(path, MAX_ARCHIVE)
    if content.count(ENTRY) > MAX_MEMBERS:  # a directory takes more memory than its zip
        raise UsageError(f"{path}: has more than {MAX_MEMBERS:,} members")
    try:
        archive = ZipFile(BytesIO(content))
    except BROKEN as error:
        raise UsageError(f"{path}: cannot be read as a zip: {error}") from None
    members = archive.infolist()
    refuse_odd(members, path)
    for member in members:
        if not member.is_dir():
            place = f"{path}!{member.filename}"
            yield member.filename, partial(read_member, archive, member, place)


def refuse_odd(members: Sequence[ZipInfo], path: Path) -> None:
    """Raises UsageError if the members of a zip are none that an artifact has."""
    for member in members:
        why = why_odd(member)
        if why:
            raise UsageError(f"{path}: its member {member.filename!r} {why}")
    names = [PurePosixPath(member.filename) for member in members]
    if len(set(names)) < len(names):
        raise UsageError(f"{path}: has two members of one name")
    unpacked = sum(member.file_size for member in members)
    if unpacked > MAX_UNPACKED:
        raise UsageError(
            f"{path}: would unpack to {unpacked >> 20:,} MiB; at most"
            f" {MAX_UNPACKED >> 20} MiB are read"
        )
    placed = sorted(members, key=lambda member: member.header_offset)
    for first, second in pairwise(placed):
        if first.header_offset + first.compress_size > second.header_offset:
            raise UsageError(
                f"{path}: its members {first.filename!r} and {second.filename!r} overlap"
            )


def why_odd(member: ZipInfo) -> str | None:
    """Why a member is none that an artifact has, or None."""
    name = PurePosixPath(member.filename)
    if not name.parts:
        return "has no name"
    if name.is_absolute() or ".." in name.parts or set(member.filename) & {"\\", ":"}:
        return "would lie outside of its folder"
    mode = member.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a device, not a file"
    if member.flag_bits & ENCRYPTED:
        return "is encrypted; unpack the zip, and give its folder"
    if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        return "is packed in another way than by deflate; give the unpacked folder"
    return None


def read_member(archive: ZipFile, member: ZipInfo, where: str) -> bytes:
    """The content of a member, no more than a program may have."""
    try:
        with archive.open(member) as file:
            return check_size(file.read(MAX_BYTES + 1), MAX_BYTES, where)
    except BROKEN as error:
        raise UsageError(f"{where}: cannot be read: {error}") from None
