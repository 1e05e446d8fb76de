"""The page: whole, with all that is marked, without anything from outside."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.execution.recording.picture import Bounds, Grid
from lockstep.harness.programs.program import Program, parse_program
from lockstep.harness.reports.pages import html
from lockstep.harness.reports.pages.gather import (
    MOST_PLAYED,
    Material,
    Stage,
    gather,
    make_report,
)
from lockstep.harness.reports.pages.html import render_html
from lockstep.harness.reports.pages.view import FailureView, ReportView, read_saved
from tests.harness.building import SMALL, make, update
from tests.harness.commands import HERE
from tests.harness.pages.conftest import (
    FAULTS,
    HOSTILE,
    gather_outcome,
    make_failure,
    make_outcome,
    save,
)
from tests.harness.pages.markup import check
from tests.harness.pages.test_page_recorder import RECORDED

Start = Callable[..., Stage]

LEDGER = Path(__file__).parents[3] / "impl" / "peers" / "ledger"


def list_grids(views: Sequence[FailureView]) -> Iterator[Grid]:
    for view in views:
        for step in view.played.steps:
            for part in step.parts:
                yield from part.grids


@pytest.fixture
def report(stage: Start) -> ReportView:
    """All recorded mistakes, and an outcome."""
    pytest.importorskip("torch", reason="torch is not installed")
    saved = [save(program, f"{FAULTS}:{name}") for name, program in RECORDED.items()]
    given = [f"{FAULTS}:{name}" for name in RECORDED]
    return make_report(gather_outcome(make_outcome(), *saved), stage(*given))


def test_every_square_that_differs_is_marked_on_the_page(report: ReportView) -> None:
    page = check(render_html(report))
    squares = Counter(
        "".join(r.squares for g in list_grids(report.failures) for r in g.rows)
    )
    shown = Counter(c for cell in page.root.find("td") for c in cell.classes)
    assert squares["m"] and squares["x"]
    for code in "snmx":
        assert shown[code] == squares[code]
    for cell in page.root.find("td", "m"):
        assert cell.text == "−" and "should see" in str(cell.attributes["title"])
    for cell in page.root.find("td", "x"):
        assert cell.text == "+" and "must not see" in str(cell.attributes["title"])
    rows = page.root.find("tr", "wrong")
    assert len(rows) == sum(
        r.is_wrong for g in list_grids(report.failures) for r in g.rows
    )


def test_what_a_failure_shows_and_the_matrix(report: ReportView, snapshot: Any) -> None:
    page = check(render_html(report))
    first = page.root.find("article")[0]
    steps = first.find("details", "step")
    shown = [("open" in step.attributes, "here" in step.classes) for step in steps]
    assert shown == [(False, False), (True, True)]
    held, returned = (strip.find("li") for strip in steps[1].find("div", "strip"))
    assert [chip.attributes["data-t"] for chip in held] == list("012345")
    assert [chip.attributes["data-t"] for chip in returned] == ["4", "5"]
    assert all(chip.attributes["tabindex"] == "0" for chip in held)
    *_, program = (code.text for code in first.find("code"))
    digest = RECORDED["rotating_chunk_mid_ring"].digest()
    assert parse_program(json.loads(program), "page").digest() == digest
    assert " ".join(first.text.split()) == snapshot(name="failure")
    tables = page.root.find("table", "matrix") + page.root.find("table", "numbers")
    assert [" ".join(table.text.split()) for table in tables] == snapshot(name="tables")
    for words in ("2 cells", "wrapped × trim, free"):
        assert f"never reached: {words}" in page.root.text
    assert "mlx-gpu: not checked: there is no GPU" in page.root.text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"outdated": ["old entry"]}, "✗ diverges"),
        ({"errors": ["it died"]}, "! ERROR"),
        ({"programs": 60}, "… 60"),
    ],
)
def test_what_a_pair_has_come_to(more: dict[str, Any], words: str) -> None:
    view = make_report(gather_outcome(make_outcome(**more)), None)
    (cell,) = check(render_html(view)).root.find("table", "matrix")[0].find("td")
    assert cell.text == words
    assert view.headline == "no failure, but not all agree"


def test_a_driver_stands_in_the_matrix_by_its_own_name() -> None:
    """Two drivers of one name stay apart by what the user has typed."""
    rows = []
    for path in ("exec:./driver", "exec:./other"):
        view = make_report(
            gather_outcome(make_outcome(backend=path, own_name="my-engine")), None
        )
        (matrix,) = check(render_html(view)).root.find("table", "matrix")
        rows += [cell.text for cell in matrix.find("th")[2:]]
    assert rows == ["my-engine (exec:./driver)", "my-engine (exec:./other)"]


def test_nothing_from_a_file_is_markup(stage: Start) -> None:
    program = make(update(1), **SMALL)
    failure = make_failure(program, HOSTILE, signature=HOSTILE, path=HOSTILE)
    failure["divergence"] |= {"what": HOSTILE, "operation": HOSTILE}
    named = {HOSTILE: HOSTILE}
    document = make_outcome(
        {"unavailable": named, "dead": named, "versions": named},
        **dict.fromkeys(("backend", "contract", "kind"), HOSTILE),
        outdated=[HOSTILE],
        errors=[HOSTILE],
        cells={"reachable": 3, "empty": {HOSTILE: [HOSTILE]}},
        failures=[failure],
    )
    material = gather_outcome(document)
    meta = {
        "signature": HOSTILE,
        "backend": HOSTILE + "2",
        "what": HOSTILE,
        "snippet": HOSTILE,
        "versions": {HOSTILE: HOSTILE},
        "step": 0,
    }
    material.add(read_saved(Program("layer", program.config, program.ops, meta), HOSTILE))
    material.broken.append(HOSTILE)
    text = render_html(make_report(material, stage()))
    page = check(text)
    (script,) = page.root.find("script")
    assert "alert" not in str(script.children)
    assert not page.root.find("img")
    assert "49" not in page.root.text
    assert not {*"\x1b\u202e"} & {*text}
    assert page.root.text.count("<script>alert(1)</script>") > 15


def test_what_a_file_says_is_shown_where_no_backend_is(stage: Start) -> None:
    program = make(update(1), update(2))
    saved = save(
        program, "elsewhere:make", what="contents", step=1, message="row 0 sees nothing"
    )
    page = check(render_html(make_report(Material(saved=[saved]), stage())))
    (article,) = page.root.find("article", "recorded")
    assert (
        "elsewhere:make is no registered backend; give it with --backend" in article.text
    )
    assert "row 0 sees nothing" in article.text
    assert len(article.find("details", "step")) == 2
    assert not article.find("td", "m") and not article.find("td", "x")


def test_of_a_program_whose_file_says_nothing_the_last_step_is_open(stage: Start) -> None:
    program = make(update(1), update(2))
    page = check(render_html(make_report(Material(saved=[save(program)]), stage())))
    (article,) = page.root.find("article", "recorded")
    steps = article.find("details", "step")
    assert ["open" in step.attributes for step in steps] == [False, True]
    assert "its file does not say how it failed" in article.text


def test_a_failure_of_a_released_cache_comes_with_a_snippet(stage: Start) -> None:
    """The one in the README."""
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")
    entry = LEDGER / "mlx-lm-rotating-keep-mask.json"
    page = check(render_html(make_report(gather([entry]), stage("mlx-lm"))))
    (article,) = page.root.find("article", "diverges")
    assert [row.text for row in article.find("tr", "wrong")] == ["row 2−+■"]
    replay, snippet, _ = (code.text for code in article.find("code"))
    assert replay == f"lockstep replay {entry} --backend mlx-lm"
    assert "RotatingKVCache" in snippet
    compile(snippet, "snippet", "exec")


def test_a_failure_that_is_fixed_says_so(stage: Start) -> None:
    program = make(update(1), **SMALL)
    saved = save(program, f"{HERE}:correct", what="mask", step=0, message="wrong")
    page = check(render_html(make_report(Material(saved=[saved]), stage(saved.backend))))
    (article,) = page.root.find("article", "agrees")
    assert "agrees now" in article.text
    assert "its file says: wrong" in article.text


def make_large_report(stage: Stage) -> ReportView:
    """A program with as many operations as there may be, drawn once and shown twenty
    times; each of its last steps has as much to draw as fits."""
    ops: list[Any] = [{"op": "size"}] * 9_400
    ops += [{**update(1), "cache": name} for name in "abcdefgh" for _ in range(64)]
    ops += [update(300), *[update(1)] * 40, {"op": "state"}]
    large = make(*ops)
    (view,) = make_report(Material(saved=[save(large)]), stage).failures
    views = [replace(view, number=number) for number in range(1, 21)]
    return ReportView([], views, [])


def test_large_programs_do_not_blow_the_page_up(stage: Start) -> None:
    report = make_large_report(stage())
    grids = list(list_grids(report.failures[:1]))
    assert grids and max(len(grid.rows) for grid in grids) <= Bounds().rows
    assert len(report.failures[0].played.steps) == Bounds().first + Bounds().last
    text = render_html(report)
    assert len(text.encode()) < 2_000_000
    page = check(text)
    assert "are left out" in page.root.text
    assert "too long for a page" in page.root.text


def test_only_the_first_failures_are_played(stage: Start) -> None:
    """The others are there, with what their files say."""
    saved = [
        save(make(update(1 + n)), message=f"number {n}") for n in range(MOST_PLAYED + 3)
    ]
    view = make_report(Material(saved=saved), stage())
    assert [bool(failure.played.steps) for failure in view.failures] == (
        [True] * MOST_PLAYED + [False] * 3
    )
    assert f"number {MOST_PLAYED + 2}" in check(render_html(view)).root.text


def test_the_policy_allows_our_script_and_style_only(report: ReportView) -> None:
    page = check(render_html(report))
    metas = [element.attributes for element in page.root.find("meta")]
    (policy,) = [str(meta["content"]) for meta in metas if "http-equiv" in meta]
    assert policy.startswith("default-src 'none'; img-src data:;")
    for name in ("style", "script"):
        (element,) = page.root.find(name)
        assert html.hash_text(str(element.children[0])) in policy
    assert "unsafe" not in policy


def test_a_folder_is_gathered(tmp_path: Path) -> None:
    """A failure of both outcome and file is there once, with its file."""
    program = make(update(1))
    failure = make_failure(program, path="elsewhere/f.json", cause=3)
    (tmp_path / "sig").mkdir()
    (tmp_path / "outcome.json").write_text(json.dumps(make_outcome(failures=[failure])))
    meta = {"backend": "torch-cpu", "what": "m", "step": 0}
    meta |= {"signature": failure["signature"]}
    document = {**program.to_json(), "meta": meta}
    (tmp_path / "sig" / "f.json").write_text(json.dumps(document))
    material = gather([tmp_path])
    (saved,) = material.saved
    assert saved.path == str(tmp_path / "sig" / "f.json")
    assert saved.cause == (str(tmp_path / "outcome.json"), 3)
    assert (saved.what, saved.message, saved.step) == ("contents", "m", 0)
    assert len(material.outcomes) == 1
