"""A failure in the terminal: readable without colours, on 80 columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from typing import Any

import pytest
from rich.console import Console

from lockstep.harness.execution.recording.picture import Chip, Grid, Row, Step
from lockstep.harness.reports.pages.gather import Stage, make_failure
from lockstep.harness.reports.pages.html import render_html
from lockstep.harness.reports.pages.terminal import Painter, get_bounds
from lockstep.harness.reports.pages.view import Played, ReportView
from tests.harness.building import SMALL, make, update
from tests.harness.commands import HERE
from tests.harness.pages.conftest import FAULTS, HOSTILE, save
from tests.harness.pages.markup import check
from tests.harness.pages.test_page_recorder import PADDED, RECORDED

Start = Callable[..., Stage]
FAULT = "rotating_chunk_mid_ring"


def show(
    saved: Any, stage: Stage, number: int | None = None, width: int = 80, **options: Any
) -> str:
    """Returns the printed text."""
    content = BytesIO()
    file = TextIOWrapper(content, "utf-8", errors="strict", newline="\n")
    console = Console(file=file, width=width, highlight=False, **options)
    view = make_failure(1, saved, stage, get_bounds(width))
    Painter(console).show(view, number)
    file.flush()
    return content.getvalue().decode()


def show_fault(name: str, stage: Start, **options: Any) -> str:
    pytest.importorskip("torch", reason="torch is not installed")
    backend = f"{FAULTS}:{name}"
    return show(save(RECORDED[name], backend), stage(backend), **options)


@pytest.mark.parametrize("options", [{}, {"number": 0}])
def test_a_failure_as_it_is_printed(
    stage: Start, options: dict[str, Any], snapshot: Any
) -> None:
    assert show_fault(FAULT, stage, **options) == snapshot


def test_padding_and_wide_masks_as_they_are_printed(stage: Start, snapshot: Any) -> None:
    backend = "tests.harness.padding:shows_padding"
    assert show(save(PADDED, backend), stage(backend)) == snapshot
    text = show(save(make(update(300))), stage())
    assert max(map(len, text.splitlines()[:-1])) <= 80
    assert "left out: 276 rows and 289 columns" in text


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("width", [80, 60])
def test_nothing_is_wider_than_the_terminal(stage: Start, name: str, width: int) -> None:
    *lines, replay = show_fault(name, stage, width=width).splitlines()[1:]
    assert replay.startswith("  lockstep replay ")
    assert max(map(len, lines)) <= width


def test_what_is_marked_is_no_matter_of_colour(stage: Start) -> None:
    plain = show_fault("window_off_by_one", stage)
    bright = show_fault(
        "window_off_by_one", stage, force_terminal=True, color_system="truecolor"
    )
    assert "\x1b" not in plain and "\x1b[" in bright
    assert re.sub(r"\x1b\[[0-9;]*m", "", bright) == plain


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


def test_text_of_a_file_has_no_effect_on_the_terminal(stage: Start) -> None:
    hostile = HOSTILE + "[bold]\x07\r\n"
    texts = dict.fromkeys(("signature", "what", "message"), hostile)
    saved = save(make(update(1)), hostile, step=0, **texts)
    text = show(saved, stage(), force_terminal=True, color_system=None)
    assert not {*"\x1b\x07\r"} & {*text}
    assert "[bold]" in text and "Only the reference is shown" in text


def test_a_backend_that_agrees_now(stage: Start) -> None:
    backend = f"{HERE}:correct"
    saved = save(make(update(1), **SMALL), backend, what="mask", message="wrong", step=0)
    text = " ".join(show(saved, stage(backend)).split())
    assert f"{backend} agrees now in every step; its file says: wrong" in text
    assert "mask: wrong" in text


def test_steps_that_are_left_out_are_counted(stage: Start) -> None:
    text = show(save(make(*[update(1)] * 90)), stage())
    assert "steps 8 to 57 are left out" in text
    assert "step 89: update with 1 token" in text


@pytest.mark.parametrize(
    ("numbers", "gap", "unreached"),
    [
        ((0, 1, 2, 3, 4), "", ""),
        ((0, 1, 2, 3), "", "1 more step was not reached"),
        ((0, 1, 2), "", "2 more steps were not reached"),
        ((0, 2, 3, 4), "step 1 is left out", ""),
        ((3, 4), "steps 0 to 2 are left out", ""),
    ],
)
def test_one_is_no_plural(numbers: list[int], gap: str, unreached: str) -> None:
    steps = [Step(number, "update") for number in numbers]
    view = replace(save(make(*[update(1)] * 5)), played=Played("diverges", steps))
    gaps = "".join(view.describe_gap(index) for index in range(len(steps)))
    assert (gaps, view.unreached) == (gap, unreached)
    page = check(render_html(ReportView([], [view], [])))
    assert gap in page.root.text and unreached in page.root.text
