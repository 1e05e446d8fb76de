"""The summary in Markdown: short, and nothing in it is markup but ours."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lockstep.harness.programs.program import Program
from lockstep.harness.reports.pages import markdown
from lockstep.harness.reports.pages.gather import make_report
from lockstep.harness.reports.pages.markdown import (
    MOST_BYTES,
    render_markdown,
)
from tests.harness.building import make, update
from tests.harness.pages.conftest import (
    HOSTILE,
    gather_outcome,
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
