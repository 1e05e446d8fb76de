"""Failures that earlier runs have saved: a check runs them again before all else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend, Duty
from lockstep.harness.jobs.check import MAX_SAVED, list_saved_files, plan_saved
from lockstep.harness.jobs.failures import make_failure, save
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.jobs.shards import Shards
from lockstep.harness.programs.program import Divergence, Program, load_programs
from lockstep.harness.workers.runner import Runner
from tests.harness.building import SMALL, make, trim, update
from tests.harness.commands import CORRECT, HERE, Ended, Run, run_slice
from tests.harness.misbehaving import WrongTwice, correct, declare, wrong_twice

SIGNATURE = "layer-kv-update-contents"
WRONG = f"{HERE}:wrong_twice"

SEEDS = 200
"""How many are tried: most programs show what is wrong, but one in 20 is short."""

SHORT, LONG = make(update(5), **SMALL), make(*[update(1)] * 9, update(6), **SMALL)
AFTER_TRIM = make(update(2), trim(1), update(1), **SMALL)

Check = Callable[..., tuple[dict[str, Any], Ended]]


def keep(
    program: Program, backend: str = WRONG, what: str = "contents", **meta: Any
) -> Path:
    """Saves a failure in the folder `failures`, as a run that found it."""
    last = len(program.ops) - 1
    divergence = Divergence(what, last, program.ops[last]["op"], "as it was")
    failure = make_failure(Path("failures"), program, divergence, backend, {}, meta)
    return save(failure).path


def list_files() -> set[Path]:
    return set(Path("failures").glob("*-*/*.json"))


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory) -> int:
    """A seed whose first program shows nothing that is wrong."""
    folder, backend = tmp_path_factory.mktemp("blind"), wrong_twice()
    return next(
        seed
        for seed in range(SEEDS)
        if not run_slice(folder, backend, 1, seed=seed)[0].counts.signatures
    )


@pytest.fixture
def check(run: Run, blind: int) -> Check:
    """`lockstep check --json` with few programs; returns what it has printed."""
    return lambda *arguments: check_with(run, blind, *arguments)


def check_with(
    run: Run, seed: int, backend: str = WRONG, *more: Any
) -> tuple[dict[str, Any], Ended]:
    ended = run(
        *("check", "--backend", backend, "--jobs", 1, "--json"),
        *("--programs", 1, "--seed", seed, *more),
    )
    return json.loads(ended.out), ended


def list_paths(outcome: dict[str, Any]) -> list[Path]:
    return [Path(one["path"]) for pair in outcome["pairs"] for one in pair["failures"]]


# --- what still fails -------------------------------------------------------------------


def test_what_was_found_is_found_again_at_once(
    check: Check, run: Run, blind: int
) -> None:
    """By a run whose own programs show nothing; the files stay as they are."""
    first, ended = check(WRONG, "--programs", 60)
    assert (ended.status, first["saved"]["ran"]) == (1, 0)
    files = {path: path.read_bytes() for path in list_files()}
    assert set(files) == set(list_paths(first)) and len(files) == 2
    plain, ended = check(WRONG, "--failures", "empty")
    assert (ended.status, plain["pairs"][0]["programs"]) == (0, 1)
    again, ended = check(WRONG)
    assert (ended.status, again["exit_status"]) == (1, 1)
    assert set(list_paths(again)) == set(files)
    assert {path: path.read_bytes() for path in list_files()} == files
    assert again["saved"] == {**plain["saved"], "ran": 2}
    for name in ("digest", "programs", "wanted", "steps", "coverage", "signatures"):
        assert again["pairs"][0][name] == plain["pairs"][0][name]
    shown = run(
        "check", "--backend", WRONG, "--programs", 1, "--seed", blind, "--jobs", 1
    )
    assert "2 saved failures run again" in shown.words
    assert f"lockstep replay {next(iter(files))} --backend" in shown.words


def test_slices_know_what_still_fails(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They shorten fewer programs that have its signature."""
    counts: Counter[str] = Counter()
    shrink = Runner.shrink

    def count(self: Runner, *given: Any) -> Any:
        counts["now"] += 1
        return shrink(self, *given)

    monkeypatch.setattr(Runner, "shrink", count)
    check(WRONG, "--programs", 40)
    before = counts.pop("now")
    check(WRONG, "--programs", 40)
    assert 2 * counts["now"] < before


def test_files_of_earlier_runs_are_not_removed(check: Check) -> None:
    """Of one form the simplest is told, of one signature three."""
    paths = [
        keep(program) for program in (LONG, SHORT, AFTER_TRIM, make(update(7), **SMALL))
    ]
    outcome, _ = check()
    assert set(list_paths(outcome)) == {paths[0], paths[1], paths[2]}
    assert list_files() == set(paths)
    outcome, _ = check(WRONG, "--programs", 60)
    assert set(paths) <= list_files()


