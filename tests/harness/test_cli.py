"""The command: exit status, one line for what it cannot do, and output that fits."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lockstep.harness import __version__
from lockstep.harness.cli.main import main

ROOT = Path(__file__).parents[2]
CORRECT = "tests.harness.misbehaving:correct"
RAISES = "tests.harness.misbehaving:factory_raises"

Lockstep = Callable[..., Any]

PROGRAM: dict[str, Any] = {
    "format": "lockstep/1",
    "contract": "layer",
    "config": {"kind": "rotating", "window": 2},
    "ops": [
        {"op": "update", "length": 3},
        {"op": "snapshot", "from": 1, "into": "s0"},
        {"op": "trim", "count": 1},
        {"op": "merge", "parent": "s1", "child": "s0", "into": "s2"},
        {"op": "update", "length": 1},
        {"op": "restore", "snapshot": "s0", "target": 3},
        {"op": "update", "length": 1},
        {"op": "state"},
        {"op": "size"},
        {"op": "free"},
    ],
}
EXPECTED: list[dict[str, Any]] = [
    {"offset": 3, "visible": [[0], [0, 1], [1, 2]]},
    {"range": [1, 3]},
    {"trimmed": 0, "offset": 3},
    {"skipped": "there is no snapshot s1"},
    {"offset": 4, "visible": [[2, 3]]},
    {"ok": True, "offset": 3},
    {"offset": 4, "visible": [[2, 4]]},
    {"tags": [2, 4]},
    {"size": 2},
    {"offset": 0},
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command in this process; failures would go to a folder of the test."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, [str(one) for one in arguments])


Run = Callable[..., Result]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(PROGRAM))
    return path


# --- what it refuses --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "Usage"),
        ("chekc", "No such command"),
        ("check --sed 1", "--sed"),
        ("check --seed x", "'x' is not a valid integer"),
        ("check --programs 0", "0 is not in the range x>=1"),
        ("check --programs -3", "-3 is not in the range"),
        ("check --jobs 0", "0 is not in the range"),
        ("check --jobs 1e3", "'1e3' is not a valid integer"),
        ("check --time -1", "-1.0 is not in the range x>=0"),
        (f"check --time nan --programs 1 --backend {CORRECT}", "nan"),
        (f"check --step-time nan --programs 1 --backend {CORRECT}", "nan"),
        ("check --step-time 0", "0.0 is not in the range"),
        ("check --profile fast", "'fast' is not one of 'quick', 'ci', "),
        ("check --front guess", "'guess' is not one of"),
        ("check --kind kvv", "there is no kind kvv; did you mean kv?"),
        ("check --kind casual", "there is no kind casual; did you mean causal?"),
        ("check --failures p.json", "is a file"),
        ("check extra", "unexpected extra argument"),
        ("check --backend torch-cup", "no backend has this name; did you mean torch-c"),
        ("check --backend zzz", "no backend has this name; known: mlx-cpu, "),
        ("replay", "Missing argument 'PATH…'"),
        ("replay nothing.json", "nothing.json: there is no such file"),
        ("replay empty", "empty: no program file (.json, .jsonl) in this folder"),
        ("replay p.json", "p.json: names no registered backend; give one with --backend"),
        ("replay p.json --backend torch-cup", "did you mean torch-cpu"),
        ("replay bad.json", "bad.json: is not JSON: "),
        ("trace", "Missing argument 'FILE'"),
        ("trace nothing.json", "nothing.json: there is no such file"),
        ("trace empty", "empty: no program file (.json, .jsonl) in this folder"),
        ("trace bad.json", "bad.json: is not JSON: "),
        ("shrink nothing.json", "nothing.json: there is no such file"),
        ("shrink p.json", "p.json: names no registered backend"),
        ("shrink two.jsonl --backend torch-cpu", "two.jsonl: holds 2 programs; give one"),
        ("backends --backend torch-cup", "did you mean torch-cpu"),
    ],
)
def test_what_is_refused(
    run: Run, tmp_path: Path, program: Path, arguments: str, words: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "two.jsonl").write_text(2 * (json.dumps(PROGRAM) + "\n"))
    before = sorted(tmp_path.iterdir())
    ended = run(*arguments.split())
    assert ended.exit_code == 2
    assert words in " ".join(ended.output.split())
    assert "Traceback" not in ended.output
    assert ended.stdout == ""
    assert ended.stderr.startswith(("Usage: ", "lockstep: "))
    if ended.stderr.startswith("lockstep: "):
        assert ended.stderr.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_bad_file_among_good_ones_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "b.json").write_text("{")
    good = {"config": {"kind": "kv"}, "ops": [{"op": "update", "length": 3}]}
    (tmp_path / "all" / "a.json").write_text(json.dumps({**PROGRAM, **good}))
    ended = run("replay", "all", "--backend", CORRECT)
    assert (ended.exit_code, "Traceback" in ended.output) == (2, False)
    assert "b.json: is not JSON" in ended.stderr


def test_what_was_skipped_is_said(run: Run, tmp_path: Path) -> None:
    """An unknown snapshot is no error, but agreement must not look complete."""
    ops = [
        {"op": "update", "length": 2},
        {"op": "restore", "snapshot": "zz", "target": 0},
    ]
    program = {**PROGRAM, "config": {"kind": "kv"}, "ops": ops}
    (tmp_path / "skips.json").write_text(json.dumps(program))
    (tmp_path / "skips_all.json").write_text(json.dumps({**program, "ops": ops[1:]}))
    ended = run("replay", "skips.json", "skips_all.json", "--backend", "torch-cpu")
    assert ended.exit_code == 2
    assert "FIXED torch-cpu skips.json: agrees in its one step; " in ended.output
    assert "1 skipped, first: there is no snapshot zz" in " ".join(ended.output.split())
    words = "no step was run; the first: there is no snapshot zz"
    assert f"ERROR torch-cpu skips_all.json: {words}" in ended.output


# --- help -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*main.commands, "vectors verify"])
def test_every_command_has_help_with_examples_that_exist(run: Run, name: str) -> None:
    ended = run(*name.split(), "--help")
    assert ended.exit_code == 0
    assert ended.output.startswith("Usage:")
    assert all(len(line) <= 88 for line in ended.output.splitlines())
    start = f"    lockstep {name} "
    lines = [line for line in ended.output.splitlines() if line.startswith(start)]
    assert lines or name in ("backends", "doctor", "snippet", "shrink", "trace")
    known = set(ended.output.replace(",", " ").split())
    for line in lines:
        command = line.strip().partition("   ")[0].split()
        assert {word for word in command if word.startswith("--")} <= known


def test_version(run: Run) -> None:
    assert run("--version").output.split()[-1] == __version__


# --- trace and replay -------------------------------------------------------------------


def test_trace_of_a_program_written_by_hand(run: Run, program: Path) -> None:
    ended = run("trace", program)
    assert ended.exit_code == 0
    head = {"format": "lockstep-trace/1", "program": PROGRAM}
    assert json.loads(ended.stdout) == {**head, "expected": EXPECTED}
    assert ended.stderr == ""
    program.with_name("t.json").write_text(ended.stdout)  # a trace is a program, too
    assert run("trace", "t.json").stdout == ended.stdout
    program.with_name("two.jsonl").write_text(2 * (json.dumps(PROGRAM) + "\n"))
    lines = run("trace", "two.jsonl").stdout.splitlines()
    assert [json.loads(line)["expected"] for line in lines] == [EXPECTED, EXPECTED]


def test_replay_of_what_agrees_and_what_cannot_be_run(
    run: Run, tmp_path: Path, program: Path
) -> None:
    ops = [{"op": "update", "length": 3}, {"op": "trim", "count": 1}]
    good = {**PROGRAM, "config": {"kind": "kv"}, "ops": ops}
    (tmp_path / "g.json").write_text(json.dumps(good))
    ended = run("replay", "g.json", "--backend", CORRECT)
    assert ended.exit_code == 0
    assert ended.output == f"FIXED {CORRECT} g.json: agrees in all 2 steps\n"
    more = {**good, "ops": [*ops, {"op": "view"}]}
    (tmp_path / "m.json").write_text(json.dumps(more))
    ended = run("replay", "p.json", "m.json", "--backend", CORRECT)
    assert ended.exit_code == 2
    assert "declares no layer cache of kind rotating (it has: kv)" in ended.output
    assert "does not declare view" in ended.output


def test_a_file_does_not_choose_what_is_imported(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({**PROGRAM, "meta": {"backend": CORRECT}}))
    ended = run("replay", path)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "names no registered backend" in ended.stderr


# --- check ------------------------------------------------------------------------------


def test_the_output_fits_in_80_columns(lockstep: Lockstep, tmp_path: Path) -> None:
    """But for lines that are to be copied."""
    name = "tests.harness.misbehaving:shows_nan"
    pairs = ("--backend", name, "--backend", CORRECT, "--backend", RAISES)
    size = ("--programs", 5, "--jobs", 1, "--failures", tmp_path / "f")
    ended = lockstep("check", *pairs, *size)
    assert ended.status == 1
    lines = [line for line in ended.out.splitlines() if "lockstep replay" not in line]
    assert len(lines) > 10
    assert max(map(len, lines)) <= 80
    for words in ("✗ diverges", "✓ 5", "the driver is too old"):
        assert words in ended.out


def test_json_is_json(lockstep: Lockstep, tmp_path: Path) -> None:
    pairs = ("--backend", CORRECT, "--backend", RAISES, "--kind", "kv")
    size = ("--programs", 5, "--jobs", 1, "--failures", tmp_path / "f")
    ended = lockstep("check", *pairs, *size, "--json")
    outcome = json.loads(ended.out)
    assert (ended.status, outcome["exit_status"]) == (2, 2)
    assert outcome["unavailable"] == {
        RAISES: "its factory raised OSError: the driver is too old"
    }
    (pair,) = outcome["pairs"]
    assert (pair["backend"], pair["kind"], pair["programs"]) == (CORRECT, "kv", 5)
    assert pair["mean_length"] == round(pair["steps"] / 5, 2) > 5
    assert max(pair["coverage"].values()) <= pair["steps"]
    assert (pair["failures"], pair["errors"]) == ([], [])


def test_time_stops_a_check(lockstep: Lockstep, tmp_path: Path) -> None:
    """At the end of a shard, and says so."""
    size = ("--programs", 9000, "--jobs", 1, "--time", 2, "--failures", tmp_path)
    ended = lockstep("check", "--backend", CORRECT, *size, "--json")
    outcome = json.loads(ended.out)
    assert (ended.status, outcome["complete"]) == (0, False)
    assert outcome["pairs"][0]["programs"] < 9000


@pytest.mark.parametrize(
    ("backend", "kinds", "programs"),
    [("torch-cpu", ("kv", "rotating"), 250), ("reference", ("kv", "swa", "trie"), 32)],
)
def test_the_number_of_workers_changes_nothing(
    lockstep: Lockstep, tmp_path: Path, backend: str, kinds: Sequence[str], programs: int
) -> None:
    """Nor what a share of the programs is, which the reference gets."""
    if backend == "torch-cpu":
        pytest.importorskip("torch")
    chosen = [word for kind in kinds for word in ("--kind", kind)]
    size = ("--programs", 250, "--failures", tmp_path / "f", "--json")
    one, four = (
        json.loads(
            lockstep("check", "--backend", backend, *chosen, *size, "--jobs", jobs).out
        )
        for jobs in (1, 4)
    )
    for pair, other in zip(one["pairs"], four["pairs"], strict=True):
        assert (pair["backend"], pair["programs"]) == (backend, programs)
        for name in ("kind", "digest", "programs", "steps", "coverage", "margin"):
            assert pair[name] == other[name]
    assert len({pair["digest"] for pair in one["pairs"]}) == len(kinds)


def test_no_program_at_all_is_no_agreement(lockstep: Lockstep, tmp_path: Path) -> None:
    size = ("--programs", 5, "--jobs", 1, "--time", 0, "--failures", tmp_path / "f")
    ended = lockstep("check", "--backend", CORRECT, *size)
    assert "0 programs" in ended.words
    assert "all agree" not in ended.words


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode(
    lockstep: Lockstep, tmp_path: Path, encoding: str
) -> None:
    size = ("--programs", 2, "--jobs", 1, "--failures", tmp_path / "f")
    name = "tests.harness.misbehaving:shows_nan"
    ended = lockstep("check", "--backend", name, *size, PYTHONIOENCODING=encoding)
    assert "Traceback" not in ended.out + ended.err
    assert "layer-kv-update-contents" in ended.out
    assert ended.status == 1
