"""A failure in the terminal: readable without colours, on 80 columns, in ASCII."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any

import pytest
from rich.console import Console

from lockstep.harness.execution.recording.picture import Chip, Grid, Row, Step
from lockstep.harness.reports.pages.gather import Stage
from lockstep.harness.reports.pages.html import render_html
from lockstep.harness.reports.pages.terminal import Painter, get_bounds
from lockstep.harness.reports.pages.view import (
    FailureView,
    Played,
    ReportView,
    make_failure,
)
from tests.harness.building import SMALL, make, update
from tests.harness.commands import HERE
from tests.harness.pages.conftest import FAULTS, HOSTILE, save
from tests.harness.pages.markup import check
from tests.harness.pages.test_page_recorder import PADDED, RECORDED

Start = Callable[..., Stage]


def show(
    saved: Any, stage: Stage, number: int | None = None, encoding: str = "utf-8",
    width: int = 80, **options: Any,
) -> str:  # fmt: skip
    """Returns the printed text."""
    content = BytesIO()
    file = TextIOWrapper(content, encoding, errors="strict", newline="\n")
    console = Console(file=file, width=width, highlight=False, **options)
    view = make_failure(1, saved, stage, get_bounds(width))
    Painter(console).show(view, number)
    file.flush()
    return content.getvalue().decode(encoding)


def show_fault(name: str, stage: Start, **options: Any) -> str:
    pytest.importorskip("torch", reason="torch is not installed")
    backend = f"{FAULTS}:{name}"
    return show(save(RECORDED[name], backend), stage(backend), **options)


def test_all_that_is_shown(stage: Start) -> None:
    text = show_fault("rotating_chunk_mid_ring", stage)
    assert (
        text
        == """\
✗ lockstep.impl.faults.torch:rotating_chunk_mid_ring layer-rotating-update-contents
  rotating cache, window 2
    step 0: update with 4 tokens
  → step 1: update with 2 tokens
  contents: row 0 sees token 4, but should see tokens 3, 4 (3 is missing)
  token 3 was written in step 0 at position 3

  step 1: update with 2 tokens
  offset 6
  the reference holds: (0@0) (1@1) (2@2) (3@3) 4@4 5@5
  the backend returned: 4@4 5@5
            4   5  3?
  ✗ row 0   ■   ·   −
    row 1   ■   ■   ·
  ■ seen; · not seen; − missing; + too much; (N@P) token N at position P, which
      need not be kept; N? token N did not come back
  lockstep replay failures/x/f.json --backend