def test_another_signature_is_a_new_failure(check: Check) -> None:
    old = keep(make(update(5), update(1), **SMALL), what="mask")
    outcome, ended = check()
    assert ended.status == 1
    (path,) = list_paths(outcome)
    assert path.parent.name == SIGNATURE and list_files() == {old, path}
    (program,) = load_programs(path)
    assert [op["length"] for op in program.ops] == [5]
    assert program.meta["found"] == {"saved": str(old)}
    outcome, _ = check()
    assert outcome["saved"]["ran"] == 2 and list_paths(outcome) == [path]


def test_one_that_ends_its_process(run_workers: Run, blind: int) -> None:
    """It costs one process, and the others with its signature none."""
    dies = f"{HERE}:dies"
    paths = [keep(make(update(n), **SMALL), dies, "crash") for n in (3, 4, 5)]
    outcome, ended = check_with(run_workers, blind, dies)
    assert ended.status == 1
    assert list_paths(outcome) == [paths[0]]
    assert outcome["pairs"][0]["failures"][0]["divergence"]["what"] == "crash"
    assert (outcome["saved"]["ran"], outcome["saved"]["left_out"]) == (1, 2)
    assert "SIGSEGV" in outcome["pairs"][0]["failures"][0]["divergence"]["message"]
    assert set(paths) == list_files() and not Path("failures/running").exists()


# --- what does not ----------------------------------------------------------------------


def test_what_agrees_now_is_told(check: Check, run: Run) -> None:
    """The file stays, and pages no longer count it among the failures."""
    path, plain = keep(SHORT, CORRECT), check(CORRECT, "--failures", "empty")[0]
    outcome, ended = check(CORRECT)
    assert (ended.status, outcome["saved"]["agreeing"]) == (0, [str(path)])
    for name in ("digest", "programs", "wanted", "steps", "failures"):
        assert outcome["pairs"][0][name] == plain["pairs"][0][name]
    shown = run("check", "--backend", CORRECT, "--programs", 1, "--jobs", 1)
    assert shown.status == 0
    assert f"1 saved failure agrees now: {path}; `lockstep replay`" in shown.words
    assert "1 saved failure run again" in shown.words
    assert path.exists()
    page = run("report", "failures", "--format", "markdown").out
    assert "1 saved failure agrees now" in page and "lockstep replay " not in page
    assert "all agree" in page
    other = Path("other", *path.parts[1:])
    other.parent.mkdir(parents=True)
    path.rename(other)
    page = run("report", ".", "--format", "markdown").out
    assert "lockstep replay " in page and str(other) in page


def test_flaky_failures_run_as_often_as_they_did(check: Check) -> None:
    """One that does not come back is not called mended."""
    path = keep(SHORT, CORRECT, flaky="1 of 4")
    outcome, ended = check(CORRECT)
    assert (ended.status, outcome["saved"]["agreeing"]) == (0, [])
    assert outcome["saved"]["absent"] == [str(path)]
    keep(SHORT, flaky="1 of 4")
    outcome, ended = check()
    assert (ended.status, outcome["pairs"][0]["failures"][0]["flaky"]) == (1, "4 of 4")


def test_what_cannot_run_is_passed_over(check: Check) -> None:
    """Other sizes, and operations that the backend has no more."""
    keep(make(update(5), heads=7, **SMALL))
    keep(make(update(5), {"op": "clone", "into": "b"}, **SMALL))
    outcome, ended = check(WRONG)
    assert ended.status == 0
    assert outcome["saved"] == {
        "ran": 0, "agreeing": [], "excluded": [], "absent": [], "broken": [],
        "left_out": 0,
    }  # fmt: skip


def wrong_and_excluded() -> Backend:
    """Declares, by now, that nobody makes the calls that it gets wrong."""
    backend = declare(WrongTwice)
    duty = Duty({"op": "update", "length": [5, None]}, "updates of many tokens")
    kind = replace(backend.contracts["layer"]["kv"], duties=(duty,))
    return replace(backend, contracts={"layer": {"kv": kind}})


