"""The summary in Markdown and the annotations of GitHub: short, and nothing in them is
markup or a command but ours."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.programs.program import Program
from lockstep.harness.reports.pages import markdown
from lockstep.harness.reports.pages.gather import make_report
from lockstep.harness.reports.pages.markdown import (
    MOST,
    MOST_BYTES,
    render_annotations,
    render_markdown,
)
from tests.harness.building import make, update
from tests.harness.commands import Run
from tests.harness.pages.conftest import (
    HOSTILE,
    gather_outcome,
    make_failure,
    make_outcome,
    save,
)
from tests.harness.pages.test_page_recorder import RING


def render(*saved: Any, more: dict[str, Any] | None = None, **pair: Any) -> str:
    material = gather_outcome(make_outcome(more, **pair), *saved)
    return render_markdown(make_report(material, None))


def test_the_whole_summary(snapshot: Any) -> None:
    facts = {"signature": "layer-rotating-update-contents", "what": "contents", "step": 1}
    message = "row 0 sees token 4, but should see tokens 3, 4 (3 is missing)"
    assert render(save(RING, "mine:make", message=message, **facts)) == snapshot


def strip_code(text: str) -> str:
    """Removes blocks and spans of code from a text."""
    text = re.sub(r"^(`{3,})[a-z]*\n.*?^\1$", "", text, flags=re.M | re.S)
    return re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)


def test_nothing_from_a_file_is_markup() -> None:
    hostile = f"``` ` {HOSTILE}\n# head | cell\n```\n</details> *bold* ``````"
    program = make(update(1))
    said = dict.fromkeys(("signature", "what", "message"), hostile)
    named = dict.fromkeys(("backend", "kind", "contract"), hostile)
    cells = {"reachable": 9, "empty": {hostile: [hostile]}}
    text = render(
        save(program, hostile, step=0, **said), **named, errors=[hostile], cells=cells
    )
    left = strip_code(text)
    for word in ("script", "head", "bold", "img", "alert"):
        assert word in text
        assert word not in left
    assert left.count("</details>") == 1
    for line in text.split("\n"):
        if line.startswith("|"):
            assert line.count("|") == 3


def test_it_is_bounded() -> None:
    programs = [make(*[update(1)] * n) for n in range(1, 390)]
    saved = [save(program, "b" * 290, message="m" * 900) for program in programs]
    text = render(*saved)
    assert MOST_BYTES - 5000 < len(text.encode()) <= MOST_BYTES + 100
    (left,) = re.findall(r"^(\d+) more failures are left out\.$", text, re.M)
    assert text.count("\n### ") + int(left) == len(saved)


def test_long_programs_lose_their_beginning() -> None:
    program = Program(RING.contract, RING.config, list(RING.ops) * 40)
    text = render(save(program, step=79))
    assert "  steps 0 to 55 are left out\n  step 56" in text
    assert "→ step 79" in text


def test_many_lines_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    text = render(errors=[f"error {n}" for n in range(markdown.MOST_LINES + 5)])
    assert "* 6 more" in text  # a backend is unavailable, too


@pytest.mark.parametrize(
    ("pair", "more", "headline"),
    [
        ({"missing": {"trim is not written yet": "trim"}}, {}, "unfinished"),
        ({}, {"dead": {"mine": "SIGSEGV"}}, "no failure, but not all agree"),
        ({}, {"exit_status": 2}, "no failure, but not all agree"),
    ],
)
def test_what_is_not_run_does_not_agree(
    pair: dict[str, Any], more: dict[str, Any], headline: str
) -> None:
    assert render(more=more, **pair).startswith(f"## Lockstep: {headline}\n")
    failing = render(save(RING, "mine:make"), more=more, **pair)
    assert failing.startswith("## Lockstep: ✗ 1 failure\n")


HARM = "a\n::set-output name=b::c\r%0A\x1b[2J,:"
COMMAND = re.compile(r"::(error|warning) title=([^:,\r\n]*)::([^\r\n]*)")
ALONE: Mapping[str, Any] = {"unavailable": {}}


def fail(length: int = 2, message: str = "m", **more: Any) -> dict[str, Any]:
    return make_failure(make(update(length)), message, **more)


def annotate(outcome: Mapping[str, Any], *broken: str) -> list[tuple[str, str, str]]:
    """(level, title, message) of each line, as GitHub reads them."""
    material = gather_outcome(outcome)
    material.broken += broken
    text = render_annotations(make_report(material, None))
    assert text.endswith("\n") or not text
    found = [COMMAND.fullmatch(line) for line in text.split("\n")[:-1]]
    assert None not in found, text
    return [(one[1], unescape(one[2]), unescape(one[3])) for one in found if one]


def unescape(text: str) -> str:
    for written, letter in {"%0A": "\n", "%0D": "\r", "%3A": ":", "%2C": ","}.items():
        text = text.replace(written, letter)
    return text.replace("%25", "%")


def test_everything_that_went_wrong_is_an_annotation(snapshot: Any) -> None:
    pair = {
        "failures": [fail(message="row 0 sees nothing")],
        "missing": {"mask (mine.py:5) is not written yet": "update"},
        "errors": ["it broke"],
        "outdated": ["entry: agrees now"],
    }
    more = {"dead": {"other": "SIGSEGV"}, "unavailable": {"third": "no torch"}}
    assert annotate(make_outcome(more, backend="mine", **pair), "b.json: bad") == snapshot
    assert annotate(make_outcome(ALONE)) == []


def test_no_text_of_a_file_ends_a_line_or_begins_a_command() -> None:
    failure = fail(message=HARM, signature=HARM, path=HARM)
    more = {"dead": {HARM: HARM}, "unavailable": {HARM: HARM}}
    pair = {"backend": HARM, "errors": [HARM], "outdated": [HARM]}
    lines = annotate(make_outcome(more, failures=[failure], **pair))
    assert [level for level, _, _ in lines] == ["error"] * 4 + ["warning"]
    assert "%0A" in lines[0][2]  # as it stood there, not as a break
    assert not any("\x1b" in part or "\r" in part for line in lines for part in line)


@pytest.mark.parametrize(
    ("count", "shown"), [(1, 1), (MOST, MOST), (MOST + 1, MOST), (3 * MOST, MOST)]
)
def test_the_last_line_says_how_many_are_left_out(count: int, shown: int) -> None:
    failures = [fail(length) for length in range(1, count + 1)]
    lines = annotate(make_outcome(ALONE, failures=failures))
    assert len(lines) == shown
    said = [message for _, _, message in lines if "more; the summary" in message]
    left = [str(count - (MOST - 1))] if count > MOST else []
    assert [message.split()[0] for message in said] == left


def test_the_command_prints_them(run: Run) -> None:
    Path("outcome.json").write_text(json.dumps(make_outcome(ALONE, failures=[fail()])))
    ended = run("report", ".", "--format", "github")
    assert (ended.status, ended.err) == (0, "")
    assert COMMAND.fullmatch(ended.out.removesuffix("\n"))
