"""Zips that no artifact is."""

from __future__ import annotations

import gzip
import stat
from typing import Any
from zipfile import ZIP_BZIP2, ZIP_STORED

from lockstep.harness.core.document import MAX_BYTES
from tests.harness.hostile.makers import (
    ESCAPES,
    TEXT,
    Cases,
    Make,
    as_file,
    as_zip,
    make_member,
    say,
)

P = "p.json", TEXT
HUGE = "p.json", b" " * (MAX_BYTES + 1)


def lie(content: bytes) -> bytes:
    """A zip whose directory says that the first member is one byte long."""
    place = content.index(b"PK\1\2") + 24
    return content[:place] + b"\1\0\0\0" + content[place + 4 :]


def swap(old: bytes, new: bytes, **more: Any) -> Make:
    """A zip in which other bytes stand where these stand first."""
    return as_zip(P, then=lambda zip: zip.replace(old, new, 1), **more)


RUNNING = "failures/running/1.json"

ZIPS: Cases = {
    "empty": (as_file("", "a.zip"), "File is not a zip file"),
    "without members": (as_zip(), "no program file (.json, .jsonl) in this zip"),
    "cut off": (as_zip(P, then=lambda zip: zip[:-30]), "File is not a zip file"),
    "without its beginning": (as_zip(P, then=lambda zip: zip[60:]), "cannot be read"),
    "a broken directory": (swap(b"PK\1\2", b"PK\1\3"), "as a zip: Bad magic number"),
    "a broken header": (as_zip(P, then=lambda zip: b"XX" + zip[2:]), "a.zip!p.json:"),
    "another name in the header": (swap(b"p.json", b"q.json"), "File name in directory"),
    "changed bytes": (swap(b"update", b"upgate", how=ZIP_STORED), "Bad CRC-32"),
    "broken bytes": (
        as_zip(P, then=lambda zip: zip[:40] + b"\xff" * 8 + zip[48:]),
        "a.zip!p.json: cannot be read",
    ),
    "a member that is larger than it says": (as_zip(P, then=lie), "Bad CRC-32"),
    "a member of one byte too many": (as_zip(HUGE), "a.zip!p.json: is too large"),
    "a bomb that would fill a disk": (
        as_zip(P, claim=say("file_size", 10 << 30)),
        "would unpack to 10,240 MiB; at most 256 MiB are read",
    ),
    "a bomb of many members": (
        as_zip(*((f"{n}.json", HUGE[1]) for n in range(33))),
        "would unpack to 264 MiB",
    ),
    "a bomb in a member": (
        as_zip(("p.json.gz", gzip.compress(b" " * (64 << 20)))),
        "a.zip!p.json.gz: is too large",
    ),
    "very many members": (
        as_zip(*((f"{n}.json", "") for n in range(10_001))),
        "more than 10,000",
    ),
    "members on top of each other": (
        as_zip(("p.json", TEXT), ("q.json", TEXT), claim=say("compress_size", 200)),
        "overlap",
    ),
    "a zip in a zip": (as_zip(("b.zip", TEXT)), "no program file"),
    "a name that climbs": (as_zip(("../../p.json", TEXT)), "would be written outside"),
    "a name from the root": (as_zip(("/etc/p.json", TEXT)), "would be written outside"),
    "a name of Windows": (as_zip(("C:\\p.json", TEXT)), "would be written outside"),
    "a name with a backslash": (as_zip(("a\\b.json", TEXT)), "would be written outside"),
    "no program": (as_zip(("report.html", "<p>")), "no program file (.json, .jsonl) in"),
    "no name": (as_zip(P, claim=say("filename", "")), "has no name"),
    "a name twice": (as_zip(P, P), "has two members with the same name"),
    "a name with escape sequences": (as_zip((f"{ESCAPES}.json", "{")), "is not JSON"),
    "a name that is no UTF-8": (
        as_zip(("ä.json", TEXT), then=lambda zip: zip.replace("ä".encode(), b"\xff\xfe")),
        "cannot be read as a zip",
    ),
    "a link": (as_zip((make_member(stat.S_IFLNK), "/etc/passwd")), "is a link or a"),
    "a device": (as_zip((make_member(stat.S_IFBLK), "")), "is a link or a device"),
    "a locked member": (as_zip(P, claim=say("flag_bits", 1)), "is encrypted; unpack"),
    "packed by bzip2": (
        as_zip(P, how=ZIP_BZIP2),
        "uses a compression other than deflate",
    ),
    "packed in an unknown way": (
        as_zip(P, claim=say("compress_type", 99)),
        "a compression other",
    ),
    "nothing but a blank record": (as_zip((RUNNING, "{}   ")), "no program file"),
    "a broken record": (as_zip((RUNNING, "{")), "running/1.json: is not JSON"),
}
