"""The page: one file that needs no other and asks nobody."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from lockstep.harness import __version__
from lockstep.harness.core.errors import make_printable
from lockstep.harness.execution.recording.picture import EXTRA, HIDDEN, MISSING, SEEN
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
    return (
        resources.files("lockstep.harness.reports.pages")
        .joinpath(name)
        .read_text(encoding="utf-8")
    )


def make_policy(style: str, script: str) -> str:
    """Nothing is fetched, and no other style or script runs than these two."""
    return (
        "default-src 'none'; img-src data:;"
        f" style-src '{hash_text(style)}'; script-src '{hash_text(script)}'"
    )


def hash_text(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
