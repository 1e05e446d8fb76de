"""The parts of a campaign: a shard and its crashes, who gets the next one, which failures
are kept, and the page that follows it."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

from lockstep.harness.core.errors import UsageError
from lockstep.harness.core.folder import Folder, LocalFolder, open_folder
from lockstep.harness.jobs.campaign.kept import Failures
from lockstep.harness.jobs.campaign.plan import FLOOR, Shares, Terms, get_name
from lockstep.harness.jobs.campaign.runner import KILLED, MOST_KILLED, ShardRunner
from lockstep.harness.jobs.campaign.shard import Abandoned
from lockstep.harness.jobs.check import MAX_CRASHES
from lockstep.harness.jobs.outcome import MOST_KEPT, Failure, make_failure
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.reports.live import Page, Server, serve_page
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool
from tests.harness.building import make, trim, update

TASK = messages.RandomTask(
    "mine", "layer", "kv", 0, generator="plain", seed=0, programs=9
)
DONE = messages.SliceDone(messages.Counts(programs=9), [], "digest")
SEGFAULT = "the process was ended by SIGSEGV"


# --- a shard ----------------------------------------------------------------------------


def die(program: Program | None, why: str = SEGFAULT) -> messages.Died:
    return messages.Died(why, what="crash", running=program, step=0, last_words="")


class FakePool:
    """Ends its worker at some programs, as long as the task does not leave them out.

    kills: how often it is killed from outside before that.
    """

    def __init__(self, *fatal: Program, kills: int = 0) -> None:
        self.fatal, self.kills = fatal, kills
        self.asked: list[messages.Task[Any]] = []

    def __enter__(self) -> FakePool:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def run(
        self, tasks: deque[Any], watch: Callable[[], None]
    ) -> Iterator[tuple[Any, messages.Event]]:
        (task,) = tasks
        self.asked.append(task)
        watch()
        if self.kills:
            self.kills -= 1
            yield task, die(make(update(1)), KILLED)
            return
        for program in self.fatal:
            if program.digest() not in task.fatal:
                yield task, die(program)
                return
        yield task, DONE

    def call(self, task: messages.RunProgram) -> messages.Event:
        """Any program with an update ends the process."""
        operations = task.program["ops"]
        place = next((n for n, op in enumerate(operations) if op["op"] == "update"), None)
        if place is None:
            return messages.Ran({}, "cpu", None, 1, 0, None)
        return die(make(*operations))


def run_shard(pool: FakePool) -> list[messages.Event]:
    def open_pool(variables: Any) -> Any:
        return pool

    runner = ShardRunner(pool, open_pool)  # type: ignore[arg-type]
    return list(runner.run(TASK))


def test_a_crash_costs_its_program_alone() -> None:
    fatal = make(update(3), trim(1), update(2))
    pool = FakePool(fatal)
    found, small, done = run_shard(pool)
    assert done == DONE
    assert [task.fatal for task in pool.asked] == [[], [fatal.digest()]]
    assert isinstance(found, messages.Found) and isinstance(small, messages.Found)
    assert [op["op"] for op in small.program["ops"]] == ["update"]
    assert small.program["ops"][0]["length"] == 1
    assert small.original == found.parse().digest()
    assert small.divergence.what == "crash"


def test_a_backend_that_crashes_again_and_again_is_left() -> None:
    programs = [make(update(number)) for number in range(2, 6)]
    *found, end = run_shard(FakePool(*programs))
    assert end == Abandoned(f"step 0: {SEGFAULT}", crashes=MAX_CRASHES)
    # Of one signature the first is made shorter.
    originals = [each.original for each in found if isinstance(each, messages.Found)]
    assert originals == [None, programs[0].digest(), None]


def test_a_worker_that_is_killed_from_outside_begins_again() -> None:
    """By a person, or for want of memory: no program is blamed."""
    pool = FakePool(kills=MOST_KILLED)
    assert run_shard(pool) == [DONE]
    assert len(pool.asked) == 1 + MOST_KILLED
    first, *_ = run_shard(FakePool(kills=MOST_KILLED + 1))
    assert isinstance(first, messages.Found)  # each time: now it is the program's


def test_a_worker_that_dies_at_no_program_is_an_error() -> None:
    class Unloadable(FakePool):
        def run(self, tasks: deque[Any], watch: Callable[[], None]) -> Iterator[Any]:
            yield tasks[0], die(None)

    assert run_shard(Unloadable()) == [Abandoned(SEGFAULT, crashes=0)]


def test_the_name_of_a_shard_says_what_is_run() -> None:
    same = messages.RandomTask(
        "mine", "layer", "kv", 0, generator="plain", seed=0, programs=9, fatal=["x"]
    )
    other = messages.RandomTask(
        "mine", "layer", "kv", 0, generator="plain", seed=1, programs=9
    )
    assert get_name(TASK) == get_name(same) != get_name(other)
    assert get_name(TASK).startswith("shards/layer-kv-mine-000000-")


# --- who gets the next one --------------------------------------------------------------


def hand_out(new: tuple[int, ...], shards: int = 800) -> Counter[int]:
    """How many shards each pair gets that finds so much in each of them."""
    shares, found = Shares(len(new)), Counter[int]()
    for _ in range(shards):
        pair = shares.choose(range(len(new)))
        shares.learn(pair, new[pair], 1.0)
        found[pair] += 1
    return found


def test_shares_move_to_what_finds_something_with_a_floor_for_all() -> None:
    assert set(hand_out((0, 0, 0, 0)).values()) == {200}
    found = hand_out((0, 0, 6, 2))
    floor = 800 / (FLOOR * 4)
    assert found[0] == pytest.approx(floor, abs=8) == found[1]
    assert found[2] > 400 > found[3] > 150
    assert hand_out((0, 0, 6, 2)) == found


def test_a_share_is_one_of_time() -> None:
    shares, seconds = Shares(2), [0.0, 0.0]
    for _ in range(400):
        pair = shares.choose((0, 1))
        took = (4.0, 1.0)[pair]
        seconds[pair] += took
        shares.learn(pair, 0, took)
    assert seconds[0] == pytest.approx(seconds[1], rel=0.1)


def test_parts_share_all_shards() -> None:
    terms = [Terms(parts=[(part, 3)]) for part in (1, 2, 3)]
    for key in ("a", "layer", "kv"), ("b", "layer", "kv"):
        for number in range(9):
            assert sum(each.has(key, number) for each in terms) == 1
    owners = {
        next(n for n, each in enumerate(terms) if each.has([name, "layer", "kv"], 0))
        for name in "abcdefgh"
    }
    assert owners == {0, 1, 2}  # a campaign of one slice for each pair, too


# --- which failures are kept ------------------------------------------------------------


def fail(folder: Folder, program: Program) -> Failure:
    divergence = Divergence("contents", len(program.ops) - 1, "update", "wrong")
    return make_failure(folder.path, program, divergence, "mine", {}, {})


PROGRAMS = [
    make(update(3)),
    make(update(2)),
    make(update(4)),
    make(update(1), update(1)),
    make(trim(1), update(1)),
    make(update(1), trim(1), update(1)),
    make(update(1), trim(1), trim(1), update(1)),
]


def test_what_is_kept_does_not_depend_on_the_order(tmp_path: Path) -> None:
    seen = set()
    for number, order in enumerate(permutations(PROGRAMS[1:])):
        if number % 41:
            continue
        folder = LocalFolder(str(tmp_path / str(number)))
        failures = Failures(folder)
        for program in order:
            failures.add(fail(folder, PROGRAMS[0]), None)  # it is made shorter each time
            failures.write()
            failures.add(fail(folder, program), PROGRAMS[0].digest())
            failures.write()
        chosen = failures.list_chosen("mine", "layer", "kv")
        assert len(chosen) == MOST_KEPT
        assert {one.path.name for one in chosen} == {
            path.name for path in tmp_path.rglob(f"{number}/**/*.json")
        }
        seen.add(tuple(one.program.digest() for one in chosen))
    assert len(seen) == 1


def test_a_failure_of_a_shard_that_never_ended_is_kept(tmp_path: Path) -> None:
    """It may not come back; what a shard tells of later is judged like any other."""
    folder = LocalFolder(str(tmp_path))
    first = Failures(folder)
    for program in PROGRAMS[:1]:
        first.add(fail(folder, program), None)
    first.write()
    again = Failures(folder)
    for program in PROGRAMS[1:]:
        again.add(fail(folder, program), program.digest())
    again.read_left()
    again.write()
    names = [one.program.digest() for one in again.list_chosen("mine", "layer", "kv")]
    assert PROGRAMS[0].digest() in names and len(names) == MOST_KEPT + 1
    again.add(fail(folder, PROGRAMS[1]), PROGRAMS[0].digest())
    again.write()
    left = {path.name.partition("-")[0] for path in tmp_path.rglob("*.json")}
    assert PROGRAMS[0].digest() not in left and len(left) == MOST_KEPT


# --- files ------------------------------------------------------------------------------


@pytest.fixture(params=["local", "store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "local":
        return open_folder(str(tmp_path / "there"))
    pytest.importorskip("fsspec", reason="of the extra ray")
    return open_folder(f"memory://{tmp_path}")


def test_the_first_writer_wins(folder: Folder) -> None:
    assert folder.list() == [] and folder.read("a/b.json") is None
    assert folder.put("a/b.json", b"1")
    assert not folder.put("a/b.json", b"2")
    assert folder.read("a/b.json") == b"1"
    folder.replace("a/b.json", b"3")
    folder.replace("c.json", b"4")
    assert folder.list() == ["a/b.json", "c.json"]
    assert folder.list("a") == ["a/b.json"]
    names = ["a/b.json", "c.json"]
    assert dict(folder.read_all(names)) == {"a/b.json": b"3", "c.json": b"4"}
    assert folder.take("a/b.json") and not folder.take("a/b.json")
    assert folder.list() == ["c.json"]


def test_no_draft_is_left_and_old_ones_go(tmp_path: Path) -> None:
    folder = LocalFolder(str(tmp_path))
    folder.put("shards/x.json", b"1")
    folder.put("shards/x.json", b"2")
    assert [path.name for path in tmp_path.rglob("*.*")] == ["x.json"]
    (tmp_path / "shards" / ".y.json.1-a.tmp").write_bytes(b"ha")
    (tmp_path / "running").mkdir()
    (tmp_path / "running" / "1.json").write_text("{}")
    assert folder.list("shards") == ["shards/x.json"]
    folder.sweep("running")
    assert [path.name for path in tmp_path.rglob("*.*")] == ["x.json"]


# --- the page ---------------------------------------------------------------------------


@contextmanager
def serve(make_page: Callable[[], str]) -> Iterator[str]:
    server = Server(0, Page(make_page))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def get_status(url: str, **options: Any) -> int:
    request = urllib.request.Request(url, **options)
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, timeout=10).close()
    raised.value.close()
    return raised.value.code


def test_the_page_follows_the_campaign_and_can_only_be_read() -> None:
    made = []

    def make_page() -> str:
        made.append(1)
        return "<p>page ✗</p>"

    with serve(make_page) as url:
        for _ in range(2):
            with urllib.request.urlopen(url, timeout=10) as answer:
                assert answer.read().decode() == "<p>page ✗</p>"
                assert answer.headers["Refresh"] == "10"
        assert len(made) == 1  # many looks cost no more than one
        assert get_status(f"{url}shards") == 404
        assert get_status(f"{url}../../etc/passwd") == 404
        assert get_status(url, headers={"Host": "other.example"}) == 421
        assert get_status(url, data=b"x") == get_status(url, method="DELETE") == 501
        with pytest.raises(UsageError, match=r"--port \d+: .*; choose another, or 0"):
            serve_page(int(url.rpartition(":")[2].rstrip("/")), make_page, print)


def test_a_page_of_a_folder_that_is_gone_says_so() -> None:
    def make_page() -> str:
        raise UsageError("night: holds no campaign")

    with serve(make_page) as url:
        assert get_status(url) == 503


def test_programs_that_are_fatal_are_left_out_of_a_slice(tmp_path: Path) -> None:
    """With the same digest, since the same programs are drawn."""
    backend = "tests.harness.misbehaving:raises"
    task = messages.RandomTask(
        backend, "layer", "kv", 0, generator="plain", seed=0, programs=4
    )
    with Pool(1, tmp_path) as pool:
        found, first = collect(pool, task)
        digest = found[0].parse().digest()
        _, second = collect(pool, msgspec.structs.replace(task, fatal=[digest]))
        _, third = collect(pool, task)
    assert first.counts.signatures == {"layer-kv-update-error": 4}
    assert second.counts.signatures == {"layer-kv-update-error": 3}
    assert first == msgspec.structs.replace(third, counts=first.counts)
    assert second.digest == first.digest and second.counts.programs == 4


def collect(
    pool: Pool, task: messages.RandomTask
) -> tuple[list[messages.Found], messages.SliceDone]:
    *events, end = (event for _, event in pool.run(deque([task])))
    assert isinstance(end, messages.SliceDone)
    return [each for each in events if isinstance(each, messages.Found)], end
