"""Renders a report as a single HTML file, which makes no requests."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from lockstep.harness import __version__
from lockstep.harness.core.document import write_whole
from lockstep.harness.core.errors import UsageError, make_printable
from lockstep.harness.execution.recording.picture import EXTRA, HIDDEN, MISSING, SEEN
from lockstep.harness.programs.words import format_outcome
from lockstep.harness.reports.model import format_missed, make_matrices
from lockstep.harness.reports.outcome_file import PairSummary
from lockstep.harness.reports.pages.view import SIGNS, ReportView

GENERATOR = f"Lockstep {__version__}"

CLASSES = {SEEN: "s", HIDDEN: "n", MISSING: "m", EXTRA: "x", " ": "g"}
SAYINGS = {MISSING: "should see", EXTRA: "must not see"}
STATUSES = {"agrees": "agrees now", "recorded": "not run here"}


def render_html(report: ReportView) -> str:
    """Renders the page; text from files is escaped."""
    style, script = read_resource("page.css"), read_resource("page.js")

    def find_failure(pair: PairSummary) -> int | None:
        """Returns the number of the pair's first failure on the page."""
        numbers = [
            failure.number
            for failure in report.failures
            if failure.backend == pair.backend and failure.program.kind == pair.kind
        ]
        return numbers[0] if numbers else None

    return get_template().render(
        report=report,
        generator=GENERATOR,
        policy=make_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        signs={**SIGNS, " ": ""},
        classes=CLASSES,
        sayings=SAYINGS,
        statuses=STATUSES,
        find_failure=find_failure,
        format_missed=format_missed,
        format_outcome=format_outcome,
        matrices=make_matrices(report.outcomes),
    )


@cache
def get_template() -> Template:
    environment = Environment(
        autoescape=True,
        finalize=make_readable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    return environment.from_string(read_resource("page.html"))


def make_readable(value: Any) -> Any:
    """Replaces each unprintable character of a text by a dot.

    Some unprintable characters would reverse the direction of the text after them.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(map(make_printable, value.split("\n")))


def read_resource(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def make_policy(style: str, script: str) -> str:
    """Returns a content security policy. It forbids all requests, and all styles and
    scripts other than the given ones."""
    return (
        "default-src 'none'; img-src data:;"
        f" style-src '{hash_text(style)}'; script-src '{hash_text(script)}'"
    )


def hash_text(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


# --- the file ---------------------------------------------------------------------------


SIGN = "Lockstep"
"""A word near the beginning of each of our files."""

HEAD_BYTES = 2000


def save_page(folder: Path, name: str, text: str) -> Path:
    """Writes folder/name, atomically.

    Raises:
        UsageError: the folder is not writable, or the existing file is not a report.
    """
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if is_foreign(path):
            raise UsageError(
                f"{path}: exists and is not a report; choose another folder with -o"
            )
        write_whole(path, text)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(
            f"{folder}: this, or a folder above it, is a file; give a folder with -o"
        ) from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def is_foreign(path: Path) -> bool:
    """Returns whether the path exists and is not one of our reports."""
    if not path.exists() and not path.is_symlink():
        return False
    if not path.is_file() or path.is_symlink():
        return True
    with path.open("rb") as file:
        return SIGN.encode() not in file.read(HEAD_BYTES)
