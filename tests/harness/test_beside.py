"""Backends that declare the same run one program beside each other, in one worker."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lockstep.harness.backends.backend import Backend, Duty, Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Answer, Op
from lockstep.harness.contracts.paged.operations import Schedule
from lockstep.harness.execution.executor import (
    Coverage,
    Run,
    is_same,
    run,
    run_together,
)
from lockstep.harness.execution.record import Record
from lockstep.harness.jobs.failures import Failure
from lockstep.harness.jobs.outcome import OFTEN, Outcome, Pair
from lockstep.harness.jobs.related import compare_backends
from lockstep.harness.jobs.settings import SLICE, Settings
from lockstep.harness.jobs.shards import Shards, group_pairs
from lockstep.harness.programs.program import Divergence, Program, load_programs
from lockstep.harness.workers.backend_run import BackendRun
from lockstep.harness.workers.messages import (
    Counts,
    Declared,
    Died,
    Event,
    Found,
    OfGroup,
    Progress,
    Ran,
    RandomTask,
    Shown,
    SliceDone,
    decode_event,
    encode,
)
from lockstep.harness.workers.pool import Pool
from lockstep.harness.workers.runner import Runner
from lockstep.harness.workers.slices import RandomSlice, choose_first, is_watched
from tests.harness import misbehaving, paging
from tests.harness.building import declare_all, draw_some, make, update
from tests.harness.commands import HERE, Ended, run_here
from tests.harness.commands import Run as Command
from tests.harness.misbehaving import Cache, misbehave, plain, plain_with_variants

# --- one run ----------------------------------------------------------------------------


def forget(cache: Cache, keys: Any, values: Any) -> Any:
    """Returns all tokens but the first, from the fourth on."""
    keys, values = Cache.update(cache, keys, values)
    start = keys.shape[2] > 3
    return keys[:, :, start:], values[:, :, start:]


def raise_late(cache: Cache, keys: Any, values: Any) -> Any:
    if cache.offset > 3:
        raise RuntimeError("no room")
    return Cache.update(cache, keys, values)


def run_beside(program: Program, *backends: Backend) -> list[Run]:
    runs = [Run(program, backend, coverage=Counter()) for backend in backends]
    run_together(runs)
    return runs


def test_each_result_is_that_of_a_run_alone() -> None:
    backends = misbehave(forget)(), plain(), misbehave(raise_late)()
    declared = plain().contracts["layer"]["kv"]
    drawn = draw_some(40, "layer", "kv", declared)
    found = Counter[str]()
    for number, program in enumerate(drawn):
        program = replace(program, ops=program.ops[: 1 + number])
        for one in run_beside(program, *backends):
            coverage: Coverage = Counter()
            alone = run(program, one.backend, coverage=coverage)
            assert (one.result, one.coverage) == (alone, coverage)
            found[alone.divergence.what if alone.divergence else "agrees"] += 1
    assert found["agrees"] > 40 and found["error"] > 10 and len(found) > 2, found


def test_no_backend_is_in_the_scope_of_another() -> None:
    """Nor in its own, once its program is over."""
    inside: list[str] = []

    class Scope:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            inside.append(self.name)

        def __exit__(self, *error: object) -> None:
            assert inside.pop() == self.name

    def look(name: str) -> Backend:
        class Looking(paging.Manager):
            def pool(self) -> Any:
                assert inside == [name]
                return super().pool()

        return replace(paging.declare(Looking), scope=lambda: Scope(name))

    def observe(name: str) -> Backend:
        def append(cache: Cache, keys: Any, values: Any) -> Any:
            assert inside == [name]
            return Cache.update(cache, keys, values)

        return replace(misbehave(append)(), scope=lambda: Scope(name))

    for one in run_beside(make(*[update(1)] * 5), observe("a"), observe("b")):
        assert (one.result.divergence, one.result.steps) == (None, 5)
    assert inside == []
    for runs in run_paged(look("a"), look("b")):
        assert [one.result.divergence for one in runs] == [None, None]
    assert inside == []


class Sparing(paging.Manager):
    """Evicts all blocks or none."""

    def evict(self, count: int) -> int:
        return super().evict(count if count == len(self.blocks.cached) else 0)


def run_paged(*backends: Backend) -> Iterator[tuple[Run, ...]]:
    """Runs of programs in which the reference leaves choices."""
    declared = paging.declare().contracts["paged"]["paged-full"]
    for program in draw_some(40, "paged", "paged-full", declared):
        yield tuple(run_beside(program, *backends))


class Idle(paging.Manager):
    """Takes no token of a request, and says so: the reference cannot follow that."""

    def schedule(self, request: str, count: int) -> Any:
        start = super().schedule(request, count)
        return start if start is None else (start, 0)


class Miscounting(paging.Manager):
    """Its pool has a block too many: nothing that an operation answers tells."""

    def pool(self) -> Any:
        pool = super().pool()
        return pool._replace(free=[*pool.free, 99]) if self.requests else pool


class Failing(paging.Manager):
    def tables(self, request: str) -> Any:
        if self.get(request).computed > 1:
            raise RuntimeError("no tables")
        return super().tables(request)


OPENS_TWO = Duty({"op": "open", "requests": [2, None]}, "more than two requests")


@pytest.mark.parametrize(
    ("first", "second", "promises"),
    [
        (paging.Manager, paging.Manager, {}),
        (paging.Manager, paging.Manager, {"refuses": False}),
        (paging.Manager, paging.Manager, {"duties": (OPENS_TWO,)}),
        (Idle, Idle, {}),
        (Miscounting, Miscounting, {}),
        (Failing, paging.Manager, {}),
    ],
)
def test_where_there_is_a_choice_each_result_is_that_of_a_run_alone(
    first: type[paging.Manager], second: type[paging.Manager], promises: dict[str, Any]
) -> None:
    """Unless it is apart. What need not be refused is left out, and what callers must
    not do."""
    backends = [paging.declare(one, **promises) for one in (first, second)]
    wrong = [0, 0]
    for runs in run_paged(*backends):
        for number, one in enumerate(runs):
            coverage: Coverage = Counter()
            alone = run(one.program, one.backend, coverage=coverage)
            if not one.is_apart:
                assert (one.result, one.coverage) == (alone, coverage)
            if alone.divergence is None:
                assert alone.steps + alone.skipped == len(one.program.ops)
            wrong[number] += alone.divergence is not None
            assert not one.is_apart or (first, second) == (Idle, Idle)
    right = [one is paging.Manager for one in (first, second)]
    assert [not count for count in wrong] == right


def test_an_answer_is_compared_without_its_layout() -> None:
    parts = [{"visible": [[0]], "columns": columns} for columns in ([1, 0], [0, 1])]
    for names in ("caches", "layers"):
        first, second = ({names: [part], **part} for part in parts)
        assert is_same(first, second)
        assert not is_same(first, {**second, "visible": [[1]]})
    assert is_same({"error": "usage", "why": "a"}, {"error": "usage", "why": "b"})
    assert not is_same({"error": "usage", "why": "a"}, {"error": "shared", "why": "a"})


def test_a_backend_that_chooses_otherwise_runs_alone() -> None:
    apart = 0
    for first, second in run_paged(paging.declare(), paging.declare(Sparing)):
        assert (first.result.divergence, first.is_apart) == (None, False)
        assert second.result.divergence is None
        apart += second.is_apart
        assert bool(second.coverage) != second.is_apart
    assert 0 < apart < 40


# --- one slice --------------------------------------------------------------------------


def check_slice(
    folder: Path, first: Backend, second: Backend, kind: str = "kv", **more: Any
) -> tuple[list[Event], SliceDone]:
    """A slice of two backends; its events and its answer."""
    contract = next(name for name, rules in CONTRACTS.items() if kind in rules.kinds)
    more = {"group": {"second": {}}, **more}
    task = RandomTask(*("first", contract, kind, 0), seed=1, programs=50, **more)
    events: list[Event] = []
    record = Record(folder / "record.json")
    runner = Runner(record, events.append)
    known = task.group.get("second", {})
    done = RandomSlice(runner, first, task, [BackendRun(runner, second, task, known, 1)])
    answer = done.check()
    record.close()
    return events, answer


def choose(events: list[Event], is_beside: bool) -> list[Event]:
    """The events about the second backend, or about the first."""
    if is_beside:
        return [event.inner for event in events if isinstance(event, OfGroup)]
    return [event for event in events if not isinstance(event, OfGroup)]


@pytest.mark.parametrize("is_beside", [False, True])
def test_a_mistake_is_told_of_the_backend_that_makes_it(
    tmp_path: Path, is_beside: bool
) -> None:
    backends = [misbehave(forget)(), plain()]
    events, first = check_slice(tmp_path, *backends[:: -1 if is_beside else 1])
    second = choose(events, True)[-1]
    assert isinstance(second, SliceDone)
    wrong, right = (second, first) if is_beside else (first, second)
    assert right.counts.signatures == {}
    assert sum(wrong.counts.signatures.values()) > 10
    assert right.counts.programs == wrong.counts.programs == 50
    found = [one for one in choose(events, is_beside) if isinstance(one, Found)]
    assert found and found[-1].original
    assert not any(isinstance(one, Found) for one in choose(events, not is_beside))


def test_each_backend_comes_first_in_turns() -> None:
    every = [number for number in range(1, 500) if is_watched(number - 1)]
    for sides in (2, 3, 5):
        for numbers in (range(1, 500), every):
            first = Counter(choose_first(number, sides) for number in numbers)
            assert len(first) == sides, first
            assert max(first.values()) <= min(first.values()) + 2, first


def test_a_worker_is_told_what_is_known_of_each(tmp_path: Path) -> None:
    names = f"{HERE}:raises", "layer", "kv", 0
    known = {"layer-kv-update-error": Shown(64, {"0" * 12: []})}
    task = RandomTask(*names, known, seed=1, programs=20)
    with Pool(1, tmp_path / "running") as pool:
        for first, second in ((known, {}), ({}, known)):
            group = {f"{HERE}:raises_too": second}
            asked = structs.replace(task, known=first, group=group)
            events = [event for _, event in run_here(pool, deque([asked]))]
            for is_beside, own in ((False, first), (True, second)):
                is_found = any(isinstance(e, Found) for e in choose(events, is_beside))
                assert is_found is not bool(own)


def test_the_record_names_the_backend_whose_turn_it_is(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def look(side: int) -> Backend:
        def append(cache: Cache, keys: Any, values: Any) -> Any:
            meta = json.loads((tmp_path / "record.json").read_bytes())["meta"]
            seen.append((side, meta["side"]))
            return Cache.update(cache, keys, values)

        return misbehave(append)()

    check_slice(tmp_path, look(0), look(1))
    assert {*seen} == {(0, 0), (1, 1)}


def test_a_digest_is_that_of_the_programs_as_a_backend_declares_them(
    tmp_path: Path,
) -> None:
    """What diverges has run again alone, and has written its programs into the record."""
    digests = []
    for second in (plain(), misbehave(forget)()):
        events, first = check_slice(tmp_path, plain_with_variants(), second)
        done = choose(events, True)[-1]
        assert isinstance(done, SliceDone) and done.digest != first.digest
        digests.append(done.digest)
    assert digests[0] == digests[1]


# --- which backends ---------------------------------------------------------------------


def declare(**more: Any) -> Declared:
    own: dict[str, Any] = {"versions": {}, "device": "cpu", "contracts": {}}
    return Declared(**{**own, "dtypes": ["float32"], "share": 1, **more})


def group(kinds: dict[str, Kind], **declared: Declared) -> dict[str, list[str]]:
    pairs = [Pair(name, "layer", "rotating", kind) for name, kind in kinds.items()]
    every = {name: declared.get(name, declare()) for name in kinds}
    groups = group_pairs(pairs, every)
    names = [[pair.backend for pair in group] for group in groups if len(group) > 1]
    return {first: others for first, *others in names}


PLAIN = declare_all("layer", "rotating", config={"window": (2, 4)}, refuses=True)


def test_those_that_declare_the_same_run_together() -> None:
    more = replace(PLAIN, config={**PLAIN.config, "scope": (0, 1), "variant": (0, 1)})
    held = replace(PLAIN, inputs="kept", held=2.0)
    # The programs of all are drawn as the one declares that has the most fields.
    assert group({"a": PLAIN, "b": more, "c": held}) == {"b": ["a", "c"]}


@pytest.mark.parametrize(
    "more", [{"has_ledger": True}, {"name": "a driver"}, {"dtypes": ["float16"]}]
)
def test_nor_those_whose_programs_are_their_own(more: dict[str, Any]) -> None:
    assert group({"a": PLAIN, "b": PLAIN}, b=declare(**more)) == {}


# --- the check --------------------------------------------------------------------------


PROGRAMS = SLICE + 2


def check(run: Command, *names: str, **more: object) -> tuple[Ended, dict[str, Any]]:
    """The command, and what it says of each backend."""
    backends = [word for name in names for word in ("--backend", f"{HERE}:{name}")]
    options = [word for name, value in more.items() for word in (f"--{name}", value)]
    ended = run("check", *backends, "--programs", PROGRAMS, *options)
    outcome = json.loads(Path("failures/outcome.json").read_text())
    return ended, {one["backend"].split(":")[1]: one for one in outcome["pairs"]}


def test_one_program_is_drawn_for_both(run: Command) -> None:
    ended, pairs = check(run, "plain", "also_plain")
    assert ended.status == 0
    assert {one["programs_of"] for one in pairs.values()} == {"", f"{HERE}:plain"}
    assert {one["programs"] for one in pairs.values()} == {PROGRAMS}
    assert len({one["digest"] for one in pairs.values()}) == 1


@pytest.mark.parametrize("wrong", ["dies", "dies_when_freed"])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_crash_is_blamed_on_one_and_the_other_goes_on(
    run_workers: Command, wrong: str, is_first: bool
) -> None:
    """Also one that shows in the turn of the other."""
    names = (wrong, "plain") if is_first else ("plain", wrong)
    ended, pairs = check(run_workers, *names, jobs=2)
    assert ended.status == 1
    assert (pairs["plain"]["crashes"], pairs["plain"]["programs"]) == (0, PROGRAMS)
    assert not pairs["plain"]["failures"] and not pairs["plain"]["errors"]
    assert pairs[wrong]["crashes"] > 0 and pairs[wrong]["failures"]
    (path,) = Path("failures").glob("layer-*/*.json")
    assert path.name.endswith(f"{misbehaving.__name__}-{wrong}.json")


# --- what shows beside another backend only ---------------------------------------------


FREES, REUSES = f"{HERE}:frees", f"{HERE}:reuses"
BESIDE = f"diverges beside {FREES}; agrees alone: "


def test_backends_that_share_something(run: Command) -> None:
    """All programs run on both, and what one breaks of the other is told."""
    ended, pairs = check(run, "shares", "shares_too")
    assert ended.status == 1 and pairs["shares"]["failures"]
    assert {one["programs"] for one in pairs.values()} == {PROGRAMS}
    assert f"diverges beside {HERE}:shares_too; agrees alone: " in ended.words
    assert "all agree" not in ended.words


def test_memory_that_another_backend_has_freed(run: Command) -> None:
    """A failure beside this backend is told, saved, and runs again beside it."""
    ended, pairs = check(run, "frees", "reuses", "plain")
    assert ended.status == 1
    assert not pairs["frees"]["failures"] and not pairs["plain"]["failures"]
    (failure,) = pairs["reuses"]["failures"]
    assert failure["divergence"]["beside"] == [FREES]
    assert failure["divergence"]["message"].startswith(BESIDE)
    assert (failure["flaky"], failure["operations"]) == (None, 3)
    assert BESIDE in ended.words
    path = Path(failure["path"])
    (program,) = load_programs(path)
    assert program.meta["beside"] == [FREES]
    line = f"lockstep replay {path} --backend {REUSES} --backend {FREES}"
    assert line in ended.words and program.meta["replay"] == line
    both = "--backend", REUSES, "--backend", FREES
    again = run("replay", path, *both)
    assert (again.status, again.out.count("\n")) == (1, 1)
    assert again.out.startswith(f"FLAKY {REUSES}") and BESIDE in again.words
    alone = run("replay", path, "--backend", REUSES)
    assert alone.status == 1 and alone.out.startswith("FLAKY")
    words = f"it ran alone, but diverged beside {FREES}; name these, too, with --backend"
    assert words in alone.words
    # Trust: a backend of a file is imported if it is named elsewhere, too.
    Path("pyproject.toml").write_text(f'[tool.lockstep]\nbackends = ["{FREES}"]\n')
    for command in ("replay", "show", "shrink"):
        said = run(command, path, "--backend", REUSES)
        assert BESIDE in said.words, said
    refused = run("snippet", path, "--backend", REUSES)
    assert refused.status == 2 and "diverges only beside" in refused.words
    assert run("report", "-o", "page", *both).status == 0
    page = Path("page/report.html").read_text()
    assert BESIDE in page and "agrees now" not in page
    mended = run("replay", path, "--backend", f"{HERE}:plain")
    assert mended.status == 0
    Path("pyproject.toml").unlink()
    for backends, status in (((REUSES, FREES), 1), ((REUSES,), 0)):
        options = [word for name in backends for word in ("--backend", name)]
        ended = run("check", *options, "--programs", 1, "--seed", 2, "--json")
        outcome = json.loads(ended.out)
        listed = [one["path"] for pair in outcome["pairs"] for one in pair["failures"]]
        assert (ended.status, listed) == (status, [str(path)] * status)
        assert outcome["saved"]["absent"] == [str(path)] * (1 - status)


def test_a_crash_beside_another_backend(run_workers: Command) -> None:
    ended, pairs = check(run_workers, "frees", "dies_reusing", jobs=1)
    assert ended.status == 1
    assert {one["programs"] for one in pairs.values()} == {PROGRAMS}
    (failure,) = pairs["dies_reusing"]["failures"]
    assert failure["divergence"]["what"] == "crash"
    assert failure["divergence"]["message"].startswith(BESIDE)
    assert (failure["operations"], failure["flaky"]) == (3, None)
    options = "--backend", f"{HERE}:dies_reusing", "--backend", FREES
    again = run_workers("replay", failure["path"], *options)
    assert (again.status, again.out.split()[0]) == (1, "FLAKY")


def plan_both(folder: Path) -> tuple[Shards, list[Pair]]:
    """The shards of two backends in one group: one that waits, and two deferred ones."""
    settings = Settings(programs=3 * SLICE, least=SLICE, failures=folder)
    kind = plain().contracts["layer"]["kv"]
    pairs = [Pair(name, "layer", "kv", kind) for name in ("first", "second")]
    shards = Shards(Outcome(settings, pairs), [pairs], lambda _: None)
    shards.plan()
    return shards, pairs


def test_what_a_backend_has_finished_beside_another_that_dies_counts_once(
    tmp_path: Path,
) -> None:
    """Of both of them the slices that come later are run, too."""
    shards, (first, second) = plan_both(tmp_path)
    task = shards.tasks.popleft()
    assert isinstance(task, RandomTask) and not shards.tasks
    done = SliceDone(Counts(programs=SLICE), [("empty", "update", 1)], "0")
    shards.take(task, OfGroup(1, done))
    shards.take(task, Died.before("gone"))
    assert second.programs == SLICE
    waiting = [(one.backend, one.number) for one in shards.tasks]
    assert waiting == [("first", 0), ("second", 1)]
    assert [one.number for one in shards.deferred[first.key]] == [1, 2]


FAILURE = Failure(
    make(update(1)),
    Divergence("error", 0, "update", "raised ValueError"),
    *("first", "layer-kv-update-error", Path("none.json")),
)


@pytest.mark.parametrize("wrong", [None, 0, 1])
def test_a_backend_that_is_wrong_does_not_decide_how_much_runs(
    tmp_path: Path, wrong: int | None
) -> None:
    """Where it fails, a program ends for it: it reaches less than the others."""
    shards, pairs = plan_both(tmp_path)
    task = shards.tasks.popleft()
    assert isinstance(task, RandomTask)
    often = [(state, op, OFTEN) for state, op in pairs[0].cells]
    state, op = pairs[0].cells[0]
    seldom = [(state, op, 1), *often[1:]]
    reached = seldom if wrong == 0 else often, seldom if wrong == 1 else often
    if wrong is None:
        reached = often, seldom
    else:
        pairs[wrong].failures.append(FAILURE)
    first, second = (SliceDone(Counts(), cells, "0") for cells in reached)
    shards.take(task, OfGroup(1, second))
    shards.take(task, first)
    assert bool(shards.tasks) == (wrong is None)
    assert {pair.wanted for pair in pairs} == {SLICE if wrong is not None else 3 * SLICE}


@pytest.mark.parametrize("names", [("leaves", "takes"), ("takes", "leaves")])
def test_no_backend_lives_on_what_another_leaves_behind(
    run: Command, names: tuple[str, str]
) -> None:
    """As memory that is not written may hold what another backend has freed."""
    _, pairs = check(run, *names)
    assert pairs["takes"]["failures"] and not pairs["leaves"]["failures"]


@pytest.mark.parametrize("other", ["plain", "plain_with_variants"])
def test_what_is_not_written_yet_is_left_out_after_a_slice(
    run: Command, other: str
) -> None:
    """Whoever's programs it runs: those of the one that declares the most fields."""
    _, pairs = check(run, "has_nothing_yet", other)
    assert pairs["has_nothing_yet"]["programs"] == SLICE
    assert (pairs[other]["programs"], pairs[other]["failures"]) == (PROGRAMS, [])


