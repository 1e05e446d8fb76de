"""Files that were made to harm, or came to harm: each gives one line and status 2.

Nothing is written, nothing that is printed acts on a terminal, and neither time nor
memory goes without bound.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import socket
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZIP_LZMA, ZIP_STORED, ZipFile, ZipInfo

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.document import MAX_BYTES

ROOT = Path(__file__).parents[2]
CORRECT = "tests.harness.misbehaving:correct"
SECONDS = 10.0

GOOD: Mapping[str, Any] = {
    "format": "lockstep/1",
    "contract": "layer",
    "config": {"kind": "kv"},
    "ops": [{"op": "update", "length": 2}],
}
TEXT = json.dumps(GOOD)
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m"
"""The title of a terminal, and all that is on it, and its colour."""

Make = Callable[[Path], Path]
"""Makes the hostile thing in a folder, and returns the path to give to a command."""


# --- how a case is made -----------------------------------------------------------------


Content = str | bytes | Callable[[], str | bytes]
"""Of a file; a function for what is large."""


def as_file(content: Content, name: str = "p.json") -> Make:
    def make(folder: Path) -> Path:
        path = folder / name
        made = content() if callable(content) else content
        path.write_bytes(made.encode() if isinstance(made, str) else made)
        return path

    return make


def change(**fields: Any) -> Make:
    """The good program with other fields at the top."""
    return as_file(json.dumps({**GOOD, **fields}))


def with_config(**fields: Any) -> Make:
    return change(config={"kind": "kv", **fields})


def with_op(**fields: Any) -> Make:
    return change(ops=[{"op": "update", "length": 2, **fields}])


def with_length(literal: str) -> Make:
    """A number as it stands in the file."""
    return as_file(TEXT.replace('"length": 2', f'"length": {literal}'))


def as_zip(
    *members: tuple[str | ZipInfo, str | bytes],
    how: int = ZIP_DEFLATED,
    claim: Callable[[ZipInfo], None] | None = None,
    then: Callable[[bytes], bytes] = bytes,
) -> Make:
    """A zip. claim: changes what its directory says of the first member; then: its
    bytes."""

    def make(folder: Path) -> Path:
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names that come twice
            with ZipFile(buffer, "w", how) as archive:
                for name, content in members:
                    archive.writestr(name, content)
                if claim:
                    claim(archive.filelist[0])
        path = folder / "a.zip"
        path.write_bytes(then(buffer.getvalue()))
        return path

    return make


def make_member(kind: int) -> ZipInfo:
    """A member of this kind of file."""
    member = ZipInfo("p.json")
    member.external_attr = (kind | 0o777) << 16
    return member


def say(name: str, value: Any) -> Callable[[ZipInfo], None]:
    return lambda member: setattr(member, name, value)


# --- programs ---------------------------------------------------------------------------

DEEP = 100_000

PROGRAMS: Mapping[str, tuple[Make, str]] = {
    "empty": (as_file(""), "is not JSON"),
    "blank": (as_file(" \n\t"), "is not JSON"),
    "byte order mark": (as_file("\ufeff" + TEXT), "is not JSON"),
    "UTF-16": (as_file(TEXT.encode("utf-16")), "is not UTF-8 text"),
    "Latin-1": (as_file('{"ä": 1}'.encode("latin-1")), "is not UTF-8 text"),
    "overlong UTF-8": (as_file(b'{"\xc0\xaf": 1}'), "is not UTF-8 text"),
    "zeros": (as_file(b"\0" * 1000), "is not JSON"),
    "a raw zero in a string": (as_file('{"format": "\0"}'), "is not JSON"),
    "cut off": (as_file(TEXT[:-5]), "the file may be cut off"),
    "two documents": (as_file(TEXT + TEXT), "is not JSON: Extra data"),
    "a trailing comma": (as_file('{"format": "lockstep/1",}'), "is not JSON"),
    "a comment": (as_file("// no\n" + TEXT), "is not JSON"),
    "Python": (as_file(str(dict(GOOD))), "is not JSON"),
    "a pickle": (as_file(b"cos\nsystem\n(S'true'\ntR."), "is not JSON"),
    "NaN": (with_length("NaN"), "NaN is not a number of JSON"),
    "Infinity": (with_length("Infinity"), "Infinity is not a number of JSON"),
    "-Infinity": (with_length("-Infinity"), "-Infinity is not a number of JSON"),
    "beyond all floats": (with_length("1e999"), "1e999 is not a number of JSON"),
    "many digits": (with_length("9" * 100_000), "a number has too many digits"),
    "many digits behind the point": (
        with_length("0." + "1" * 1_000_000),
        "is not of type 'integer'",
    ),
    "a huge exponent below": (with_length("1e-999999999"), "less than the minimum"),
    "beyond 64 bits": (with_length(str(1 << 70)), "is greater than the maximum"),
    "a huge float": (with_length("1e30"), "is greater than the maximum"),
    "no tokens": (with_length("0"), "is less than the minimum"),
    "less than none": (with_length("-1"), "is less than the minimum"),
    "half a token": (with_length("1.5"), "is not of type 'integer'"),
    "true tokens": (with_length("true"), "is not of type 'integer'"),
    "a number in quotes": (with_length('"3"'), "is not of type 'integer'"),
    "null tokens": (with_length("null"), "is not of type 'integer'"),
    "hexadecimal": (with_length("0x10"), "is not JSON"),
    "a leading zero": (with_length("007"), "is not JSON"),
    "digits of another script": (with_length("٣"), "is not JSON"),
    "deep lists": (as_file(lambda: "[" * DEEP), "is nested too deeply"),
    "deep objects": (as_file(lambda: '{"a":' * DEEP), "is nested too deeply"),
    "deep in an operation": (
        with_length("[" * DEEP + "]" * DEEP),
        "is nested too deeply",
    ),
    "a name twice": (as_file('{"ops": [], ' + TEXT[1:]), 'an object has "ops" twice'),
    "a name twice in an operation": (
        as_file(TEXT.replace('"length"', '"length": 1, "length"')),
        'an object has "length" twice',
    ),
    "a name twice, once escaped": (
        as_file('{"\\u006fps": [], ' + TEXT[1:]),
        'an object has "ops" twice',
    ),
    "very many names, one twice": (
        as_file(lambda: "{" + "".join(f'"{n}":1,' for n in range(200_000)) + '"0":1}'),
        'an object has "0" twice',
    ),
    "a list": (as_file("[]"), "a program is an object, this is a list"),
    "a number": (as_file("3"), "a program is an object"),
    "a string": (as_file('"program"'), "a program is an object"),
    "null": (as_file("null"), "a program is an object"),
    "no format": (as_file("{}"), "format"),
    "another format": (change(format="lockstep/2"), "lockstep/2"),
    "a format that is a list": (change(format=[["lockstep/1"]]), "format"),
    "an unknown contract": (change(contract="layers"), "did you mean layer?"),
    "a contract of Python": (change(contract="__class__"), "unknown"),
    "a contract that is an object": (change(contract={"a": 1}), "unknown"),
    "no config": (change(config=None), '"config" must be an object'),
    "a config that is a list": (change(config=[]), '"config" must be an object'),
    "an unknown kind": (with_config(kind="kvv"), "kind"),
    "a kind that is a lone surrogate": (
        as_file(TEXT.replace('"kv"', '"\\ud800"')),
        "kind",
    ),
    "a field that is a lone surrogate": (
        as_file(TEXT.replace('"kind"', '"\\udfff": 1, "kind"')),
        "unknown field",
    ),
    "a field with escape sequences": (with_config(**{ESCAPES: 1}), "unknown field"),
    "a field that turns text around": (with_config(**{"\u202egnp": 1}), "unknown field"),
    "a field of a megabyte": (with_config(**{"x" * (1 << 20): 1}), "unknown field"),
    "a kind with escape sequences": (with_config(kind=ESCAPES), "is not one of"),
    "a dtype with line breaks": (with_config(dtype="a\nb\r\u2028c"), "is not one of"),
    "another dtype": (with_config(dtype="float8"), "is not one of"),
    "too many heads": (with_config(heads=65), "is greater than the maximum"),
    "a negative dimension": (with_config(key_dim=-4), "is less than the minimum"),
    "a window without end": (
        with_config(kind="rotating", window=10**12),
        "is greater than the maximum",
    ),
    "a window in a kv cache": (with_config(window=4), "belong to rotating caches"),
    "a keep beyond the window": (
        with_config(kind="rotating", window=2, keep=2),
        "leaves nothing to rotate",
    ),
    "operations that are an object": (change(ops={}), '"ops" must be a list'),
    "no operations": (change(ops=None), '"ops" must be a list'),
    "too many operations": (
        change(ops=[{"op": "size"}] * 10_001),
        "10001 operations; a program may have 10000",
    ),
    "an operation that is a list": (change(ops=[[]]), "an operation is an object"),
    "an operation without a name": (change(ops=[{}]), "missing; one of"),
    "an operation whose name is a list": (change(ops=[{"op": []}]), "unknown []"),
    "an operation of Python": (change(ops=[{"op": "__init__"}]), "unknown"),
    "an operation with escape sequences": (change(ops=[{"op": ESCAPES}]), "unknown"),
    "an operation with a field too many": (with_op(more=1), "unknown field"),
    "a cache that is a path": (with_op(cache="../../etc/passwd"), "does not match"),
    "a cache with a line break": (with_op(cache="a\nb"), "does not match"),
    "a cache with a zero": (with_op(cache="a\0"), "does not match"),
    "a cache with a long name": (with_op(cache="a" * 33), "does not match"),
    "too many tokens": (change(ops=[{"op": "update", "length": 1024}] * 5), "at most"),
    "too many numbers": (
        change(
            config={"kind": "kv", "heads": 64, "key_dim": 1024, "value_dim": 1024},
            ops=[{"op": "update", "length": 1024}],
        ),
        "K and V would hold",
    ),
    "a trace in a trace": (
        as_file(json.dumps({"program": {"program": {"program": GOOD}}})),
        "format",
    ),
    "a position without end": (
        change(
            contract="unified",
            config={"kind": "causal"},
            ops=[{"op": "forward", "positions": [10**9], "sequences": [0]}],
        ),
        "is greater than the maximum",
    ),
    "very many positions": (
        change(
            contract="unified",
            config={"kind": "causal"},
            ops=[{"op": "forward", "positions": [0] * 100_000, "sequences": [0]}],
        ),
        "has 100000 items",
    ),
    "a layer with escape sequences": (
        change(contract="prefix", config={"kind": "trie", "layers": [ESCAPES]}, ops=[]),
        "layers",
    ),
    "a layer with a window without end": (
        change(
            contract="prefix",
            config={"kind": "trie", "layers": ["rotating:" + "9" * 30]},
            ops=[],
        ),
        "layers",
    ),
    "one byte too many": (as_file(lambda: " " * (MAX_BYTES + 1)), "is too large"),
    "very many empty lists": (
        as_file(lambda: "[" + "[]," * 2_700_000 + "[]]"),
        "is an object",
    ),
    "a bomb": (
        as_file(lambda: gzip.compress(b" " * (64 << 20)), "p.json.gz"),
        "is too large",
    ),
    "a bomb of lines": (
        as_file(lambda: gzip.compress(b"\n" * (64 << 20)), "p.jsonl.gz"),
        "is too large",
    ),
    "a bomb in a bomb": (
        as_file(lambda: gzip.compress(gzip.compress(b" " * (64 << 20))), "p.json.gz"),
        "is not UTF-8 text",
    ),
    "very many gzips in one": (
        as_file(lambda: gzip.compress(b"") * 100_000, "p.json.gz"),
        "is not JSON",
    ),
    "a gzip that is none": (as_file(TEXT, "p.json.gz"), "Not a gzipped file"),
    "a gzip that is cut off": (
        as_file(gzip.compress(TEXT.encode())[:-9], "p.json.gz"),
        "cannot be read",
    ),
    "a gzip with rubbish behind": (
        as_file(gzip.compress(TEXT.encode()) + b"rubbish", "p.json.gz"),
        "cannot be read",
    ),
    "a gzip with a wrong sum": (
        as_file(gzip.compress(TEXT.encode())[:-8] + bytes(8), "p.json.gz"),
        "CRC check failed",
    ),
    "millions of empty lines": (
        as_file(lambda: "\n" * 4_000_000, "p.jsonl"),
        "holds no program",
    ),
    "a line that is none": (
        as_file(f"{TEXT}\n{{\n", "p.jsonl"),
        "p.jsonl:2: is not JSON",
    ),
    "lines that end in another way": (
        as_file(f"{TEXT}\r{TEXT}\r", "p.jsonl"),
        "p.jsonl:1: is not JSON: Extra data",
    ),
    "a document over lines": (
        as_file(json.dumps(GOOD, indent=1), "p.jsonl"),
        "p.jsonl:1: is not JSON",
    ),
}


# --- zips -------------------------------------------------------------------------------

P = "p.json", TEXT
HUGE = "p.json", b" " * (MAX_BYTES + 1)


def lie(content: bytes) -> bytes:
    """A zip whose directory says that the first member is one byte long."""
    place = content.index(b"PK\1\2") + 24
    return content[:place] + b"\1\0\0\0" + content[place + 4 :]


ZIPS: Mapping[str, tuple[Make, str]] = {
    "empty": (as_file("", "a.zip"), "File is not a zip file"),
    "text": (as_file(TEXT, "a.zip"), "File is not a zip file"),
    "without members": (as_zip(), "no program file (.json, .jsonl) in this zip"),
    "cut off": (as_zip(P, then=lambda zip: zip[:-30]), "File is not a zip file"),
    "without its beginning": (
        as_zip(P, then=lambda zip: zip[60:]),
        "cannot be read",
    ),
    "the end of a zip alone": (
        as_zip(P, then=lambda zip: zip[-22:]),
        "cannot be read as a zip",
    ),
    "a broken directory": (
        as_zip(P, then=lambda zip: zip.replace(b"PK\1\2", b"PK\1\3")),
        "cannot be read as a zip: Bad magic number",
    ),
    "a broken header": (
        as_zip(P, then=lambda zip: b"XX" + zip[2:]),
        "a.zip!p.json: cannot be read: Bad magic number",
    ),
    "another name in the header": (
        as_zip(P, then=lambda zip: zip.replace(b"p.json", b"q.json", 1)),
        "cannot be read: File name in directory",
    ),
    "changed bytes": (
        as_zip(P, how=ZIP_STORED, then=lambda zip: zip.replace(b"update", b"upgate")),
        "Bad CRC-32",
    ),
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
        as_zip(*((f"{number}.json", HUGE[1]) for number in range(33))),
        "would unpack to 264 MiB",
    ),
    "a bomb in a member": (
        as_zip(("p.json.gz", gzip.compress(b" " * (64 << 20)))),
        "a.zip!p.json.gz: is too large",
    ),
    "very many members": (
        as_zip(*((f"{number}.json", "") for number in range(10_001))),
        "has more than 10,000 members",
    ),
    "members on top of each other": (
        as_zip(("p.json", TEXT), ("q.json", TEXT), claim=say("compress_size", 200)),
        "overlap",
    ),
    "a zip in a zip": (as_zip(("b.zip", TEXT)), "no program file"),
    "a name that climbs": (as_zip(("../../p.json", TEXT)), "would lie outside"),
    "a name that climbs later": (as_zip(("a/../../p.json", TEXT)), "would lie outside"),
    "a name from the root": (as_zip(("/etc/p.json", TEXT)), "would lie outside"),
    "a name of Windows": (as_zip(("C:\\p.json", TEXT)), "would lie outside"),
    "a name that climbs on Windows": (
        as_zip(("..\\p.json", TEXT)),
        "would lie outside",
    ),
    "a climbing name of what is no program": (
        as_zip(P, ("../.bashrc", "rm")),
        "would lie outside",
    ),
    "no name": (as_zip(P, claim=say("filename", "")), "has no name"),
    "a name twice": (as_zip(P, P), "has two members of one name"),
    "a name twice, in other words": (
        as_zip(P, (".//p.json", TEXT)),
        "has two members of one name",
    ),
    "a name with escape sequences": (
        as_zip((f"{ESCAPES}.json", "{")),
        "is not JSON",
    ),
    "a name that is no UTF-8": (
        as_zip(("ä.json", TEXT), then=lambda zip: zip.replace("ä".encode(), b"\xff\xfe")),
        "cannot be read as a zip",
    ),
    "a link": (as_zip((make_member(stat.S_IFLNK), "/etc/passwd")), "is a link or a"),
    "a pipe": (as_zip((make_member(stat.S_IFIFO), "")), "is a link or a device"),
    "a device": (as_zip((make_member(stat.S_IFBLK), "")), "is a link or a device"),
    "a locked member": (as_zip(P, claim=say("flag_bits", 1)), "is encrypted"),
    "packed by bzip2": (as_zip(P, how=ZIP_BZIP2), "packed in another way"),
    "packed by LZMA": (as_zip(P, how=ZIP_LZMA), "packed in another way"),
    "packed in an unknown way": (
        as_zip(P, claim=say("compress_type", 99)),
        "packed in another way",
    ),
    "a folder called like a program": (as_zip(("p.json/", "")), "no program file"),
    "nothing but a blank record": (
        as_zip(("failures/running/1.json", "{}   ")),
        "no program file",
    ),
    "a broken record": (
        as_zip(("failures/running/1.json", "{")),
        "running/1.json: is not JSON",
    ),
    "a deep program": (as_zip(("p.json", "[" * DEEP)), "is nested too deeply"),
}


# --- outcomes ---------------------------------------------------------------------------

PAIR: Mapping[str, Any] = {
    "backend": "mine",
    "contract": "layer",
    "kind": "kv",
    "programs": 1,
    "steps": 1,
    "failures": [],
}
FAILURE: Mapping[str, Any] = {
    "signature": "layer-kv-update-contents",
    "path": "p.json",
    "program": GOOD,
    "divergence": {"what": "contents", "step": 0, "operation": "update", "message": ""},
}


def as_outcome(text: str | None = None, pair: Any = None, **fields: Any) -> Make:
    """An outcome with other fields at the top, or in its pair; `text` in its place."""
    outcome = {
        "format": "lockstep-outcome/1",
        "seed": 0,
        "seconds": 1,
        "complete": True,
        "pairs": [{**PAIR, **(pair or {})}],
        **fields,
    }
    return as_file(json.dumps(outcome) if text is None else text, "outcome.json")


def with_failure(**fields: Any) -> Make:
    return as_outcome(pair={"failures": [{**FAILURE, **fields}]})


NO_OUTCOME = "is no outcome of a check"

OUTCOMES: Mapping[str, tuple[Make, str]] = {
    "empty": (as_outcome(""), "is not JSON"),
    "cut off": (as_outcome('{"format": "lockstep-outcome/1", "pa'), "is not JSON"),
    "another format": (as_outcome(format="lockstep-outcome/9"), "outcome.json"),
    "no pairs": (as_outcome(pairs=None), NO_OUTCOME),
    "pairs that are an object": (as_outcome(pairs={"a": 1}), NO_OUTCOME),
    "very many pairs": (as_outcome(pairs=[PAIR] * 501), NO_OUTCOME),
    "a pair that is a list": (as_outcome(pairs=[[]]), NO_OUTCOME),
    "a pair without a backend": (as_outcome(pairs=[{"kind": "kv"}]), NO_OUTCOME),
    "less than no programs": (as_outcome(pair={"programs": -1}), NO_OUTCOME),
    "programs beyond counting": (as_outcome(pair={"programs": 1 << 70}), NO_OUTCOME),
    "half a step": (as_outcome(pair={"steps": 0.5}), NO_OUTCOME),
    "NaN seconds": (as_outcome(seconds=float("nan")), "NaN is not a number of JSON"),
    "seconds before the start": (as_outcome(seconds=-5), NO_OUTCOME),
    "a seed in words": (as_outcome(seed=ESCAPES), NO_OUTCOME),
    "versions that are a list": (as_outcome(versions=[ESCAPES]), NO_OUTCOME),
    "a version that is none": (as_outcome(versions={ESCAPES: {}}), NO_OUTCOME),
    "a failure that is none": (as_outcome(pair={"failures": [ESCAPES]}), NO_OUTCOME),
    "a failure without a program": (with_failure(program=None), NO_OUTCOME),
    "a divergence that is none": (with_failure(divergence={}), NO_OUTCOME),
    "a step before the first": (
        with_failure(divergence={**FAILURE["divergence"], "step": -1}),
        NO_OUTCOME,
    ),
    "deep": (as_outcome("[" * DEEP), "is nested too deeply"),
    "a name twice": (as_outcome('{"pairs": [], "pairs": []}'), '"pairs" twice'),
    "one byte too many": (as_outcome(" " * (MAX_BYTES + 1)), "is too large"),
}


# --- files that are none ----------------------------------------------------------------


def make_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "p.json")
    return folder / "p.json"


def make_socket(folder: Path) -> Path:
    path = folder / "p.json"
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(".", os.O_RDONLY)
        os.chdir(folder)  # the path of a socket must be short
        server.bind("p.json")
        os.fchdir(here)
        os.close(here)
    return path


def make_loop(folder: Path) -> Path:
    (folder / "p.json").symlink_to("q.json")
    (folder / "q.json").symlink_to("p.json")
    return folder / "p.json"


def make_dangling(folder: Path) -> Path:
    (folder / "p.json").symlink_to("nothing.json")
    return folder / "p.json"


def make_folder(folder: Path) -> Path:
    (folder / "p.json").mkdir()
    return folder / "p.json"


def make_folder_of_loops(folder: Path) -> Path:
    make_loop(folder)
    (folder / "all").symlink_to(folder)
    return folder


def make_folder_of_pipes(folder: Path) -> Path:
    (folder / "running").mkdir()
    make_pipe(folder)
    make_pipe(folder / "running")
    return folder


def make_sparse(name: str) -> Make:
    def make(folder: Path) -> Path:
        path = folder / name
        with path.open("wb") as file:
            file.truncate(10 << 30)
        return path

    return make


def make_locked(folder: Path) -> Path:
    if os.geteuid() == 0:
        pytest.skip("root may read every file")
    path = as_file(TEXT)(folder)
    path.chmod(0)
    return path


FILES: Mapping[str, tuple[Make, str]] = {
    "nothing": (lambda folder: folder / "p.json", "there is no such file"),
    "a pipe": (make_pipe, "is a pipe or a device"),
    "a socket": (make_socket, "is a pipe or a device"),
    "a device without end": (lambda folder: Path("/dev/zero"), "is a pipe or a device"),
    "a device of nothing": (lambda folder: Path("/dev/null"), "is a pipe or a device"),
    "memory": (lambda folder: Path("/proc/self/mem"), "cannot be read"),
    "links in a circle": (make_loop, "cannot be read"),
    "a link to nothing": (make_dangling, "there is no such file"),
    "a file as a folder": (
        lambda folder: as_file(TEXT)(folder) / "p.json",
        "cannot be read",
    ),
    "a long name": (lambda folder: folder / ("a" * 300), "cannot be read"),
    "a long path": (lambda folder: folder / ("a/" * 3000), "cannot be read"),
    "a file of 10 GiB": (make_sparse("p.json"), "is too large"),
    "a zip of 10 GiB": (make_sparse("a.zip"), "is too large"),
    "a locked file": (make_locked, "cannot be read"),
    "a name with escape sequences": (as_file("{", f"{ESCAPES}.json"), "is not JSON"),
    "a name with line breaks": (as_file("{", "a\nlockstep: b\r.json"), "is not JSON"),
    "a name that is no text": (as_file("{", "\udcff\udcfe.json"), "is not JSON"),
}
FOLDERS: Mapping[str, tuple[Make, str]] = {
    "an empty folder": (make_folder, "no program file (.json, .jsonl) in this folder"),
    "links in a circle": (make_folder_of_loops, "no program file"),
    "pipes": (make_folder_of_pipes, "no program file"),
}


# --- drivers ----------------------------------------------------------------------------


def as_driver(script: str | bytes, mode: int = 0o755) -> Make:
    """A file that is started as a driver."""

    def make(folder: Path) -> Path:
        path = as_file(script, "driver")(folder)
        path.chmod(mode)
        return path

    return make


def answering(line: str) -> Make:
    """A driver that says one line whatever it is asked."""
    return as_driver(f"#!/bin/sh\nread request\ncat <<'EOF'\n{line}\nEOF\n")


HELLO = '{"id": 1, "protocol": 1, "name": "it", "contracts": {"layer": {"kv": %s}}}'

DRIVERS: Mapping[str, tuple[Make, str]] = {
    "no program": (as_driver("", 0o644), "cannot be executed; chmod +x"),
    "a folder": (make_folder, "p.json is a folder"),
    "empty": (as_driver(""), "no snippet"),
    "rubbish": (as_driver(b"\x7fELF" + bytes(100)), "no snippet"),
    "an interpreter that is not there": (as_driver("#!/nothing/sh\n"), "no snippet"),
    "ends at once": (as_driver("#!/bin/sh\nexit 3\n"), "exit status 3"),
    "dies": (as_driver("#!/bin/sh\nkill -SEGV $$\n"), "SIGSEGV"),
    "says nothing": (answering(""), "no snippet"),
    "no JSON": (answering("hello"), "no snippet"),
    "escape sequences": (answering(ESCAPES), "no snippet"),
    "words that do harm": (
        as_driver(f"#!/bin/sh\nprintf '%s\\n' '{ESCAPES}' >&2\nexit 1\n"),
        "no snippet",
    ),
    "NaN": (answering('{"id": NaN}'), "no snippet"),
    "deep": (answering("[" * DEEP), "no snippet"),
    "another question's answer": (answering('{"id": 7, "protocol": 1}'), "no snippet"),
    "a kind without operations": (answering(HELLO % "{}"), "no snippet"),
    "operations that are none": (
        answering(HELLO % f'{{"operations": ["{ESCAPES[1:5]}"]}}'),
        "no snippet",
    ),
    "a line without end": (
        as_driver("#!/bin/sh\nread request\nexec cat /dev/zero\n"),
        "bytes",
    ),
}


def list_cases() -> list[Any]:
    """The command, what it is given, and words of the line that it must print."""
    families = {
        "program": (PROGRAMS, ("trace",)),
        "zip": (ZIPS, ("replay", "--backend", CORRECT)),
        "file": (FILES, ("replay", "--backend", CORRECT)),
        "folder": (FOLDERS, ("replay", "--backend", CORRECT)),
        "outcome": (OUTCOMES, ("report", "--format", "markdown")),
        "snippet of": (FILES, ("snippet", "--backend", CORRECT)),
    }
    listed = []
    for family, (cases, command) in families.items():
        for name, (make, words) in cases.items():
            listed.append(pytest.param(command, make, words, id=f"{family}: {name}"))
    return listed


def list_files(folder: Path) -> list[tuple[str, int]]:
    """All below a folder, with sizes; links are not followed."""
    paths = sorted(folder.rglob("*"))
    return [(str(path), path.lstat().st_size) for path in paths]


def check_line(err: str, words: str) -> None:
    """One line that says what is wrong, in letters that do nothing else."""
    assert words in err
    assert err.startswith("lockstep: ")
    assert err.endswith("\n")
    assert err[:-1].isprintable()
    assert len(err) < 7000  # a path may have 4,096
    assert "Traceback" not in err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, beside that of the hostile file."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "here").mkdir()
    (tmp_path / "files").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.mark.parametrize("name", DRIVERS)
def test_a_hostile_driver_gives_one_line(here: Path, name: str) -> None:
    make, words = DRIVERS[name]
    path = make(here / "files")
    program = as_file(TEXT, "good.json")(here)
    before = list_files(here)
    arguments = ["snippet", str(program), "--backend", f"exec:{path}"]
    began = time.monotonic()
    ended = CliRunner().invoke(main, arguments)
    assert time.monotonic() - began < SECONDS
    assert (ended.exit_code, ended.stdout) == (2, "")
    check_line(ended.stderr, words)
    assert list_files(here) == before


@pytest.mark.parametrize(("command", "make", "words"), list_cases())
def test_a_hostile_file_gives_one_line(
    here: Path, command: tuple[str, ...], make: Make, words: str
) -> None:
    path = make(here / "files")
    before = list_files(here)
    began = time.monotonic()
    ended = CliRunner().invoke(main, [*command, str(path)])
    assert time.monotonic() - began < SECONDS
    assert ended.exit_code == 2
    assert ended.stdout == ""
    check_line(ended.stderr, words)
    assert list_files(here) == before


@pytest.mark.parametrize("program", [{}, {**GOOD, "config": {ESCAPES: 1}}])
def test_a_broken_failure_in_an_outcome_is_said_beside_the_report(
    here: Path, program: Any
) -> None:
    path = with_failure(program=program)(here / "files")
    ended = CliRunner().invoke(main, ["report", "--format", "markdown", str(path)])
    assert ended.exit_code == 2
    check_line(ended.stderr, "outcome.json")
    assert ended.stdout.replace("\n", "").isprintable()


def test_there_are_enough_of_them() -> None:
    cases = [*PROGRAMS, *ZIPS, *OUTCOMES, *FILES, *FOLDERS, *DRIVERS]
    assert len(cases) > 170


# --- processes --------------------------------------------------------------------------

MEMORY = 1 << 30
"""Bytes of address space that a command gets."""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, with bounded memory."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    return subprocess.run(
        [sys.executable, "-m", "harness.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=60,
        preexec_fn=limit,
    )


@pytest.mark.parametrize(
    ("family", "name"),
    [
        (PROGRAMS, "very many empty lists"),
        (PROGRAMS, "very many names, one twice"),
        (PROGRAMS, "a bomb"),
        (PROGRAMS, "millions of empty lines"),
        (ZIPS, "very many members"),
        (ZIPS, "a bomb of many members"),
        (FILES, "a file of 10 GiB"),
        (FILES, "a device without end"),
        (FILES, "a pipe"),
        (FILES, "a name that is no text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_memory_is_bounded(
    tmp_path: Path, family: Mapping[str, tuple[Make, str]], name: str
) -> None:
    make, words = family[name]
    (tmp_path / "files").mkdir()
    path = make(tmp_path / "files")
    before = list_files(tmp_path)
    ended = run(tmp_path, "replay", str(path), "--backend", CORRECT)
    assert (ended.returncode, ended.stdout) == (2, "")
    check_line(ended.stderr, words)
    assert list_files(tmp_path) == before


META: Mapping[str, Any] = {
    "backend": ESCAPES,
    "signature": ESCAPES,
    "versions": {ESCAPES: ESCAPES, "numpy": [1], "python": "2\n3"},
    "device": ESCAPES,
    "platform": {"a": 1},
    "step": 10**400,
    "what": [ESCAPES],
    "replay": "lockstep; rm -r .",
}


def test_what_a_program_says_of_itself_is_not_trusted(tmp_path: Path) -> None:
    """It agrees, whatever stands in its meta; what is printed of that does no harm."""
    (tmp_path / f"{ESCAPES}.json").write_text(json.dumps({**GOOD, "meta": META}))
    ended = subprocess.run(
        [sys.executable, "-m", "harness.cli", "replay", ".", "--backend", CORRECT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("FIXED")
    assert ended.stdout[:-1].isprintable()
    assert "python 2 3" in ended.stdout
