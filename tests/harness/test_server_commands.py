"""Every command takes a server as a backend, and shows what diverges on it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.jobs.bisect.job import Bisection
from lockstep.harness.programs.program import load_programs
from tests.harness.commands import Run
from tests.harness.serving_server import CONFIG, Fake, serving, write_description

SIGNATURE = "serving-serving-full-complete-contents"
OPS = [
    {"op": "complete", "request": "a", "new": 5},
    {"op": "complete", "request": "b", "new": 3},
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """The options of a server that answers short prompts by the earlier request."""
    (tmp_path / "probe").mkdir()
    write_description(tmp_path / "probe")
    with serving(Fake("stale", tells="content", flush="/flush_cache", pause=0)) as fake:
        yield "--backend", fake.url, "--probe", "probe"


@pytest.fixture
def failure(tmp_path: Path, server: tuple[str, ...]) -> Path:
    """A failure as a check saves it."""
    path = tmp_path / "failures" / SIGNATURE / "x.json"
    path.parent.mkdir(parents=True)
    found = {"signature": SIGNATURE, "step": 1, "what": "contents"}
    meta = {"backend": server[1], "probe": str(tmp_path / "probe"), **found}
    document = {"format": "lockstep/1", "contract": "serving", "config": CONFIG}
    path.write_text(json.dumps({**document, "ops": OPS, "meta": meta}))
    return path


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        ("replay FILE", 1, "FAILED"),
        ("show FILE", 0, "request b: generated token 0 is token 0, not token 5"),
        ("shrink FILE --failures other", 1, "--probe PROBE"),
        ("snippet FILE", 0, "sys.exit(run(STEPS) > 0)"),
        ("report FILE -o page", 0, "page/report.html"),
        ("explore --depth 1 --size tiny", 0, "none diverges"),
        ("check --programs 10 --jobs 4", 1, f"{SIGNATURE}"),
    ],
)
def test_a_command_runs_the_server(
    run: Run, server: Any, failure: Path, command: str, status: int, text: str
) -> None:
    words = command.replace("FILE", str(failure)).split()
    ended = run(*words, *server)
    assert ended.status == status, ended.text
    wanted = text.replace("PROBE", str(Path("probe").resolve()))
    assert wanted.replace(" ", "") in "".join(ended.text.split()), ended.text
    if command.startswith("report"):
        page = Path("page", "report.html").read_text()
        assert "Only the reference is shown" not in page
        assert "generated token 0 is token 0, not token 5" in page


def test_a_failure_is_shown_without_its_engine(run: Run, failure: Path) -> None:
    document = json.loads(failure.read_text())
    document["meta"]["backend"] = "elsewhere:engine"
    failure.write_text(json.dumps(document))
    ended = run("show", str(failure))
    assert ended.status == 0, ended.text
    assert "Only the reference is shown" in ended.words
    assert "complete b: 3 new" in ended.words
    assert "did not finish" not in ended.words


def test_a_campaign_runs_a_server(run: Run, server: Any) -> None:
    size = "--programs", 12, "--slice", 6, "--jobs", 2
    begun = run("campaign", "start", "night", *server, *size)
    assert begun.status == 1 and SIGNATURE in begun.text, begun.text
    shards = sorted(Path("night", "shards").iterdir())
    shards[-1].unlink()
    refused = run("campaign", "resume", "night")
    assert (refused.status, len(refused.err.splitlines())) == (2, 1)
    resumed = run("campaign", "resume", "night", *server[:2])
    assert resumed.status == 1 and sorted(Path("night", "shards").iterdir()) == shards
    shown = run("campaign", "report", "night", *server, "-o", "page")
    assert shown.status == 1 and "page/report.html" in shown.out
    assert "Only the reference is shown" not in Path("page", "report.html").read_text()


def test_a_search_replays_with_the_options_of_the_server(
    run: Run, server: Any, failure: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    monkeypatch.setattr("lockstep.harness.cli.bisect.Commits", lambda *_: None)
    monkeypatch.setattr(Bisection, "run", lambda self, _: taken.extend(self.options))
    ends = "--git", ".", "--good", "a", "--bad", "b"
    run("bisect", failure, *server, *ends)
    assert taken == [*server[:3], str(Path("probe").resolve())]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1", "ConnectionRefusedError"),
        ("https://127.0.0.1:1", "write it as http://HOST:PORT"),
        ("http://192.0.2.1:1", "is another machine (192.0.2.1)"),
    ],
)
def test_a_server_that_cannot_be_checked_is_told(
    run: Run, server: Any, url: str, message: str
) -> None:
    ended = run("check", "--backend", url, *server[2:], "--programs", 1)
    assert (ended.status, message in ended.words) == (2, True), ended.text


def test_a_server_that_ends_is_a_failure_with_its_program(
    run_workers: Run, tmp_path: Path
) -> None:
    (tmp_path / "probe").mkdir()
    write_description(tmp_path / "probe")
    with serving(Fake(tells="content", pause=0, left=100)) as fake:
        server = "--backend", fake.url, "--probe", "probe"
        ended = run_workers("check", *server, "--programs", 10)
    saved = map(load_programs, Path("failures").glob("*/*.json"))
    found = [str(program.meta["what"]) for (program,) in saved]
    assert ended.status == 1
    errors = "RemoteDisconnected|ConnectionReset|ConnectionRefused"  # of the same batch
    assert found and all(re.search(errors, text) for text in found)
    assert ("cannot run again" in ended.words, "agreed" in ended.words) == (True, False)
