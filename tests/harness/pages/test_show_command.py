"""`lockstep show` and `lockstep report`: what they write, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness.building import SMALL, make, trim, update
from tests.harness.commands import CORRECT, HERE, Run
from tests.harness.pages.conftest import make_outcome
from tests.harness.pages.markup import Page, check

WRONG, DIES = f"{HERE}:answers_in_numpy", f"{HERE}:dies"
MARKDOWN = ("--format", "markdown")
TO_PAGE = ("-o", "page", "--backend", WRONG)

TRIM = make(update(2), trim(1), **SMALL)
"""On this the backend WRONG diverges in step 1."""


def read_page() -> Page:
    return check(Path("page/report.html").read_text())


@pytest.fixture
def failures(tmp_path: Path) -> Path:
    """A folder as a check leaves it, with one failure."""
    folder = tmp_path / "failures"
    (folder / "layer-kv-trim-result").mkdir(parents=True)
    (folder / "outcome.json").write_text(json.dumps(make_outcome()))
    meta = {"backend": WRONG, "signature": "layer-kv-trim-result", "step": 1, "what": "m"}
    document = {**TRIM.to_json(), "meta": meta}
    (folder / "layer-kv-trim-result" / "f.json").write_text(json.dumps(document))
    return folder


def list_all(folder: Path) -> dict[str, bytes | None]:
    """Lists the files of a folder with their bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def test_a_page_of_a_folder(run_workers: Run, tmp_path: Path, failures: Path) -> None:
    before = list_all(tmp_path)
    ended = run_workers("report", *TO_PAGE)
    assert (ended.status, ended.text) == (0, "page/report.html\n")
    (article,) = read_page().root.find("article", "diverges")
    assert "trimmed" in article.text
    after = list_all(tmp_path)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"page", "page/report.html"}


@pytest.mark.parametrize("name", ["trap:make", "exec:touch sprung", "exec:./trap"])
def test_what_a_file_names_is_not_imported(run: Run, failures: Path, name: str) -> None:
    """Nor executed: only what the user names, or what is registered."""
    Path("trap.py").write_text("open('sprung', 'w')")
    Path("trap").write_text("#!/bin/sh\ntouch sprung\n")
    Path("trap").chmod(0o755)
    path = failures / "layer-kv-trim-result" / "f.json"
    path.write_text(json.dumps({**TRIM.to_json(), "meta": {"backend": name}}))
    for command in (["report", "-o", "page"], ["show", path]):
        assert run(*command).status == 0
    assert not Path("sprung").exists()
    assert f"{name} is no registered backend" in read_page().root.text


def test_a_program_runs_on_the_backend_that_it_names_or_on_none(
    run: Run, failures: Path
) -> None:
    """However many are given; a command for one program may run it on another backend,
    and says so."""
    path, strange = failures / "layer-kv-trim-result" / "f.json", failures / "g.json"
    document = json.loads(path.read_text())
    document["meta"]["backend"] = "elsewhere:make"
    strange.write_text(json.dumps(document))
    given = "--backend", CORRECT, "--backend", WRONG
    assert run("report", "-o", "page", *given).status == 0
    page = read_page().root
    assert "agrees now" not in page.text
    assert f"/f.json --backend {WRONG}" in page.text
    assert "elsewhere:make is no registered backend; give it with --backend" in page.text
    assert "failures/g.json --backend elsewhere:make" in page.text
    assert len(page.find("article", "diverges")) == 1
    ended = run("replay", path, *given)
    assert [line.split()[:2] for line in ended.out.splitlines()] == [
        ["AGREES", CORRECT],
        ["FAILED", WRONG],
    ]
    ended = run("show", path, "--backend", CORRECT)
    words = f"{CORRECT} agrees in every step; the file of {WRONG} says: m"
    assert words in ended.words
    ended = run("show", strange, "--backend", WRONG)
    assert f"✗ {WRONG} layer-kv-trim-result" in ended.words
    assert f"failures/g.json --backend {WRONG}" in ended.words


def test_a_summary(run: Run, failures: Path) -> None:
    ended = run("report", *MARKDOWN)
    assert ended.status == 0
    assert ended.out.startswith("## Lockstep: ✗ 1 failure\n")
    for _ in range(2):
        assert run("report", *MARKDOWN, "-o", "page").text == "page/report.md\n"
    assert Path("page/report.md").read_text() == ended.out


