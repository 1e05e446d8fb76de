"""Zips of artifacts from a CI service, read in memory and never unpacked.

A zip from elsewhere may have been made to harm. So the whole directory is checked before
anything is read, and one odd member makes the whole zip refused.
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
"""Bytes that the members of a zip claim to have, in sum. Only programs are unpacked, but
no artifact of ours claims more."""

ENTRY = b"PK\1\2"
"""The first bytes of each entry of a zip's directory."""
ENCRYPTED = 1
BROKEN = (
    BadZipFile, ValueError, NotImplementedError, OSError, EOFError, OverflowError,
    struct.error, zlib.error,
)  # fmt: skip
"""The exceptions of `zipfile` for bytes that are not a zip."""


def list_members(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The files in a zip, each with a function that reads it.

    Raises:
        UsageError: it is not a zip, is too large, or has a member that no artifact has.
    """
    content = read_bytes(path, MAX_ARCHIVE)
    if content.count(ENTRY) > MAX_MEMBERS:  # a directory takes more memory than its zip
        raise UsageError(f"{path}: has more than {MAX_MEMBERS:,} members")
    try:
        archive = ZipFile(BytesIO(content))
    except BROKEN as error:
        raise UsageError(f"{path}: cannot be read as a zip: {error}") from None
    members = archive.infolist()
    why = why_refused(members)
    if why:
        raise UsageError(f"{path}: {why}")
    for member in members:
        if not member.is_dir():
            place = f"{path}!{member.filename}"
            yield member.filename, partial(read_member, archive, member, place)


def why_refused(members: Sequence[ZipInfo]) -> str | None:
    """Why a zip with these members is not read; None if it is."""
    for member in members:
        why = why_odd(member)
        if why:
            return f"its member {member.filename!r} {why}"
    if len({PurePosixPath(member.filename) for member in members}) < len(members):
        return "has two members of one name"
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
    """Why no artifact has such a member; None if some have."""
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
    """The content of a member, at most MAX_BYTES."""
    try:
        with archive.open(member) as file:
            return check_size(file.read(MAX_BYTES + 1), MAX_BYTES, where)
    except BROKEN as error:
        raise UsageError(f"{where}: cannot be read: {error}") from None
