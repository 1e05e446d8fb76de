"""`lockstep show` and `lockstep report`: what they write, and what they refuse."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lockstep.harness.cli import replay as show_command
from lockstep.harness.cli.main import main
from lockstep.harness.execution.executor import Record
from tests.harness.pages.conftest import (
    MISBEHAVING,
    PLAIN,
    Here,
    make_outcome,
    make_program,
    update,
)
from tests.harness.pages.markup import check

ROOT = Path(__file__).parents[3]
CORRECT = f"{MISBEHAVING}:correct"
WRONG = f"{MISBEHAVING}:answers_in_numpy"
DIES = f"{MISBEHAVING}:dies"

Run = Callable[..., Result]
Lockstep = Callable[..., Any]

TRIM = make_program("layer", [update(2), {"op": "trim", "count": 1}], **PLAIN)
"""On this the backend WRONG diverges in step 1."""


@pytest.fixture
def run_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, with workers as processes of their own."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, [str(one) for one in arguments])


@pytest.fixture
def run(
    run_workers: Run, tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Run]:  # fmt: skip
    """The same without: they take seconds to come up."""
    written = Record(tmp_path_factory.mktemp("record") / "record.json")
    monkeypatch.setattr(show_command, "Pool", lambda *_: nullcontext(Here(written)))
    yield run_workers
    written.close()


@pytest.fixture
def failures(tmp_path: Path) -> Path:
    """A folder as a check leaves it, with one failure."""
    folder = tmp_path / "failures"
    (folder / "layer-kv-trim-result").mkdir(parents=True)
    (folder / "outcome.json").write_text(json.dumps(make_outcome()))
    meta = {"backend": WRONG, "signature": "layer-kv-trim-result", "step": 1, "what": "m"}
    path = folder / "layer-kv-trim-result" / "f.json"
    path.write_text(json.dumps({**TRIM.to_json(), "meta": meta}))
    return folder


def list_all(folder: Path) -> dict[str, bytes | None]:
    """What is in a folder, byte by byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def test_a_page_of_a_folder(run_workers: Run, tmp_path: Path, failures: Path) -> None:
    before = list_all(tmp_path)
    ended = run_workers("report", "-o", "page", "--backend", WRONG)
    assert (ended.exit_code, ended.stdout) == (0, "page/report.html\n"), ended.output
    page = check((tmp_path / "page" / "report.html").read_text())
    (article,) = page.root.find("article", "diverges")
    assert "trimmed" in article.text
    after = list_all(tmp_path)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"page", "page/report.html"}


@pytest.mark.parametrize("name", ["trap:make", "exec:touch sprung", "exec:./trap"])
def test_what_a_file_names_is_not_imported(
    run: Run, tmp_path: Path, failures: Path, name: str
) -> None:
    """Nor executed: only what the user names, or what is registered."""
    (tmp_path / "trap.py").write_text("open('sprung', 'w')")
    (tmp_path / "trap").write_text("#!/bin/sh\ntouch sprung\n")
    (tmp_path / "trap").chmod(0o755)
    path = failures / "layer-kv-trim-result" / "f.json"
    path.write_text(json.dumps({**TRIM.to_json(), "meta": {"backend": name}}))
    for command in (["report", "-o", "page"], ["show", path]):
        assert run(*command).exit_code == 0
    assert not (tmp_path / "sprung").exists()
    text = (tmp_path / "page" / "report.html").read_text()
    assert f"{name} is no registered backend" in check(text).root.text


def test_a_summary(run: Run, tmp_path: Path, failures: Path) -> None:
    ended = run("report", "--format", "markdown")
    assert ended.exit_code == 0
    assert ended.stdout.startswith("## Lockstep: ✗ 1 failure\n")
    assert (
        run("report", "--format", "markdown", "-o", "page").stdout == "page/report.md\n"
    )
    assert (tmp_path / "page" / "report.md").read_text() == ended.stdout
    assert run("report", "--format", "markdown", "-o", "page").exit_code == 0


