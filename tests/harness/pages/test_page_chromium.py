"""The page in a real browser: it opens at once, asks nobody, and can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.reports.pages.gather import Stage, make_report
from lockstep.harness.reports.pages.html import render_html
from lockstep.harness.reports.pages.view import ReportView
from tests.harness.building import SMALL, make, trim, update
from tests.harness.commands import HERE
from tests.harness.pages.chromium import COMMAND, Browser, open_browser
from tests.harness.pages.conftest import (
    gather_outcome,
    make_failure,
    make_outcome,
    save,
)
from tests.harness.pages.test_page_html import make_large_report
from tests.harness.pages.test_page_recorder import PADDED, RECORDED

pytestmark = pytest.mark.skipif(COMMAND is None, reason="chromium is not installed")

WRONG = f"{HERE}:answers_in_numpy"

OPEN_ALL = "document.querySelectorAll('details').forEach(d => d.open = true)"

Start = Callable[..., Stage]

clone = {"op": "clone", "into": "b"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def page(stage: Start, tmp_path: Path) -> Path:
    """Three failures on a page, and a matrix."""
    ops = [update(3), update(1), trim(2)]
    program = make(*ops, **SMALL)
    saved = [save(program, WRONG)]
    for one in list(RECORDED.values())[:2]:
        last = len(one.ops) - 1
        saved.append(save(one, "elsewhere:make", message="it said so", step=last))
    material = gather_outcome(make_outcome(), *saved)
    return write(tmp_path, make_report(material, stage(WRONG)))


def write(folder: Path, report: ReportView) -> Path:
    path = folder / "report.html"
    path.write_text(render_html(report), encoding="utf-8")
    return path


def list_complaints(browser: Browser) -> list[Any]:
    return browser.find(
        "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"
    )


def list_requests(browser: Browser) -> list[str]:
    requests = browser.find("Network.requestWillBeSent")
    return [event["params"]["request"]["url"] for event in requests]


def list_open(browser: Browser, failure: int) -> list[int]:
    """The numbers of the steps that are open."""
    found: list[int] = browser.evaluate(
        f"[...document.querySelectorAll('#f{failure} .step')]"
        ".flatMap((step, number) => step.open ? [number] : [])"
    )
    return found


def test_it_asks_nobody_and_does_not_complain(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.click("#f1 .chip")
    assert list_complaints(browser) == []
    assert [url for url in list_requests(browser) if not url.startswith("data:")] == [
        page.as_uri()
    ]


def test_twenty_large_failures_open(
    browser: Browser, stage: Start, tmp_path: Path
) -> None:
    browser.open(write(tmp_path, make_large_report(stage())))
    assert list_complaints(browser) == []


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_exceeds_the_window(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    browser.evaluate(OPEN_ALL)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


LONG = "exec:./" + "transformers-batched-static-encoder-decoder-" * 4 + "driver --flag"


def test_long_names_fit_a_phone(browser: Browser, tmp_path: Path) -> None:
    """Nothing lies beyond the window but what scrolls in a box of its own."""
    failures = [
        make_failure(
            make(update(length), clone, update(1), **SMALL),
            f"raised {'VeryLongNameOfAnError' * 9}, in {'f' * 99} (kv.py:1)",
            signature="layer-kv-update-" + "x" * 200,
            path=f"{'deep/' * 60}f.json",
        )
        for length in (1, 2)
    ]
    words = {"own_name": "my-engine" * 9, "errors": ["e" * 300], "failures": failures}
    outcome = make_outcome({"unavailable": {LONG: "w" * 200}}, backend=LONG, **words)
    browser.open(write(tmp_path, make_report(gather_outcome(outcome), None)), 360)
    browser.evaluate(OPEN_ALL)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    beyond = browser.evaluate(
        "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre')"
        " && e.getBoundingClientRect().right > 360.5).map(e => e.className || e.tagName)"
    )
    assert beyond == []


@pytest.mark.parametrize(("width", "is_beside"), [(360, False), (1280, True)])
def test_rows_of_a_batch_stand_beside_each_other(
    browser: Browser, stage: Start, tmp_path: Path, width: int, is_beside: bool
) -> None:
    """Where the window has room; in a narrow one they stand one below the other."""
    backend = "tests.harness.padding:shows_padding"
    material = gather_outcome(make_outcome(), save(PADDED, backend))
    browser.open(write(tmp_path, make_report(material, stage(backend))), width)
    places = browser.evaluate(
        "[...document.querySelectorAll('.step[open] .part')]"
        ".map(e => e.getBoundingClientRect()).map(r => [r.x, r.y])"
    )
    assert len(places) == 3
    assert len({x for x, _ in places}) == (3 if is_beside else 1)
    assert len({y for _, y in places}) == (1 if is_beside else 3)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    heads = "[...document.querySelectorAll('.grid th.pad')].map(e => e.textContent)"
    pads = [f"pad {row}.{column}" for row, column in ((1, 0), (2, 0), (2, 1), (2, 2))]
    assert browser.evaluate(heads) == pads


def test_the_mouse_opens_a_step_and_closes_others(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.click("#f1s0 summary")
    assert list_open(browser, 1) == [0]


def test_whose_token_is_where(browser: Browser, page: Path) -> None:
    """By the mouse, and by the keyboard: it is said, and lit on both sides."""
    browser.open(page)
    browser.click("#f1s1 summary")
    browser.click("#f1s1 .chip[data-t='3']")
    said = "document.querySelector('#f1s1 .info').textContent"
    assert browser.evaluate(said) == "token 3, position 3, written in step 1"
    lit = "document.querySelectorAll('#f1s1 .chip.lit').length"
    assert browser.evaluate(lit) == 2
    browser.evaluate("document.querySelector('#f1s1 .chip').focus()")
    assert browser.evaluate(said) == "token 0, position 0, written in step 0"


def test_a_line_is_copied(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.evaluate(
        "navigator.clipboard.writeText = async (text) => { window.copied = text; }"
    )
    browser.click("#f1 .code button")
    assert browser.evaluate("window.copied") == (
        f"lockstep replay failures/x/f.json --backend {WRONG}"
    )
    said = "document.querySelector('#f1 .code button').textContent"
    assert browser.evaluate(said) == "copied"


def test_without_scripts_all_is_there(browser: Browser, page: Path) -> None:
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        browser.click("#f1s0 summary")
        assert list_open(browser, 1) == [0]
        assert not browser.evaluate("document.querySelectorAll('.code button').length")
        text = browser.evaluate("document.querySelector('#f1').innerText")
        assert "lockstep replay" in text and "the backend returned" in text
    finally:
        browser.ask("Emulation.setScriptExecutionDisabled", value=False)


def test_contrast_is_enough(browser: Browser, page: Path) -> None:
    """4.5 for text, in both themes, on what it stands on."""
    for theme in ("light", "dark"):
        browser.open(page, theme=theme)
        browser.evaluate(OPEN_ALL)
        assert browser.evaluate(CONTRAST) == [], theme


CONTRAST = """
(() => {
  const options = {willReadFrequently: true};
  const canvas = document.createElement('canvas').getContext('2d', options);
  const read = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce(
    (sum, weight, n) => sum + weight * linear(c[n] / 255), 0);
  const isText = (node) => node.nodeType === 3 && node.data.trim();
  const low = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some(isText);
    const beside = element.matches('td.s, i.s, .skip, style, script');
    if (!own || beside || !element.checkVisibility()) continue;
    let under = element, back = [0, 0, 0, 0];
    while (under && back[3] === 0) {
      back = read(getComputedStyle(under).backgroundColor);
      under = under.parentElement;
    }
    const front = read(getComputedStyle(element).color);
    const [high, dim] = [light(front), light(back)].sort((x, y) => y - x);
    const ratio = (high + 0.05) / (dim + 0.05);
    if (ratio < 4.5) low.push(`${element.tagName}.${element.className}: ${ratio}`);
  }
  return [...new Set(low)];
})()
"""
