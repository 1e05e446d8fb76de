"""The parts of a campaign: a shard and its crashes, which failures are kept, files."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lockstep.harness.core.folder import Folder, LocalFolder, open_folder
from lockstep.harness.jobs.campaign.shard import KILLED, MAX_KILLED, Abandoned, run_shard
from lockstep.harness.jobs.campaign.terms import Spec, Terms
from lockstep.harness.jobs.crash import MAX_CRASHES
from lockstep.harness.jobs.failures import MAX_KEPT, Failure, Failures, make_failure
from lockstep.harness.programs.program import Divergence, Program
from lockstep.harness.workers import messages
from lockstep.harness.workers.pool import Pool
from tests.harness.building import make, trim, update

TASK = messages.RandomTask("mine", "layer", "kv", 0, seed=0, programs=9)
SPEC = Spec(task=TASK)
DECLARED = messages.Declared({}, "cpu", {}, [], 1)
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
        self.asked: list[Any] = []

    def __enter__(self) -> FakePool:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def run(
        self, tasks: deque[Any], watch: Callable[[], None]
    ) -> Iterator[tuple[Any, messages.Event]]:
        (task,) = tasks
        if isinstance(task, messages.Declare):
            yield task, DECLARED
            return
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


def list_events(pool: FakePool) -> list[messages.Event]:
    declared, *events = run_shard(SPEC, pool, lambda _: pool)  # type: ignore[arg-type, return-value]
    assert declared == DECLARED
    return events


def test_a_crash_costs_its_program_alone() -> None:
    fatal = make(update(3), trim(1), update(2))
    pool = FakePool(fatal)
    small, done = list_events(pool)
    assert done == DONE
    assert [task.fatal for task in pool.asked] == [[], [fatal.digest()]]
    assert isinstance(small, messages.Found)
    assert [op["op"] for op in small.program["ops"]] == ["update"]
    assert small.program["ops"][0]["length"] == 1
    assert small.original == make(update(3)).digest()
    assert small.divergence.what == "crash"


def test_a_backend_that_crashes_again_and_again_is_left() -> None:
    programs = [make(update(number)) for number in range(2, 6)]
    *found, end = list_events(FakePool(*programs))
    assert end == Abandoned(f"step 0: {SEGFAULT}", crashes=MAX_CRASHES)
    # Of one signature the first is shown, shorter.
    originals = [each.original for each in found if isinstance(each, messages.Found)]
    assert originals == [programs[0].digest()]


def test_a_worker_that_is_killed_from_outside_begins_again() -> None:
    """By a person, or for want of memory: no program is blamed."""
    pool = FakePool(kills=MAX_KILLED)
    assert list_events(pool) == [DONE]
    assert len(pool.asked) == 1 + MAX_KILLED
    first, *_ = list_events(FakePool(kills=MAX_KILLED + 1))
    assert isinstance(first, messages.Found)  # each time: now it is the program's


def test_a_worker_that_dies_at_no_program_is_an_error() -> None:
    class Unloadable(FakePool):
        def run(self, tasks: deque[Any], watch: Callable[[], None]) -> Iterator[Any]:
            is_first = isinstance(tasks[0], messages.Declare)
            yield tasks[0], DECLARED if is_first else die(None)

    assert list_events(Unloadable()) == [Abandoned(SEGFAULT, crashes=0)]


def test_the_name_of_a_shard_is_that_of_its_spec() -> None:
    other = structs.replace(TASK, seed=1)
    names = {
        Spec(task=TASK).name,
        Spec(task=other).name,
        Spec(task=TASK, strict=True).name,
        Spec(task=TASK, lockstep="9.9").name,
    }
    assert len(names) == 4 and SPEC.name in names
    assert SPEC.name.startswith("shards/layer-kv-000000-mine-")


def test_parts_share_all_shards() -> None:
    terms = [Terms(shard=(index, 3)) for index in (1, 2, 3)]
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
        chosen = failures.choose()
        assert len(chosen) == MAX_KEPT
        assert {one.path.name for one in chosen} == {
            path.name for path in tmp_path.rglob(f"{number}/**/*.json")
        }
        seen.add(tuple(one.program.digest() for one in chosen))
    assert len(seen) == 1


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


def test_programs_that_are_fatal_are_left_out_of_a_slice(tmp_path: Path) -> None:
    """With the same digest, since the same programs are drawn."""
    backend = "tests.harness.misbehaving:raises"
    task = messages.RandomTask(backend, "layer", "kv", 0, seed=0, programs=4)
    with Pool(1, tmp_path) as pool:
        found, first = collect(pool, task)
        digest = found[0].parsed.digest()
        _, second = collect(pool, structs.replace(task, fatal=[digest]))
        _, third = collect(pool, task)
    assert first.counts.signatures == {"layer-kv-update-error": 4}
    assert second.counts.signatures == {"layer-kv-update-error": 3}
    assert first == structs.replace(third, counts=first.counts)
    assert second.digest == first.digest and second.counts.programs == 4


def collect(
    pool: Pool, task: messages.RandomTask
) -> tuple[list[messages.Found], messages.SliceDone]:
    *events, end = (event for _, event in pool.run(deque([task])))
    assert isinstance(end, messages.SliceDone)
    return [each for each in events if isinstance(each, messages.Found)], end
