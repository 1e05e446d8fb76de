"""The page: one file that needs no other and asks nobody."""

from __future__ import annotations

import base64
import hashlib
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from lockstep.harness import __version__
from lockstep.harness.core.errors import UsageError, make_printable
from lockstep.harness.execution.recording.picture import EXTRA, HIDDEN, MISSING, SEEN
from lockstep.harness.programs.words import format_outcome
from lockstep.harness.reports.model import PairSummary, make_matrices
from lockstep.harness.reports.pages.view import ReportView

GENERATOR = f"Lockstep {__version__}"

SIGNS = {SEEN: "■", HIDDEN: "·", MISSING: "−", EXTRA: "+", " ": ""}
CLASSES = {SEEN: "s", HIDDEN: "n", MISSING: "m", EXTRA: "x", " ": "g"}
SAYINGS = {MISSING: "should see", EXTRA: "must not see"}
STATUSES = {"agrees": "agrees now", "recorded": "not run here"}


def render_html(report: ReportView) -> str:
    """The whole page. All that comes from a file is escaped."""
    style, script = read_resource("page.css"), read_resource("page.js")
    failures = report.failures

    def find_failure(pair: PairSummary) -> int | None:
        """The first failure of a pair that is on the page."""
        for failure in failures:
            own = failure.saved.backend, failure.saved.program.kind
            if own == (pair.backend, pair.kind):
                return failure.number
        return None

    return get_template().render(
        report=report,
        generator=GENERATOR,
        policy=make_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        signs=SIGNS,
        classes=CLASSES,
        sayings=SAYINGS,
        statuses=STATUSES,
        find_failure=find_failure,
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
    """Text with a dot for each letter that does not print: some of them turn the
    direction of what follows."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(map(make_printable, value.split("\n")))


def read_resource(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def make_policy(style: str, script: str) -> str:
    """Nothing is fetched, and no other style or script runs than these two."""
    return (
        "default-src 'none'; img-src data:;"
        f" style-src '{hash_text(style)}'; script-src '{hash_text(script)}'"
    )


def hash_text(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


# --- a report into a folder: our files, and no other ------------------------------------


SIGN = "Lockstep"
"""Stands near the beginning of every file of ours."""

LOOKED_AT = 2000


def save_page(folder: Path, name: str, text: str) -> Path:
    """Writes folder/name, whole or not at all. Raises UsageError for a folder that cannot
    be made or written, and for a file there that is not ours."""
    path = folder / name
    draft = folder / f".{name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if is_foreign(path):
            raise UsageError(
                f"{path}: is there already and is no report of ours; choose another"
                " folder with -o"
            )
        draft.unlink(missing_ok=True)  # of one that was killed
        try:
            with draft.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
            draft.replace(path)
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
    except FileExistsError:
        raise UsageError(f"{folder}: is a file; -o takes a folder") from None
    except NotADirectoryError:
        raise UsageError(f"{folder}: lies below a file; -o takes a folder") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def is_foreign(path: Path) -> bool:
    """Whether something of this name is there that no report has written."""
    if not path.exists() and not path.is_symlink():
        return False
    if not path.is_file() or path.is_symlink():
        return True
    with path.open("rb") as file:
        return SIGN.encode() not in file.read(LOOKED_AT)
