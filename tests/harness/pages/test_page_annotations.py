"""Annotations: workflow commands of GitHub, one for each thing that went wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
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
from lockstep.harness.reports.pages.gather import gather
from lockstep.harness.reports.pages.view import make_report

PROGRAM = {
    "format": "lockstep/1",
    "contract": "layer",
    "config": {"kind": "kv"},
    "ops": [{"op": "update", "length": 2}, {"op": "trim", "count": 1}],
}
HARM = "a\n::set-output name=b::c\r%0A\x1b[2J,:"
COMMAND = re.compile(r"::(error|warning) title=([^:,\r\n]*)::([^\r\n]*)")


def make_failure(
    length: int = 2, message: str = "trimmed is 0, not 1", step: int = 1
) -> dict[str, Any]:
    ops = [{"op": "update", "length": length}, PROGRAM["ops"][1]]
    return {
        "signature": "layer-kv-trim-result",
        "path": "failures/layer-kv-trim-result/0.json",
        "program": {**PROGRAM, "ops": ops},
        "divergence": {
            "what": "result",
            "step": step,
            "operation": "trim",
            "message": message,
        },
    }


def make_outcome(
    failures: Sequence[Mapping[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    pair = {"backend": "mine", "contract": "layer", "kind": "kv", "programs": 5}
    pair = {**pair, "steps": 9, "failures": list(failures), **more.pop("pair", {})}
    outcome = {"format": "lockstep-outcome/1", "seed": 0, "seconds": 1.5}
    return {**outcome, "complete": True, "pairs": [pair], **more}


def render(folder: Path, outcome: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(level, title, message) of each line, as GitHub reads them."""
    (folder / "outcome.json").write_text(json.dumps(outcome))
    text = render_annotations(make_report(gather([folder]), None))
    assert text.endswith("\n") or not text
    found = [COMMAND.fullmatch(line) for line in text.split("\n")[:-1]]
    return [
        (match[1], unescape(match[2]), unescape(match[3])) for match in found if match
    ] + [("no command", "", text) for match in found if not match]


def unescape(text: str) -> str:
    for code, letter in {"%0A": "\n", "%0D": "\r", "%3A": ":", "%2C": ","}.items():
        text = text.replace(code, letter)
    return text.replace("%25", "%")


def test_nothing_is_said_of_what_agrees(tmp_path: Path) -> None:
    assert render(tmp_path, make_outcome()) == []


def test_a_failure_is_an_error_with_the_line_that_replays_it(tmp_path: Path) -> None:
    ((level, title, message),) = render(tmp_path, make_outcome([make_failure()]))
    assert (level, title) == ("error", "mine: layer-kv-trim-result")
    assert message == (
        "step 1: trimmed is 0, not 1\nlockstep replay"
        " failures/layer-kv-trim-result/0.json --backend mine"
    )


def test_what_could_not_be_checked_is_said(tmp_path: Path) -> None:
    pair = {"errors": ["it broke"], "outdated": ["entry: agrees now"]}
    more = {"dead": {"other": "SIGSEGV"}, "unavailable": {"third": "no torch"}}
    (tmp_path / "broken.json").write_text("{")
    lines = render(tmp_path, make_outcome(pair=pair, **more))
    assert lines[:3] == [
        ("error", "mine × kv", "it broke"),
        ("error", "mine × kv", "the ledger is outdated: entry: agrees now"),
        ("error", "other", "SIGSEGV"),
    ]
    assert lines[3][:2] == ("error", "lockstep")
    assert "broken.json: is not JSON" in lines[3][2]
    assert lines[4:] == [("warning", "lockstep", "third: not checked: no torch")]


def test_no_text_of_a_file_ends_a_line_or_begins_a_command(tmp_path: Path) -> None:
    failure = {**make_failure(message=HARM), "signature": HARM, "path": HARM}
    more = {"dead": {HARM: HARM}, "unavailable": {HARM: HARM}}
    outcome = make_outcome(
        [failure], pair={"backend": HARM, "errors": [HARM], "outdated": [HARM]}, **more
    )
    lines = render(tmp_path, outcome)
    assert [level for level, _, _ in lines] == ["error"] * 4 + ["warning"]
    assert "%0A" in lines[0][2]  # as it stood there, not as a break
    assert not any("\x1b" in part or "\r" in part for line in lines for part in line)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("a", "::error title=b::a\n"),
        ("50 %\nnext, here: yes", "::error title=b::50 %25%0Anext, here: yes\n"),
        ("%0A", "::error title=b::%250A\n"),
    ],
)
def test_how_a_command_is_written(message: str, line: str) -> None:
    assert write_command("error", "b", message) == line


def test_a_title_ends_where_it_should() -> None:
    assert write_command("error", "a:b,c%", "") == "::error title=a%3Ab%2Cc%25::\n"


@pytest.mark.parametrize(
    ("count", "shown"), [(1, 1), (MOST, MOST), (MOST + 1, MOST), (3 * MOST, MOST)]
)
def test_the_last_line_says_how_many_are_left_out(
    tmp_path: Path, count: int, shown: int
) -> None:
    failures = [make_failure(length) for length in range(1, count + 1)]
    lines = render(tmp_path, make_outcome(failures))
    assert len(lines) == shown
    said = [message for _, _, message in lines if "more; the summary" in message]
    left = [str(count - (MOST - 1))] if count > MOST else []
    assert [message.split()[0] for message in said] == left


def test_the_command_prints_them(tmp_path: Path) -> None:
    (tmp_path / "outcome.json").write_text(json.dumps(make_outcome([make_failure()])))
    ended = CliRunner().invoke(main, ["report", str(tmp_path), "--format", "github"])
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert COMMAND.fullmatch(ended.stdout.removesuffix("\n"))


def test_what_is_not_written_is_an_error(tmp_path: Path) -> None:
    missing = {"mask (mine.py:5) is not written yet": "update"}
    ((level, title, message),) = render(
        tmp_path, make_outcome(pair={"missing": missing}, exit_status=2)
    )
    assert (level, title) == ("error", "mine × kv")
    assert message == "mask (mine.py:5) is not written yet; update needs it"
