"""Sets of vectors that are none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.harness.hostile.files import make_dangling, make_pipe, make_sparse
from tests.harness.hostile.makers import DEEP, ESCAPES, TEXT, Cases, Make, as_file

EMPTY = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}


def as_set(text: str | None = None, files: Mapping[str, Any] | None = None) -> Make:
    """A set whose manifest names these files, none of which is there."""
    head = {"format": "lockstep-vectors/1", "lockstep": "0.1.0", "size": "small"}
    manifest = json.dumps({**head, "files": files or {}}) if text is None else text

    def make(folder: Path) -> Path:
        as_file(manifest, "manifest.json")(folder)
        return folder

    return make


def with_file(make: Make | None = None, name: str = "p.json", **fields: Any) -> Make:
    """A set that names a file, with what `make` makes in its place."""

    def make_set(folder: Path) -> Path:
        if make:
            make(folder)
        return as_set(files={name: {**EMPTY, **fields}})(folder)

    return make_set


def make_linked(folder: Path) -> Path:
    (folder / "manifest.json").symlink_to("/dev/zero")
    return folder


def make_unnamed(folder: Path) -> Path:
    as_file("", "more.json")(folder)
    return as_set()(folder)


SETS: Cases = {
    "no folder": (lambda folder: folder / "nothing", "there is no such"),
    "a file": (as_file(TEXT), "p.json"),
    "an empty folder": (lambda folder: folder, "manifest.json"),
    "a link for a manifest": (make_linked, "is a link"),
    "an empty manifest": (as_set(""), "is not JSON"),
    "a deep manifest": (as_set("[" * DEEP), "is nested too deeply"),
    "a large manifest": (as_set(" " * (5 << 20)), "is too large"),
    "a file that climbs": (with_file(name="../p.json"), "manifest.json"),
    "a file with escape sequences": (with_file(name=ESCAPES), "manifest.json"),
    "a file beyond all disks": (with_file(bytes=1 << 70), "manifest.json"),
    "a sum that is none": (with_file(sha256="x"), "manifest"),
    "a file that is a pipe": (with_file(make_pipe), "p.json"),
    "a file that is a link": (with_file(make_dangling), "p.json"),
    "a file that is larger": (with_file(as_file(TEXT)), "p.json"),
    "a file of 10 GiB": (with_file(make_sparse("p.json"), bytes=64 << 20), "p.json"),
    "a file with another sum": (with_file(as_file(TEXT), bytes=len(TEXT)), "p.json"),
    "a file that is not named": (make_unnamed, "more.json"),
}