def test_a_zip_of_a_run(run: Run, tmp_path: Path, failures: Path) -> None:
    with zipfile.ZipFile(tmp_path / "artifact.zip", "w") as archive:
        for path in failures.rglob("*.json"):
            archive.write(path, path.relative_to(failures))
    ended = run("report", "artifact.zip", "--format", "markdown")
    assert ended.exit_code == 0, ended.output
    assert "1 failure" in ended.stdout and "`torch-cpu` | ✓ 100" in ended.stdout
    assert f"lockstep replay artifact.zip --backend {WRONG}" in ended.stdout


def test_several_runs_on_one_page(run: Run, tmp_path: Path) -> None:
    for number, backend in enumerate(("torch-cpu", "mlx-cpu", "torch-cpu")):
        folder = tmp_path / "runs" / str(number)
        folder.mkdir(parents=True)
        (folder / "outcome.json").write_text(json.dumps(make_outcome(backend=backend)))
    ended = run("report", "runs", "-o", "page")
    assert ended.exit_code == 0, ended.output
    page = check((tmp_path / "page" / "report.html").read_text())
    (matrix,) = page.root.find("table", "matrix")
    assert [row.find("th")[0].text for row in matrix.find("tr")] == [
        "layer",
        "torch-cpu (runs/0/outcome.json)",
        "mlx-cpu",
        "torch-cpu (runs/2/outcome.json)",
    ]
    assert "all agree" in page.root.find("h1")[0].text


def test_an_outcome_alone(run: Run, tmp_path: Path, failures: Path) -> None:
    """As `lockstep check --json` prints it, whatever the file is called."""
    (failures / "outcome.json").rename(tmp_path / "result.json")
    ended = run("report", "result.json", "--format", "markdown")
    assert (ended.exit_code, "all agree" in ended.stdout) == (0, True)


def test_outcomes_are_no_programs(run: Run, failures: Path) -> None:
    ended = run("replay", "failures", "--backend", WRONG)
    assert ended.output.count("FAILED") == 1
    assert "outcome.json" not in ended.output
    (failures / "layer-kv-trim-result" / "f.json").unlink()
    ended = run("replay", "failures")
    assert ended.exit_code == 2
    assert "failures: no program file (.json, .jsonl) in this folder" in ended.output


def test_a_failure_in_the_terminal(run: Run, failures: Path) -> None:
    path = next(failures.rglob("f.json"))
    ended = run("show", path, "--backend", WRONG)
    assert ended.exit_code == 0, ended.output
    assert "→ step 1: trim 1 token" in ended.output
    ended = run("show", path, "--backend", WRONG, "--step", 0)
    assert "the backend returned: 0@0 1@1" in ended.output


def test_a_backend_that_ends_its_process(run_workers: Run, tmp_path: Path) -> None:
    """Both sides until then, and its last words."""
    program = make_program("layer", [update(1), update(1), update(1), update(1)], **PLAIN)
    (tmp_path / "p.json").write_text(json.dumps(program.to_json()))
    ended = run_workers("show", "p.json", "--backend", DIES)
    words = " ".join(ended.output.split())
    assert ended.exit_code == 0, ended.output
    assert "crash: the process was ended by SIG" in words
    assert "→ step 2: update with 1 token" in words
    assert "the reference answers: offset 3" in words
    assert run_workers("report", "p.json", "-o", "page", "--backend", DIES).exit_code == 0
    page = check((tmp_path / "page" / "report.html").read_text())
    (article,) = page.root.find("article", "crash")
    steps = article.find("details", "step")
    assert ["the backend returned" in step.text for step in steps] == [True, True, False]
    assert "the reference answers" in steps[2].text


def test_a_backend_that_cannot_run_here(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(TRIM.to_json()))
    ended = run("show", "p.json", "--backend", f"{MISBEHAVING}:factory_raises")
    words = " ".join(ended.output.split())
    assert ended.exit_code == 0
    assert "Only the reference is shown" in words and "factory raised" in words


