"""The command `lockstep campaign` on this machine: budgets, parts, resume."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.core.folder import LocalFolder
from lockstep.harness.jobs.campaign.campaign import Campaign
from lockstep.harness.jobs.campaign.runners import LocalRunner
from lockstep.harness.jobs.campaign.terms import require_terms
from lockstep.harness.programs.program import load_programs
from tests.harness.commands import CORRECT, HERE, Run

WRONG = f"{HERE}:wrong_twice"
SIZE = ("--programs", 40, "--slice", 10, "--jobs", 1)


def read_shards(folder: Path) -> Mapping[str, Any]:
    """The name of a shard → the digest of its programs."""
    files = sorted((folder / "shards").glob("layer-*.json"))
    ends = {path.name: json.loads(path.read_text())["events"][-1] for path in files}
    return {name: end["digest"] for name, end in ends.items()}


def list_failures(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("failures/*/*"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept") / "whole"


@pytest.fixture
def whole(run: Run, kept: Path) -> Path:
    """A campaign that is over, in the current folder; it runs once for all tests."""
    if not kept.exists():
        ended = run("campaign", "start", "whole", "--backend", WRONG, *SIZE)
        assert ended.status == 1 and ended.err == ""
        shutil.copytree("whole", kept)
    else:
        shutil.copytree(kept, "whole")
    return Path("whole")


def test_a_campaign_ends_as_a_check_does(run: Run) -> None:
    ended = run("campaign", "start", "night", "--backend", CORRECT, *SIZE)
    assert (ended.status, ended.err) == (0, "")
    assert "all agree: 40 programs" in ended.out
    assert "the campaign is over" in ended.out
    assert len(read_shards(Path("night"))) == 4


def test_it_finds_what_a_check_finds(run: Run, whole: Path) -> None:
    run("check", "--backend", WRONG, "--programs", 40)
    assert set(list_failures(Path())) >= set(list_failures(whole)) != set()
    (program,) = load_programs(whole / list_failures(whole)[0])
    assert program.meta["backend"] == WRONG and program.meta["found"]["seed"] == 0


def test_what_is_over_runs_no_more(run: Run, whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("shards/*")}
    for command in ("resume", "start"):
        more = ("--backend", WRONG, *(SIZE if command == "start" else ()))
        ended = run("campaign", command, whole, *more)
        assert ended.status == 1 and "40 programs" in ended.out
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("shards/*")} == before


def test_resume_runs_what_is_missing(run: Run, whole: Path) -> None:
    """A shard counts by its file alone; failures and counts are made of these."""
    shards, failures = read_shards(whole), list_failures(whole)
    lost = sorted((whole / "shards").glob("layer-*"))[1:3]
    for path in lost:
        path.unlink()
    for path in (whole / "failures").rglob("*.json"):
        path.unlink()
    report = run("campaign", "report", whole)
    assert f"lockstep campaign resume whole --backend {WRONG}" in report.out
    assert "not over" in report.out and "ran 20 of 40" in report.words
    assert run("campaign", "resume", whole, "--backend", WRONG).status == 1
    assert (read_shards(whole), list_failures(whole)) == (shards, failures)
    document = json.loads(run("campaign", "report", whole, "--json").out)
    assert [pair["programs"] for pair in document["pairs"]] == [40]


def test_resume_runs_no_code_that_only_the_folder_names(
    run: Run, tmp_path: Path, whole: Path
) -> None:
    """A folder may be somebody else's; settings and options are the user's."""
    assert get_line(run("campaign", "resume", whole)) == (
        "whole: names backends that are not registered; if you trust them, add"
        f" --backend {WRONG}"
    )
    settings = f'[tool.lockstep]\nbackends = ["{WRONG}"]\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    assert run("campaign", "resume", whole).status == 1
    terms = json.loads((whole / "campaign.json").read_text())
    mark = tmp_path / "mark"
    document = {**terms, "backends": [f"exec:touch {mark}"]}
    (whole / "campaign.json").write_text(json.dumps(document))
    assert f"'exec:touch {mark}'" in get_line(run("campaign", "resume", whole))
    assert not mark.exists()


def test_parts_that_are_merged_are_the_whole(run: Run, whole: Path) -> None:
    for part in (1, 2):
        part_of = ("--backend", WRONG, *SIZE, "--shard", f"{part}/2")
        run("campaign", "start", f"part{part}", *part_of)
        assert 0 < len(read_shards(Path(f"part{part}"))) < 4
    assert run("campaign", "merge", "both", "part1", "part2", "part1").status == 1
    assert read_shards(Path("both")) == read_shards(whole)
    assert list_failures(Path("both")) == list_failures(whole)
    document = json.loads(run("campaign", "report", "both", "--json").out)
    assert document["complete"] and document["pairs"][0]["programs"] == 40
    # One part alone says that it is not all.
    assert "not over" in run("campaign", "merge", "one", "part1").out
    assert "not over" not in run("campaign", "report", "part1").out
    line = get_line(run("campaign", "merge", "both", "night"))
    assert line.startswith("night: holds no campaign; `lockstep campaign start` makes")


def test_parts_of_other_settings_are_refused(run: Run, whole: Path) -> None:
    run("campaign", "start", "other", "--backend", WRONG, *SIZE, "--seed", 1)
    ended = run("campaign", "merge", "both", whole, "other")
    assert ended.status == 2
    assert (
        ended.err
        == "lockstep: other: belongs to another campaign: its seed is 0, not 1\n"
    )
    assert not Path("both").exists()


def test_seconds_are_a_budget(run: Run) -> None:
    size = ("--slice", 5, "--jobs", 1, "--backend", CORRECT)
    assert run("campaign", "start", "time", *size, "--time", 1).status == 0
    document = json.loads(run("campaign", "report", "time", "--json").out)
    programs = document["pairs"][0]["programs"]
    assert document["complete"] and programs >= 5
    again = run("campaign", "resume", "time", "--backend", CORRECT)
    assert "the campaign is over" in again.out
    # With more of it, the next shards run.
    terms = json.loads(Path("time/campaign.json").read_text())
    Path("time/campaign.json").write_text(json.dumps({**terms, "seconds": 1e4}))
    assert "not over" in run("campaign", "report", "time").out
    both = run("campaign", "start", "both", "--time", 1, "--programs", 1)
    assert "--programs and --time were both given" in both.err


def test_a_backend_that_is_not_here_is_not_green(run: Run) -> None:
    ended = run("campaign", "start", "gpu", "--backend", "absent:make", *SIZE)
    assert ended.status == 2 and "there is no module absent" in ended.words
    assert run("campaign", "report", "gpu").status == 2


# --- the folder -------------------------------------------------------------------------


def get_line(ended: Any) -> str:
    """The one line of bad input."""
    assert ended.status == 2 and ended.err.count("\n") == 1, ended.text
    return str(ended.err.removeprefix("lockstep: ").rstrip())


def test_another_campaign_is_refused(run: Run, whole: Path) -> None:
    for change, why in (
        (("--seed", 3), "its seed is 0, not 3"),
        (("--kind", "kv"), 'its kinds is [], not ["kv"]'),
        (("--shard", "1/3"), "its shard is null, not [1, 3]"),
    ):
        line = get_line(
            run("campaign", "start", whole, "--backend", WRONG, *SIZE, *change)
        )
        assert line.startswith(f"whole: holds another campaign: {why}; choose another")


def test_what_is_no_campaign_is_refused(run: Run) -> None:
    Path("full").mkdir()
    Path("full/x.txt").write_text("mine")
    for command in (("start",), ("resume",), ("report",), ("merge", "a")):
        name, *more = command
        line = get_line(
            run("campaign", name, "full" if name == "start" else "none", *more)
        )
        assert "has files, but no campaign" in line or "holds no campaign" in line
    assert get_line(run("campaign", "start", "full/x.txt/y", *SIZE)).startswith(
        "full/x.txt/y: cannot be written: Not a directory"
    )
    assert "is not I/N" in run("campaign", "start", "x", "--shard", "4/3").err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not JSON"),
        ("[]", "is not the settings of a campaign"),
        ('{"format": "lockstep-campaign/3"}', "is not the settings of a campaign"),
        (
            '{"format": "lockstep-campaign/1"}',
            "value 'lockstep-campaign/1' - at `$.format`; start a campaign in another",
        ),
        ('{"lockstep": "0.1.0", "python": "3.11", "slice": 0}', "is not the settings"),
        (
            '{"lockstep": "9.9", "python": "3.11"}',
            "was started with lockstep 9.9, but",
        ),
    ],
)
def test_a_damaged_campaign_is_refused(run: Run, text: str, why: str) -> None:
    Path("bad").mkdir()
    Path("bad/campaign.json").write_text(text)
    assert why in get_line(run("campaign", "resume", "bad"))


def test_a_damaged_shard_runs_again(run: Run, whole: Path) -> None:
    shards = read_shards(whole)
    first, second, third, _ = sorted((whole / "shards").glob("layer-*"))
    first.write_text(first.read_text()[:100])
    second.write_text(third.read_text())
    report = run("campaign", "report", whole)
    assert f"shards/{first.name}: is not JSON" in report.err
    line = f"shards/{second.name}: belongs to another campaign; it does not count"
    assert line in report.err
    assert "ran 20 of 40" in report.words
    again = run("campaign", "resume", whole, "--backend", WRONG)
    assert again.err.count("it does not count") == 2
    assert read_shards(whole) == shards
    assert run("campaign", "report", whole).err == ""


def test_files_of_others_are_told_and_left_alone(run: Run, whole: Path) -> None:
    """Among the shards; the test before has a shard that is damaged."""
    run("campaign", "start", "other", "--backend", WRONG, *SIZE, "--seed", 1)
    (shard, *_) = (Path("other") / "shards").glob("layer-*")
    shutil.copy(shard, whole / "shards")
    texts = {"notes.txt": "mine", ".DS_Store": "", "a/b.json": "{}"}
    for name, text in texts.items():
        (whole / "shards" / name).parent.mkdir(exist_ok=True)
        (whole / "shards" / name).write_text(text)
    names = sorted([*texts, shard.name])
    for command in ("report",), ("resume", "--backend", WRONG), ("report",):
        name, *more = command
        ended = run("campaign", name, whole, *more)
        assert ended.status == 1
        lines = sorted(ended.err.splitlines())
        assert [line.split(":")[1].strip() for line in lines] == [
            f"shards/{name}" for name in names
        ]
        assert all(line.endswith("; it does not count") for line in lines)
    assert {name: (whole / "shards" / name).read_text() for name in texts} == texts
    assert run("campaign", "merge", "both", whole).status == 1
    assert not {*texts, shard.name} & {path.name for path in Path("both").rglob("*")}


@pytest.mark.parametrize("damage", ["events", "spec", "seconds"])
def test_a_shard_is_read_strictly(run: Run, whole: Path, damage: str) -> None:
    first = min((whole / "shards").glob("layer-*"))
    document = json.loads(first.read_text())
    document[damage] = {"events": [], "spec": {}, "seconds": -1}[damage]
    first.write_text(json.dumps(document))
    assert "is not a shard of a campaign" in run("campaign", "report", whole).err


def test_two_coordinators_come_to_the_same(run: Run, whole: Path) -> None:
    """Each shard counts once, whoever runs it: the first file stands."""
    work = Campaign(LocalFolder("whole"), require_terms(LocalFolder("whole")))
    work.load()
    shards = read_shards(whole)
    for path in (whole / "shards").glob("layer-*"):
        path.unlink()
    assert run("campaign", "resume", whole, "--backend", WRONG).status == 1
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("shards/*")}
    work.done.clear()  # as it was when the other one began
    work.run(lambda: LocalRunner(1), [])
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("shards/*")} == before
    assert read_shards(whole) == shards


def test_a_full_disk_loses_nothing(
    run: Run, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no file is printed, and `resume` goes on."""
    real, room = LocalFolder.write_draft, [1]

    def write(folder: LocalFolder, name: str, content: bytes) -> Path:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(folder, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "write_draft", write)
        ended = run("campaign", "start", "small", "--backend", WRONG, *SIZE)
    assert ended.status == 1
    line, *programs = ended.err.splitlines()
    assert line == (
        "lockstep: small: cannot be written: No space left on device; nothing that was"
        " done is lost"
    )
    assert all(json.loads(each)["contract"] == "layer" for each in programs) and programs
    assert run("campaign", "resume", "small", "--backend", WRONG).status == 1
    assert read_shards(Path("small")) == read_shards(whole)
    assert list_failures(Path("small")) == list_failures(whole)


def test_a_store_is_a_folder_like_any_other(run: Run, whole: Path) -> None:
    pytest.importorskip("fsspec", reason="of the extra ray")
    place = "memory://campaigns/night"
    assert run("campaign", "start", place, "--backend", WRONG, *SIZE).status == 1
    assert "the campaign is over" in run("campaign", "report", place).out
    assert run("campaign", "merge", "copy", place).status == 1
    assert read_shards(Path("copy")) == read_shards(whole)
    assert list_failures(Path("copy")) == list_failures(whole)
    line = get_line(run("campaign", "report", "nonsense://x"))
    assert line.startswith("nonsense://x: cannot be opened: ")


def test_a_page_shows_what_was_found(run: Run, whole: Path) -> None:
    ended = run("campaign", "report", whole, "-o", "page")
    assert ended.status == 1 and ended.out.startswith("page/report.html\n")
    assert "layer-kv-update-contents" in Path("page/report.html").read_text()
