"""Drivers that do harm, or are none."""

from __future__ import annotations

from pathlib import Path

from tests.harness.hostile.files import make_folder
from tests.harness.hostile.makers import ESCAPES, Cases, Make, as_file


def as_driver(script: str | bytes, mode: int = 0o755) -> Make:
    """A file that is started as a driver. What else one may answer is in `exec`."""

    def make(folder: Path) -> Path:
        path = as_file(script, "driver")(folder)
        path.chmod(mode)
        return path

    return make


def answering(line: str) -> Make:
    """A driver that says one line whatever it is asked."""
    return as_driver(f"#!/bin/sh\nread request\ncat <<'EOF'\n{line}\nEOF\n")


HELLO = '{"id": 1, "protocol": 1, "name": "it", "contracts": {"layer": {"kv": %s}}}'

DRIVERS: Cases = {
    "no program": (as_driver("", 0o644), "cannot be executed; chmod +x"),
    "a folder": (make_folder, "p.json is a folder"),
    "an interpreter that is not there": (as_driver("#!/nothing/sh\n"), "no snippet"),
    "escape sequences": (answering(ESCAPES), "no snippet"),
    "words that do harm": (
        as_driver(f"#!/bin/sh\nprintf '%s\\n' '{ESCAPES}' >&2\nexit 1\n"),
        "no snippet",
    ),
    "operations that are none": (
        answering(HELLO % f'{{"operations": ["{ESCAPES[1:5]}"]}}'),
        "no snippet",
    ),
    "a line without end": (
        as_driver("#!/bin/sh\nread request\nexec cat /dev/zero\n"),
        "bytes",
    ),
}
