"""The corpus of a campaign: what it is made of, who starts from it, and its files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.core.folder import open_folder
from lockstep.harness.jobs.campaign import coordinator
from lockstep.harness.jobs.campaign.coordinator import Campaign
from lockstep.harness.programs.corpus import MOST_GIVEN, open_corpus
from lockstep.harness.workers.messages import RandomTask, Task
from tests.harness.building import make, trim, update
from tests.harness.commands import CORRECT, Run

SIZE = ("--backend", CORRECT, "--programs", 30, "--slice", 10, "--jobs", 1)
GUIDED = ("--generator", "guided")
SHARED = (*SIZE, *GUIDED, "--share-corpus")


def list_corpus(place: str) -> list[str]:
    """The files of a corpus, which hold what they are named after."""
    names = open_folder(place).list()
    programs = open_corpus(place).list_programs()
    assert sorted(f"{one.kind}/{one.digest()}.json" for one in programs) == names
    return names


def read_shards(place: str) -> Mapping[str, Any]:
    """The name of a shard → its document, in the order of their numbers."""
    folder = open_folder(place)
    names = [name for name in folder.list("shards") if "/layer-" in name]
    return {name: json.loads(folder.read(name) or b"") for name in names}


def list_digests(place: str) -> list[str]:
    return [one["events"][-1]["digest"] for one in read_shards(place).values()]


def list_kept(shard: Mapping[str, Any]) -> list[Any]:
    return [event["program"] for event in shard["events"] if "cells" in event]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[RandomTask]:
    """The shards as they are handed out from now on."""
    tasks: list[RandomTask] = []
    real = Campaign.equip

    def equip(self: Campaign, task: Task[Any]) -> Task[Any]:
        equipped = real(self, task)
        if isinstance(equipped, RandomTask):
            tasks.append(equipped)
        return equipped

    monkeypatch.setattr(Campaign, "equip", equip)
    return tasks


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept") / "last"


@pytest.fixture
def last(run: Run, kept: Path) -> str:
    """A campaign with a corpus, in the current folder; it runs once for all tests."""
    if not kept.exists():
        ended = run("campaign", "start", "last", *SHARED)
        assert (ended.status, ended.err) == (0, "")
        shutil.copytree("last", kept)
    else:
        shutil.copytree(kept, "last")
    return "last"


def test_the_corpus_is_made_of_what_shards_have_kept(run: Run, last: str) -> None:
    shards = read_shards(last).values()
    assert [shard["task"]["corpus"] for shard in shards] == [[], [], []]
    programs = [program for shard in shards for program in list_kept(shard)]
    own = open_corpus("last/corpus").list_programs()
    assert len(programs) >= len(own) > 10
    assert all(program.to_json() in programs for program in own)
    count = len(list_corpus("last/corpus"))
    assert f"{count} programs in the corpus" in run("campaign", "status", last).words
    assert json.loads(run("campaign", "status", last, "--json").out)["corpus"] == count
    run("campaign", "report", last, "-o", "page")
    assert f"{count} programs in the corpus" in Path("page/report.html").read_text()


def test_a_campaign_without_one_has_no_folder_and_tells_of_none(run: Run) -> None:
    assert run("campaign", "start", "plain", *SIZE, *GUIDED).status == 0
    assert "corpus" not in run("campaign", "status", "plain", "--json").out
    assert not Path("plain/corpus").exists()
    assert not any(map(list_kept, read_shards("plain").values()))


def test_later_shards_start_from_what_earlier_ones_kept(
    run: Run, begun: list[RandomTask]
) -> None:
    run("campaign", "start", "night", *SHARED)
    shards = [*read_shards("night").values()]
    first, second, third = (task.corpus or [] for task in begun)
    assert first == [] and 10 < len(second) <= MOST_GIVEN
    assert all(program in list_kept(shards[0]) for program in second)
    known = [*list_kept(shards[0]), *list_kept(shards[1])]
    assert all(program in known for program in third) and third != second


def test_resume_makes_the_corpus_of_the_shards(run: Run, last: str) -> None:
    """After a kill: some of its files are absent, others have been replaced since."""
    before = list_corpus("last/corpus")
    for path in sorted(Path("last/corpus").rglob("*.json"))[::2]:
        path.unlink()
    old = make(*[update(1)] * 40, trim(1))
    replaced = Path("last/corpus/kv") / f"{old.digest()}.json"
    replaced.write_text(json.dumps(old.to_json()))
    Path("last/corpus/mine.txt").touch()
    assert run("campaign", "resume", last).status == 0
    Path("last/corpus/mine.txt").unlink()
    assert list_corpus("last/corpus") == before


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_the_corpus_is_there_whenever_a_campaign_ends(
    run: Run,
    begun: list[RandomTask],
    monkeypatch: pytest.MonkeyPatch,
    end: type[BaseException],
) -> None:
    """At Ctrl-C; and since the files are written now and then, if it has no time to."""

    def learn(self: Campaign, task: Task[Any], event: Any) -> None:
        if isinstance(task, RandomTask) and task.number == 1:
            raise end

    with monkeypatch.context() as patch:
        patch.setattr(Campaign, "learn", learn)
        if end is SystemExit:
            patch.setattr(coordinator, "CORPUS_SECONDS", -1.0)
        run("campaign", "start", "night", *SHARED)
    before = list_corpus("night/corpus")
    assert len(read_shards("night")) == 2 and len(before) > 10
    del begun[:]
    Path("night/lock").unlink(missing_ok=True)
    assert run("campaign", "resume", "night").status == 0
    (third,) = begun
    assert third.number == 2 and len(third.corpus or []) > 10
    assert len(list_corpus("night/corpus")) >= len(before)


# --- a given one ------------------------------------------------------------------------


def test_parts_with_a_given_corpus_are_the_whole(run: Run, last: str) -> None:
    given = (*SIZE, *GUIDED, "--corpus", "last/corpus")
    assert run("campaign", "start", "whole", *given).status == 0
    for part in (1, 2):
        run("campaign", "start", f"part{part}", *given, "--shard", f"{part}/2")
    assert run("campaign", "merge", "both", "part2", "part1").status == 0
    assert list_digests("both") == list_digests("whole")
    for name in ("given", "corpus"):
        assert list_corpus(f"both/{name}") == list_corpus(f"whole/{name}")
    given_names = list_corpus("whole/given")
    assert given_names == list_corpus("last/corpus")
    assert {*given_names} & {*list_corpus("whole/corpus")}
    # From nothing, others are drawn; and the two do not go together.
    Path("empty").mkdir()
    run("campaign", "start", "other", *SIZE, *GUIDED, "--corpus", "empty")
    assert list_digests("other") != list_digests("whole")
    # What another one has kept already is not in the file of a shard.
    first, *later = map(len, map(list_kept, read_shards("other").values()))
    assert first > 10 and later[-1] < first
    ended = run("campaign", "merge", "mixed", "whole", "other")
    why = "other: is of another campaign: it starts from another corpus"
    assert (ended.status, ended.err) == (2, f"lockstep: {why}\n")


def test_a_given_corpus_stays_as_it_was(run: Run, last: str) -> None:
    given = (*SIZE, *GUIDED, "--corpus", "last/corpus")
    run("campaign", "start", "night", *given)
    digests, names = list_digests("night"), list_corpus("night/given")
    lost = Path("night/given") / names[0]
    lost.unlink()
    ended = run("campaign", "resume", "night")
    assert ended.status == 2 and ended.err.count("\n") == 1
    assert "night/given: these are not the programs that the campaign" in ended.err
    for path in Path("night/shards").glob("layer-*"):
        path.unlink()
    assert run("campaign", "start", "night", *given).status == 0
    assert lost.is_file() and list_digests("night") == digests
    lost.write_text("{")
    assert "is not JSON" in run("campaign", "resume", "night").err
    for change in (("--share-corpus",), ("--corpus", "night/corpus")):
        ended = run("campaign", "start", last, *given, *change)
        assert ended.status == 2 and "last: holds another campaign: it" in ended.err


def test_a_store_has_a_corpus_too(run: Run, last: str) -> None:
    pytest.importorskip("fsspec", reason="of the extra ray")
    run("campaign", "merge", "memory://corpora/last", last)
    assert list_corpus("memory://corpora/last/corpus") == list_corpus("last/corpus")
    given = (*SIZE, *GUIDED, "--corpus", "memory://corpora/last/corpus")
    assert run("campaign", "start", "memory://corpora/night", *given).status == 0
    names = list_corpus("memory://corpora/last/corpus")
    assert list_corpus("memory://corpora/night/given") == names


def test_a_shard_of_a_campaign_without_a_corpus_is_of_another_one(
    run: Run, last: str
) -> None:
    """It has the name of one that starts from nothing, and has run other programs."""
    name, shard = next(iter(read_shards(last).items()))
    shard["task"]["corpus"] = None
    (Path(last) / name).write_text(json.dumps(shard))
    assert f"{name}: belongs to another campaign" in run("campaign", "status", last).err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((*GUIDED, "--corpus", "absent"), "--corpus: absent: there is no such folder"),
        ((*GUIDED, "--corpus", "memory://absent"), "absent: there is no such folder"),
        ((*GUIDED, "--corpus", "file"), "file: is not a folder; give a folder"),
        ((*GUIDED, "--corpus", "broken"), "broken/bad.json: is not JSON"),
        (("--corpus", "broken"), "the generator plain starts from no programs; choose"),
        (("--share-corpus",), "--share-corpus: the generator plain starts from no"),
    ],
)
def test_bad_input_is_one_line(run: Run, options: tuple[str, ...], words: str) -> None:
    if "://" in "".join(options):
        pytest.importorskip("fsspec", reason="of the extra ray")
    Path("file").touch()
    Path("broken").mkdir()
    Path("broken/bad.json").write_text("{")
    ended = run("campaign", "start", "night", *SIZE, *options)
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert words in ended.err and not Path("night").exists()