# --- what others answer -----------------------------------------------------------------


def test_a_report_tells_whom_to_suspect(run: Command) -> None:
    """What other backends answer to the program of a failure."""
    ended, pairs = check(run, "raises", "correct", "has_no_trim_yet")
    (failure,) = pairs["raises"]["failures"]
    right = {f"{HERE}:{name}": "agrees" for name in ("correct", "has_no_trim_yet")}
    assert failure["answers"] == right
    assert (
        f"agrees with the reference: {HERE}:correct, {HERE}:has_no_trim_yet"
        in ended.words
    )
    assert "suspect" not in ended.words
    page = run("report", "--format", "markdown")
    assert f"agrees with the reference: {HERE}:correct" in page.words


def test_backends_that_give_one_wrong_answer(run: Command) -> None:
    ended, pairs = check(run, "raises", "raises_too", "raises_at_length")
    of = pairs["raises"]["failures"][0]["answers"]
    signature = pairs["raises"]["failures"][0]["signature"]
    assert of == {
        f"{HERE}:raises_too": "same",
        f"{HERE}:raises_at_length": signature,
    }
    assert f"gives the same wrong answer: {HERE}:raises_too" in ended.words
    assert f"gives another answer: {HERE}:raises_at_length ({signature})" in ended.words


class Answering(Pool):
    """All backends agree, but for the one that dies. asked: backends, in turn."""

    def __init__(self, folder: Path) -> None:
        super().__init__(1, folder)
        self.asked: list[str] = []

    def run(self, tasks: deque[Any], watch: Any = None) -> Iterator[tuple[Any, Any]]:
        for task in tasks:
            self.asked.append(task.backend)
            watch()
            died = Died.before("gone") if task.backend == "dies" else None
            yield task, died or Ran({}, "cpu", None, 1, 0, None)


