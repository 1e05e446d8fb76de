"""The command: exit status, one line for what it cannot do, and output that fits."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness import __version__
from lockstep.harness.cli.main import HOMES
from tests.harness.building import trim, update
from tests.harness.commands import CORRECT, HERE, Run, lockstep

EXPLORE = f"explore --backend {CORRECT}"
RAISES, NAN = f"{HERE}:factory_raises", f"{HERE}:shows_nan"

PROGRAM: dict[str, Any] = {
    "format": "lockstep/1",
    "contract": "layer",
    "config": {"kind": "rotating", "window": 2},
    "ops": [
        update(3),
        {"op": "snapshot", "from": 1, "into": "s0"},
        trim(1),
        {"op": "merge", "parent": "s1", "child": "s0", "into": "s2"},
        update(1),
        {"op": "restore", "snapshot": "s0", "target": 3},
        update(1),
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
def program(tmp_path: Path) -> Path:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(PROGRAM))
    return path


# --- what it refuses --------------------------------------------------------------------


def make_files(folder: Path) -> None:
    """Makes the files that commands may read, and those that they must leave alone."""
    for name in ("empty", "foreign", "linked"):
        (folder / name).mkdir()
    (folder / "file").write_text("mine")
    (folder / "foreign" / "report.html").write_text("<html>mine</html>")
    (folder / "linked" / "report.html").symlink_to(folder / "file")
    (folder / "bad.json").write_text('{"format": "lockstep-outcome/1", "pairs": [1]}')
    (folder / "cut.json").write_text("{")
    one, two = (json.dumps({**PROGRAM, "ops": ops}) for ops in ([], [update(1)]))
    (folder / "two.jsonl").write_text(f"{one}\n{two}\n")
    theirs = {**PROGRAM, "meta": {"backend": CORRECT}}  # it chooses no import
    (folder / "theirs.json").write_text(json.dumps(theirs))
    os.mkfifo(folder / "pipe.json")


REFUSED = f"""
chekc
check --sed 1
check --seed x
check --programs 0
check --jobs 0
check --time -1
check --time nan --programs 1 --backend {CORRECT}
check --step-time nan --programs 1 --backend {CORRECT}
check --profile fast
check --kind kvv
check --failures p.json
check extra
check --backend torch-cup
check --backend zzz
check --kind kv --kind trie --backend {CORRECT}
replay
replay p.json
replay theirs.json
replay p.json --backend torch-cup
replay cut.json
trace two.jsonl:3
shrink p.json
backends --backend torch-cup
report
report -o page
report nothing -o page
report empty -o page
report pipe.json -o page
report bad.json -o page
report p.json -o file
report p.json -o file/x
report p.json -o foreign
report p.json -o linked
report p.json -o page --format pdf
show two.jsonl --step 0
show p.json --step 10
vectors
vectors -o x --size huge
vectors -o x verify y
vectors verify
vectors verify nothing
vectors verify empty
vectors export
{EXPLORE} --depth 16
{EXPLORE} --depth 0
{EXPLORE} --size huge
{EXPLORE} --kind kw
new-backend
new-backend 5
new-backend a/../b
new-backend class
new-backend json
new-backend numpy
new-backend mine --kind trie
new-backend mine --arrays jax
"""


@pytest.mark.parametrize("name", dict.fromkeys(re.findall(r"^[\w-]+", REFUSED, re.M)))
def test_what_is_refused(
    run: Run, tmp_path: Path, program: Path, name: str, snapshot: Any
) -> None:
    """Each ends with status 2 and its reason on standard error, and writes no file."""
    make_files(tmp_path)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    reasons = {}
    for line in re.findall(rf"^{name}\b.*", REFUSED, re.M):
        ended = run(*line.split())
        assert (ended.status, ended.out) == (2, ""), line
        is_ours = ended.err.startswith("lockstep: ")
        assert is_ours or ended.err.startswith("Usage: ")
        reasons[line] = ended.err if is_ours else "usage"  # in the words of click
    assert reasons == snapshot
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "mine"


def test_a_bad_file_among_good_ones_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "b.json").write_text("{")
    good = {"config": {"kind": "kv"}, "ops": [update(3)]}
    (tmp_path / "all" / "a.json").write_text(json.dumps({**PROGRAM, **good}))
    ended = run("replay", "all", "--backend", CORRECT)
    assert (ended.status, "Traceback" in ended.text) == (2, False)
    assert "b.json: is not JSON" in ended.err


def test_what_was_skipped_is_said(run: Run, tmp_path: Path) -> None:
    """An unknown snapshot is no error, but agreement must not look complete."""
    pytest.importorskip("torch")
    ops = [update(2), {"op": "restore", "snapshot": "zz", "target": 0}]
    program = {**PROGRAM, "config": {"kind": "kv"}, "ops": ops}
    (tmp_path / "skips.json").write_text(json.dumps(program))
    (tmp_path / "skips_all.json").write_text(json.dumps({**program, "ops": ops[1:]}))
    ended = run("replay", "skips.json", "skips_all.json", "--backend", "torch-cpu")
    assert ended.status == 2
    assert "AGREES torch-cpu skips.json: agrees in its one step; " in ended.out
    assert "1 skipped, first: there is no snapshot zz" in ended.words
    words = "no step was run; the first: there is no snapshot zz"
    assert f"ERROR torch-cpu skips_all.json: {words}" in ended.out


# --- help -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", *HOMES, "vectors verify"])
def test_help(run: Run, name: str, snapshot: Any) -> None:
    """It fits, and its examples name options that exist."""
    ended = run(*name.split(), "--help")
    assert ended.status == 0
    assert all(len(line) <= 88 for line in ended.out.splitlines())
    known = set(ended.out.replace(",", " ").split())
    for line in re.findall(rf"^    lockstep {name} .*", ended.out, re.M):
        command = line.strip().partition("   ")[0].split()
        assert {word for word in command if word.startswith("--")} <= known
    assert ended.out == snapshot


def test_version(run: Run) -> None:
    assert run("--version").out.split()[-1] == __version__


# --- trace and replay -------------------------------------------------------------------


def test_trace_of_a_program_written_by_hand(run: Run, program: Path) -> None:
    ended = run("trace", program)
    assert ended.status == 0
    head = {"format": "lockstep-trace/1", "program": PROGRAM}
    assert json.loads(ended.out) == {**head, "expected": EXPECTED}
    assert ended.err == ""
    program.with_name("t.json").write_text(ended.out)  # a trace is a program, too
    assert run("trace", "t.json").out == ended.out
    program.with_name("two.jsonl").write_text(2 * (json.dumps(PROGRAM) + "\n"))
    lines = run("trace", "two.jsonl").out.splitlines()
    assert [json.loads(line)["expected"] for line in lines] == [EXPECTED, EXPECTED]


def test_replay_of_what_agrees_and_what_cannot_be_run(
    run: Run, tmp_path: Path, program: Path
) -> None:
    ops = [update(3), trim(1)]
    good = {**PROGRAM, "config": {"kind": "kv"}, "ops": ops}
    (tmp_path / "g.json").write_text(json.dumps(good))
    ended = run("replay", "g.json", "--backend", CORRECT)
    assert ended.status == 0
    assert ended.text == f"AGREES {CORRECT} g.json: agrees in all 2 steps\n"
    more = {**good, "ops": [*ops, {"op": "view"}]}
    (tmp_path / "m.json").write_text(json.dumps(more))
    ended = run("replay", "p.json", "m.json", "--backend", CORRECT)
    assert ended.status == 2
    assert "declares no layer cache of kind rotating (it has: kv)" in ended.text
    assert "does not declare view" in ended.text


# --- check ------------------------------------------------------------------------------


def test_the_output_fits_in_80_columns(run: Run) -> None:
    """But for lines that are to be copied."""
    pairs = ("--backend", NAN, "--backend", CORRECT, "--backend", RAISES)
    ended = run("check", *pairs, "--programs", 5)
    assert ended.status == 1
    lines = [line for line in ended.out.splitlines() if "lockstep replay" not in line]
    assert len(lines) > 10
    assert max(map(len, lines)) <= 80
    for words in ("✗ diverges", "✓ 5", "the driver is too old"):
        assert words in ended.out


def test_json_is_json(run: Run) -> None:
    pairs = ("--backend", CORRECT, "--backend", RAISES, "--kind", "kv")
    ended = run("check", *pairs, "--programs", 5, "--json")
    outcome = json.loads(ended.out)
    assert (ended.status, outcome["exit_status"]) == (2, 2)
    why = "its factory raised OSError: the driver is too old, in factory_raises (misb"
    assert outcome["dead"][RAISES].startswith(why)
    (pair,) = outcome["pairs"]
    assert (pair["backend"], pair["kind"], pair["programs"]) == (CORRECT, "kv", 5)
    assert pair["mean_length"] == round(pair["steps"] / 5, 2) > 5
    assert max(pair["coverage"].values()) <= pair["steps"]
    assert (pair["failures"], pair["errors"]) == ([], [])


def test_time_stops_a_check(run: Run) -> None:
    """At the end of a slice, and says so."""
    size = ("--programs", 9000, "--time", 0.2)
    ended = run("check", "--backend", CORRECT, *size, "--json")
    outcome = json.loads(ended.out)
    assert (ended.status, outcome["complete"]) == (0, False)
    assert 0 < outcome["pairs"][0]["programs"] < 9000


def test_the_number_of_workers_changes_nothing(run_workers: Run) -> None:
    """Nor what a share of the programs is, which the reference gets."""
    backends = ("--backend", CORRECT, "--backend", "reference")
    kinds = ("--kind", "kv", "--kind", "swa")
    check = ("check", *backends, *kinds, "--programs", 250, "--json", "--jobs")
    one, two = (json.loads(run_workers(*check, jobs).out)["pairs"] for jobs in (1, 2))
    programs = {CORRECT: 250, "reference": 63}
    for pair, other in zip(one, two, strict=True):
        assert pair["programs"] == programs[pair["backend"]]
        for name in ("kind", "digest", "programs", "steps", "coverage", "margins"):
            assert pair[name] == other[name]
    assert len({pair["digest"] for pair in one}) == len(one) == 3


def test_no_program_at_all_is_no_agreement(run: Run) -> None:
    ended = run("check", "--backend", CORRECT, "--programs", 5, "--time", 0)
    assert "0 programs" in ended.words
    assert "all agree" not in ended.words


def test_a_terminal_without_unicode(tmp_path: Path) -> None:
    size = ("--programs", 2, "--jobs", 1, "--failures", tmp_path / "f")
    ended = lockstep("check", "--backend", NAN, *size, PYTHONIOENCODING="ascii")
    assert "Traceback" not in ended.text
    assert "layer-kv-update-contents" in ended.out
    assert ended.status == 1