def test_a_duty_that_is_declared_later_excludes_a_failure(
    check: Check, run: Run, blind: int
) -> None:
    backend = f"{__name__}:wrong_and_excluded"
    path = keep(SHORT, backend)
    outcome, ended = check(backend)
    assert (ended.status, outcome["saved"]["excluded"]) == (0, [str(path)])
    assert (outcome["saved"]["ran"], list_paths(outcome)) == (0, [])
    options = "--programs", 1, "--jobs", 1, "--seed", blind
    shown = run("check", "--backend", backend, *options)
    words = f"1 saved failure is EXCLUDED: it breaks a duty of callers: {path}"
    assert words in shown.words
    why = "callers of misbehaving must not make the call of step 0: updates of many"
    again = run("replay", path, "--backend", backend)
    assert again.status == 0 and again.out.startswith(f"EXCLUDED {backend}")
    assert why in again.words
    (replayed,) = json.loads(run("replay", path, "--backend", backend, "--json").out)[
        "replayed"
    ]
    assert replayed["status"] == "EXCLUDED"
    page = run("report", "failures", "--format", "markdown").out
    assert "1 saved failure is EXCLUDED" in page and "lockstep replay " not in page
    assert "all agree" in page
    for command in ("show", "shrink"):
        ended = run(command, path, "--backend", backend)
        assert ended.status == 0 and f"EXCLUDED: {why}" in ended.words


def wrong_and_known() -> Backend:
    """The ledger in the folder of the test has what is wrong with it."""
    return replace(declare(WrongTwice), ledger="ledger")


def test_a_divergence_that_the_ledger_knows_by_now(check: Check) -> None:
    backend = f"{__name__}:wrong_and_known"
    entry = {
        "id": "long-updates", "backend": "misbehaving", "kind": "kv",
        "operation": "update", "signature": SIGNATURE, "verdict": "bug", "reason": "r",
        "link": None, "when": {"op": "update", "length": [5, None]},
        "program": SHORT.to_json(),
    }  # fmt: skip
    Path("ledger").mkdir()
    Path("ledger/long-updates.json").write_text(json.dumps(entry))
    keep(make(update(9), **SMALL), backend)
    outcome, ended = check(backend)
    assert (ended.status, outcome["saved"]["ran"]) == (0, 0), ended.words
    # What the entry describes comes behind the divergence, and does not excuse it.
    keep(make(*AFTER_TRIM.ops, update(9), **SMALL), backend)
    outcome, ended = check(backend)
    assert (ended.status, len(list_paths(outcome))) == (1, 1)


def test_what_is_broken_is_told_in_a_line(check: Check, run: Run) -> None:
    path = keep(SHORT, CORRECT)
    path.write_text("{")
    outcome, ended = check(CORRECT)
    assert ended.status == 0
    assert [str(path) in line for line in outcome["saved"]["broken"]] == [True]
    shown = run("check", "--backend", CORRECT, "--programs", 1, "--jobs", 1)
    assert f"1 saved file cannot be read: {path}: is not JSON" in shown.words


# --- which files are read ---------------------------------------------------------------


def make_pair(contract: str, kind: str, backend: str = "mine") -> Pair:
    return Pair(backend, contract, kind, correct().contracts["layer"]["kv"])


def test_only_files_of_the_pair_are_read(tmp_path: Path) -> None:
    pair, names = make_pair("unified", "swa"), []
    for folder, name in (
        ("unified-swa-forward-mask", "0123456789ab-mine.json"),
        ("unified-swa-remove-result", "0123456789ab-mine.json"),
        ("unified-swa-memory-forward-mask", "0123456789ab-mine.json"),  # another kind
        ("unified-swa-forward-mask", "0123456789ab-not-mine.json"),
        ("unified-swa-forward-mask", "notes-mine.json"),
        ("layer-kv-update-mask", "0123456789ab-mine.json"),
        ("outdated", "0123456789ab-mine.json"),
    ):
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}" if names else "{ }")
        names.append(path)
    (tmp_path / "unified-swa-forward-mask" / "ba9876543210-mine.json").mkdir()
    assert list_saved_files(tmp_path, pair) == [names[1], names[0]]
    assert list_saved_files(tmp_path, make_pair("unified", "swa-memory")) == [names[2]]
    assert list_saved_files(tmp_path / "lost", pair) == []


def test_the_smallest_files_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are counted, and none is removed."""
    monkeypatch.chdir(tmp_path)
    programs = [make(*[update(1)] * length) for length in range(1, MAX_SAVED + 4)]
    paths = [keep(program, "mine") for program in programs]
    pair = make_pair("layer", "kv")
    outcome = Outcome(Settings(), [pair])
    shards = Shards(outcome, [[pair]], lambda _: None)
    plan_saved(shards)
    digests = [saved.failure.program.digest() for saved in shards.saved]
    assert digests == [program.digest() for program in programs[:MAX_SAVED]]
    assert len(shards.tasks) == MAX_SAVED == 100
    assert outcome.saved.left_out == 3
    names = {f"{path.parent.name}/{path.name}" for path in paths}
    assert shards.failures.protected == names