"""[:-1]
        + " lockstep.impl.faults.torch:rotating_chunk_mid_ring\n"
    )


def test_in_ascii(stage: Start) -> None:
    text = show_fault("rotating_chunk_mid_ring", stage, encoding="ascii")
    assert text.isascii()
    assert "  x row 0   #   .   -\n    row 1   #   #   .\n" in text
    assert "\n  > step 1: update with 2 tokens\n" in text


def test_another_step(stage: Start) -> None:
    text = show_fault("rotating_chunk_mid_ring", stage, number=0)
    assert "  step 0: update with 4 tokens\n  offset 4\n" in text
    assert "    row 3   ·   ·   ■   ■\n" in text
    assert "✗ row" not in text


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("width", [80, 60])
def test_nothing_is_wider_than_the_terminal(stage: Start, name: str, width: int) -> None:
    *lines, replay = show_fault(name, stage, width=width).splitlines()
    assert replay.startswith("  lockstep replay ")  # stays one line, to be copied
    head = lines.pop(0)
    assert head.startswith("✗ ")
    assert max(map(len, lines)) <= width


def test_what_is_marked_is_no_matter_of_colour(stage: Start) -> None:
    """With colours and without, the letters are the same; without, there is no code."""
    plain = show_fault("window_off_by_one", stage)
    bright = show_fault(
        "window_off_by_one", stage, force_terminal=True, color_system="truecolor"
    )
    assert "\x1b" not in plain
    assert "\x1b[" in bright
    assert re.sub(r"\x1b\[[0-9;]*m", "", bright) == plain


def test_padding_of_a_batch_has_short_names(stage: Start) -> None:
    backend = "tests.harness.padding:shows_padding"
    text = show(save(PADDED, backend), stage(backend))
    assert "p1.0    5    6    7" in text
    assert "✗ query 0    +    ■    ·    ·" in text
    assert "row 1, query 0 sees pad 1.0, 5, but should see token 5" in text
    assert "pR.C padding: row R, column C" in text


def test_wide_masks_are_cut_to_the_terminal(stage: Start) -> None:
    text = show(save(make(update(300))), stage())
    assert max(map(len, text.splitlines()[:-1])) <= 80
    assert "left out: 276 rows and 289 columns" in text


def test_wide_columns_come_in_blocks() -> None:
    """Tags of four digits that stand twice."""
    chips = [Chip(str(1000 + n // 2), "", 1000 + n // 2, 2000 + n) for n in range(30)]
    rows = (Row("row 0", "s" * 29 + "m"), Row("row 1", "n" * 30))
    grid = Grid("", tuple(chips), rows, True, wrong=1)
    with (console := Console(width=80, highlight=False)).capture() as capture:
        Painter(console).draw_grid(grid)
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= 80
    heads, firsts = (" ".join(lines[n::3]).split() for n in (0, 1))
    assert heads == [f"{1000 + n // 2}@{2000 + n}" for n in range(30)]
    assert [sign for sign in firsts if sign in "■−"] == ["■"] * 29 + ["−"]


def test_what_a_file_says_does_nothing_to_the_terminal(stage: Start) -> None:
    program = make(update(1))
    hostile = HOSTILE + "[bold]\x07\r\n"
    saved = save(
        program, hostile, signature=hostile, what=hostile, message=hostile, step=0
    )
    text = show(saved, stage(), force_terminal=True, color_system=None)
    assert "\x1b" not in text and "\x07" not in text and "\r" not in text
    assert "[bold]" in text
    assert "Only the reference is shown" in text


def test_a_backend_that_agrees_now(stage: Start) -> None:
    backend = f"{HERE}:correct"
    program = make(update(1), **SMALL)
    saved = save(program, backend, what="mask", message="wrong in some way", step=0)
    text = show(saved, stage(backend))
    assert f"{backend} agrees now in every step" in " ".join(text.split())
    assert "mask: wrong in some way" in text


def test_steps_that_are_left_out_are_said(stage: Start) -> None:
    program = make(*[update(1)] * 90)
    text = show(save(program), stage())
    assert "steps 8 to 57 are left out" in text
    assert "step 89: update with 1 token" in text


@pytest.mark.parametrize(
    ("numbers", "gap", "unreached"),
    [
        ((0, 1, 2, 3, 4), None, None),
        ((0, 1, 2, 3), None, "1 more step was not reached"),
        ((0, 1, 2), None, "2 more steps were not reached"),
        ((0, 2, 3, 4), "step 1 is left out", None),
        ((3, 4), "steps 0 to 2 are left out", None),
    ],
)
def test_one_is_no_plural(
    numbers: Sequence[int], gap: str | None, unreached: str | None
) -> None:
    """In the terminal, and on the page."""
    steps = [Step(number, "update", parts_left_out=1) for number in numbers]
    view = FailureView(1, save(make(*[update(1)] * 5)), Played("diverges", steps))
    page = check(render_html(ReportView([], [view], [])))
    printed = StringIO()
    Painter(Console(file=printed, width=80)).show(view, None)
    for text in (page.root.text, printed.getvalue()):
        assert "1 more cache is not shown" in text
        assert ("left out" in text, "not reached" in text) == (bool(gap), bool(unreached))
        assert (gap or "") in text and (unreached or "") in text