def test_several_runs_on_one_page(run: Run, tmp_path: Path) -> None:
    for number, backend in enumerate(("torch-cpu", "mlx-cpu", "torch-cpu")):
        folder = tmp_path / "runs" / str(number)
        folder.mkdir(parents=True)
        (folder / "outcome.json").write_text(json.dumps(make_outcome(backend=backend)))
    ended = run("report", "runs", "-o", "page")
    assert ended.status == 0, ended.text
    page = read_page()
    (matrix,) = page.root.find("table", "matrix")
    heads = [row.find("th")[0].text for row in matrix.find("tr")]
    first, last = (f"torch-cpu (runs/{number}/outcome.json)" for number in (0, 2))
    assert heads == ["layer", first, "mlx-cpu", last]
    assert "all agree" in page.root.find("h1")[0].text


def test_an_outcome_alone(run: Run, tmp_path: Path, failures: Path) -> None:
    """As `lockstep check --json` prints it, whatever the file is called."""
    (failures / "outcome.json").rename(tmp_path / "result.json")
    ended = run("report", "result.json", *MARKDOWN)
    assert (ended.status, "all agree" in ended.out) == (0, True)


def test_outcomes_are_no_programs(run: Run, failures: Path) -> None:
    ended = run("replay", "failures", "--backend", WRONG)
    assert ended.text.count("FAILED") == 1
    assert "outcome.json" not in ended.text
    (failures / "layer-kv-trim-result" / "f.json").unlink()
    ended = run("replay", "failures")
    words = "failures: no program file (.json, .jsonl) in this folder"
    assert (ended.status, words in ended.text) == (2, True)


def test_a_failure_in_the_terminal(run: Run, failures: Path) -> None:
    path = next(failures.rglob("f.json"))
    ended = run("show", path, "--backend", WRONG)
    assert ended.status == 0, ended.text
    assert "→ step 1: trim 1 token" in ended.text
    ended = run("show", path, "--backend", WRONG, "--step", 0)
    assert "the backend returned: 0@0 1@1" in ended.text


def test_a_backend_that_ends_its_process(run_workers: Run) -> None:
    """Both sides until then, and its last words."""
    program = make(*[update(1)] * 4, **SMALL)
    Path("p.json").write_text(json.dumps(program.to_json()))
    ended = run_workers("show", "p.json", "--backend", DIES)
    assert ended.status == 0, ended.text
    assert "crash: the process was ended by SIG" in ended.words
    assert "→ step 2: update with 1 token" in ended.words
    assert "the reference answers: offset 3" in ended.words
    assert run_workers("report", "p.json", "-o", "page", "--backend", DIES).status == 0
    (article,) = read_page().root.find("article", "crash")
    steps = article.find("details", "step")
    assert ["the backend returned" in step.text for step in steps] == [True, True, False]
    assert "the reference answers" in steps[2].text


def test_a_backend_that_cannot_run_here(run: Run) -> None:
    Path("p.json").write_text(json.dumps(TRIM.to_json()))
    ended = run("show", "p.json", "--backend", f"{HERE}:factory_raises")
    assert ended.status == 0
    assert "Only the reference is shown" in ended.words
    assert "factory raised" in ended.words


def test_one_file_that_cannot_be_read_stops_no_other(run: Run, failures: Path) -> None:
    (failures / "broken.json").write_text("{")
    ended = run("report", *TO_PAGE)
    assert ended.status == 2
    assert "lockstep: failures/broken.json: is not JSON" in ended.err
    page = read_page()
    assert len(page.root.find("article")) == 1
    assert "failures/broken.json: is not JSON" in page.root.text


def test_a_page_again_is_the_same_beside_other_files(run: Run, failures: Path) -> None:
    Path("page").mkdir()
    Path("page/index.html").write_text("mine")
    seen = []
    for _ in range(2):
        assert run("report", *TO_PAGE).status == 0
        seen.append(list_all(Path("page")))
    assert seen[0] == seen[1]
    assert seen[0].keys() == {"index.html", "report.html"}
    assert seen[0]["index.html"] == b"mine"


def test_a_check_leaves_what_it_came_to(run: Run) -> None:
    ended = run("check", "--backend", WRONG, "--programs", 20, "--json")
    assert ended.status == 1
    assert json.loads(Path("failures/outcome.json").read_text()) == json.loads(ended.out)
    ended = run("report", *TO_PAGE)
    assert ended.status == 0, ended.err
    (cell,) = read_page().root.find("table", "matrix")[0].find("td", "diverges")
    assert cell.find("a")[0].attributes["href"] == "#f1"


def test_an_outcome_that_cannot_be_written_is_said(run: Run) -> None:
    Path("failures/outcome.json").mkdir(parents=True)
    ended = run("check", "--backend", CORRECT, "--programs", 5)
    assert ended.status == 2
    assert "all agree" in ended.out
    assert "outcome.json: cannot be written" in ended.words