def make_hostile(folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "file").write_text("mine")
    (folder / "foreign").mkdir()
    (folder / "foreign" / "report.html").write_text("<html>mine</html>")
    (folder / "linked").mkdir()
    (folder / "linked" / "report.html").symlink_to(folder / "file")
    (folder / "bad.json").write_text('{"format": "lockstep-outcome/1", "pairs": [1]}')
    (folder / "cut.json").write_text("{")
    one, two = (json.dumps({**TRIM.to_json(), "ops": ops}) for ops in ([], [update(1)]))
    (folder / "two.jsonl").write_text(f"{one}\n{two}\n")
    os.mkfifo(folder / "pipe.json")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("report", "a page needs a folder; choose one with -o DIR"),
        ("report -o page", "there is no such folder; `lockstep check` makes it"),
        ("report nothing -o page", "nothing: there is no such file"),
        ("report empty -o page", "empty: no program file (.json, .jsonl) in this folder"),
        ("report cut.json -o page", "cut.json: is not JSON"),
        ("report pipe.json -o page", "pipe.json: is a pipe or a device"),
        ("report bad.json -o page", "bad.json: is not the outcome of a check: "),
        ("report p.json -o file", "file: is a file; -o takes a folder"),
        ("report p.json -o file/x", "file/x: lies below a file; -o takes a folder"),
        ("report p.json -o foreign", "is there already and is no report of ours"),
        ("report p.json -o linked", "is there already and is no report of ours"),
        ("report p.json -o page --format pdf", "'pdf' is not one of"),
        ("report p.json -o page --backend torch-cup", "did you mean torch-cpu"),
        ("show", "Missing argument 'FILE'"),
        ("show nothing.json", "nothing.json: there is no such file"),
        ("show empty", "empty: no program file (.json, .jsonl) in this folder"),
        ("show two.jsonl", "two.jsonl: holds 2 programs; give one"),
        ("show p.json --step 9", "--step 9: the last step of p.json is 1"),
        ("show p.json --backend torch-cup", "did you mean torch-cpu"),
    ],
)
def test_what_is_refused(run: Run, tmp_path: Path, arguments: str, words: str) -> None:
    make_hostile(tmp_path)
    (tmp_path / "p.json").write_text(json.dumps(TRIM.to_json()))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    ended = run(*arguments.split())
    assert ended.exit_code == 2
    assert words in " ".join(ended.output.split())
    assert "Traceback" not in ended.output and ended.stdout == ""
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "mine"


def test_one_file_that_cannot_be_read_stops_no_other(
    run: Run, tmp_path: Path, failures: Path
) -> None:
    (failures / "broken.json").write_text("{")
    ended = run("report", "-o", "page", "--backend", WRONG)
    assert ended.exit_code == 2
    assert "lockstep: failures/broken.json: is not JSON" in ended.stderr
    page = check((tmp_path / "page" / "report.html").read_text())
    assert len(page.root.find("article")) == 1
    assert "failures/broken.json: is not JSON" in page.root.text


def test_a_page_again_is_the_same_beside_other_files(
    run: Run, tmp_path: Path, failures: Path
) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("mine")
    seen = []
    for _ in range(2):
        assert run("report", "-o", "page", "--backend", WRONG).exit_code == 0
        seen.append(list_all(tmp_path / "page"))
    assert seen[0] == seen[1]
    assert seen[0].keys() == {"index.html", "report.html"}
    assert seen[0]["index.html"] == b"mine"


def test_a_check_leaves_what_it_came_to(lockstep: Lockstep, tmp_path: Path) -> None:
    size = ("--programs", 20, "--jobs", 1, "--failures", tmp_path / "f")
    ended = lockstep("check", "--backend", WRONG, *size, "--json")
    assert ended.status == 1
    written = json.loads((tmp_path / "f" / "outcome.json").read_text())
    assert written == json.loads(ended.out)
    ended = lockstep(
        "report", tmp_path / "f", "-o", tmp_path / "page", "--backend", WRONG
    )
    assert ended.status == 0, ended.err
    page = check((tmp_path / "page" / "report.html").read_text())
    (cell,) = page.root.find("table", "matrix")[0].find("td", "diverges")
    assert cell.find("a")[0].attributes["href"] == "#f1"


def test_an_outcome_that_cannot_be_written_is_said(
    lockstep: Lockstep, tmp_path: Path
) -> None:
    (tmp_path / "f" / "outcome.json").mkdir(parents=True)
    size = ("--programs", 5, "--jobs", 1, "--failures", tmp_path / "f")
    ended = lockstep("check", "--backend", CORRECT, *size)
    assert ended.status == 2
    assert "all agree" in ended.out
    assert "outcome.json: cannot be written" in ended.words