def test_a_backend_that_dies_is_not_asked_again(tmp_path: Path) -> None:
    """Another one of the kind is; those of other kinds never."""
    kind = plain().contracts["layer"]["kv"]
    places = [("first", "kv"), ("dies", "kv"), ("right", "kv"), ("other", "rotating")]
    pairs = [Pair(name, "layer", own, kind) for name, own in places]
    pairs[0].failures += [FAILURE, replace(FAILURE, cause=1)]
    watched = []
    with Answering(tmp_path) as pool:
        compare_backends(pool, pairs, lambda: watched.append(1))
    assert pool.asked == ["dies", "right", "right"]
    assert len(watched) == 3
    found = {tuple(one.answers.items()) for one in pairs[0].failures}
    assert found == {(("right", "agrees"),)}


def test_no_backend_is_checked_against_what_another_has_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_backend, held = Schedule.run_backend, []

    def look(self: Schedule, op: Op, system: Any, model: Any) -> Answer:
        request = model.cache.requests.get(op["request"])
        held.append(request and request.scheduled)
        return run_backend(self, op, system, model)

    monkeypatch.setattr(Schedule, "run_backend", look)
    for _ in run_paged(paging.declare(), paging.declare()):
        assert held[::2] == held[1::2]
        held.clear()


def test_an_event_about_a_backend_that_the_task_has_not() -> None:
    task = RandomTask(*("first", "layer", "kv", 0), seed=1, programs=1)
    event = encode(OfGroup(1, Progress(Counts())))
    with pytest.raises(ValueError, match="no backend of the number 1"):
        decode_event(event, task)
