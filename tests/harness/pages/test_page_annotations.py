"""Annotations: workflow commands of GitHub, one for each thing that went wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep.harness.cli.main import main
from lockstep.harness.reports.pages.annotations import (
    MOST,
    render_annotations,
    write_command,
)
from lockstep.harness.reports.pages.view import make_report
from tests.harness.building import make, update
from tests.harness.pages.conftest import (
    gather_outcome,
    make_failure,
    make_outcome,
)

HARM = "a\n::set-output name=b::c\r%0A\x1b[2J,:"
COMMAND = re.compile(r"::(error|warning) title=([^:,\r\n]*)::([^\r\n]*)")
ALONE: Mapping[str, Any] = {"unavailable": {}}


def fail(length: int = 2, message: str = "m", **more: Any) -> dict[str, Any]:
    return make_failure(make(update(length)), message, **more)


def render(outcome: Mapping[str, Any], *broken: str) -> list[tuple[str, str, str]]:
    """(level, title, message) of each line, as GitHub reads them."""
    material = gather_outcome(outcome)
    material.broken += broken
    text = render_annotations(make_report(material, None))
    assert text.endswith("\n") or not text
    found = [COMMAND.fullmatch(line) for line in text.split("\n")[:-1]]
    assert None not in found, text
    return [(one[1], unescape(one[2]), unescape(one[3])) for one in found if one]


def unescape(text: str) -> str:
    for code, letter in {"%0A": "\n", "%0D": "\r", "%3A": ":", "%2C": ","}.items():
        text = text.replace(code, letter)
    return text.replace("%25", "%")


def test_nothing_is_said_of_what_agrees() -> None:
    assert render(make_outcome(ALONE)) == []


def test_everything_that_went_wrong_is_said() -> None:
    """A failure with the line that replays it, what is unfinished or did not run."""
    pair = {
        "failures": [fail(message="row 0 sees nothing")],
        "missing": {"mask (mine.py:5) is not written yet": "update"},
        "errors": ["it broke"],
        "outdated": ["entry: agrees now"],
    }
    more = {"dead": {"other": "SIGSEGV"}, "unavailable": {"third": "no torch"}}
    replay = "lockstep replay failures/x/f.json --backend mine"
    missing = "mask (mine.py:5) is not written yet; update needs it"
    assert render(make_outcome(more, backend="mine", **pair), "b.json: bad") == [
        (
            "error",
            "mine: layer-kv-update-contents",
            f"step 0: row 0 sees nothing\n{replay}",
        ),
        ("error", "mine × kv", missing),
        ("error", "mine × kv", "it broke"),
        ("error", "mine × kv", "the ledger is outdated: entry: agrees now"),
        ("error", "other", "SIGSEGV"),
        ("error", "lockstep", "b.json: bad"),
        ("warning", "lockstep", "third: not checked: no torch"),
    ]


def test_no_text_of_a_file_ends_a_line_or_begins_a_command() -> None:
    failure = fail(message=HARM, signature=HARM, path=HARM)
    more = {"dead": {HARM: HARM}, "unavailable": {HARM: HARM}}
    pair = {"backend": HARM, "errors": [HARM], "outdated": [HARM]}
    lines = render(make_outcome(more, failures=[failure], **pair))
    assert [level for level, _, _ in lines] == ["error"] * 4 + ["warning"]
    assert "%0A" in lines[0][2]  # as it stood there, not as a break
    assert not any("\x1b" in part or "\r" in part for line in lines for part in line)


@pytest.mark.parametrize(
    ("title", "message", "line"),
    [
        ("b", "a", "::error title=b::a\n"),
        ("b", "50 %\nnext, here: yes", "::error title=b::50 %25%0Anext, here: yes\n"),
        ("b", "%0A", "::error title=b::%250A\n"),
        ("a:b,c%", "", "::error title=a%3Ab%2Cc%25::\n"),
    ],
)
def test_how_a_command_is_written(title: str, message: str, line: str) -> None:
    assert write_command("error", title, message) == line


@pytest.mark.parametrize(
    ("count", "shown"), [(1, 1), (MOST, MOST), (MOST + 1, MOST), (3 * MOST, MOST)]
)
def test_the_last_line_says_how_many_are_left_out(count: int, shown: int) -> None:
    failures = [fail(length) for length in range(1, count + 1)]
    lines = render(make_outcome(ALONE, failures=failures))
    assert len(lines) == shown
    said = [message for _, _, message in lines if "more; the summary" in message]
    left = [str(count - (MOST - 1))] if count > MOST else []
    assert [message.split()[0] for message in said] == left


def test_the_command_prints_them(tmp_path: Path) -> None:
    outcome = make_outcome(ALONE, failures=[fail()])
    (tmp_path / "outcome.json").write_text(json.dumps(outcome))
    ended = CliRunner().invoke(main, ["report", str(tmp_path), "--format", "github"])
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert COMMAND.fullmatch(ended.stdout.removesuffix("\n"))
