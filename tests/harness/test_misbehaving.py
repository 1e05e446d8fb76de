"""Backends that misbehave: the check says what and where, keeps the program that is to
blame, and is none the worse itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.harness.programs.program import load_programs
from tests.harness.building import update
from tests.harness.commands import HERE, Ended, Run
from tests.harness.misbehaving import PID_FILE

DIVERGES, CANNOT = 1, 2

BLAMED = [
    # backend, what, tokens in the shrunk update, words
    ("one_column_less", "malformed", 1, "K with 0 columns, but V with 1"),
    ("shows_nan", "contents", 3, "NaN"),
    ("raises", "error", 1, "raised RuntimeError: no room"),
    ("raises_at_length", "error", 1, "raised RuntimeError: xxx"),
    ("raises_the_unspeakable", "error", 1, "raised Unspeakable"),
    ("exits_politely", "crash", 1, "exit"),
    (
        "loses_its_device",
        "crash",
        1,
        "last words: raised RuntimeError: CUDA error",
    ),
    ("loses_it_when_read", "crash", 1, "raised RuntimeError: CUDA error"),
    ("interrupts", "crash", 1, "would have ended the process: raised KeyboardInterrupt"),
    ("dies", "crash", 3, "the process was ended by SIGSEGV"),
    ("babbles", "crash", 1, "assertion failed: ring.size > 0"),
    ("hangs", "hang", 1, "no step ended within 0.3 s"),
]
"""What else is malformed, and mistakes in masks, are in `test_reading`; what is written
to and must not be is in `test_liars`."""

UNLOADABLE = {
    "factory_raises": "its factory raised OSError: the driver is too old",
    "factory_returns_five": "its factory returned int, not a Backend",
    "lacks_a_method": "has no method size",
    "cannot_open": "opening a kv cache raised OSError: no device",
}


def choose_time(name: str) -> tuple[object, ...]:
    """Little for a step that hangs; another one may take long where much is running."""
    return ("--step-time", 0.3) if name.startswith("hangs") else ()


def check(run: Run, *names: str) -> Ended:
    pairs = [word for name in names for word in ("--backend", f"{HERE}:{name}")]
    size = ("--programs", 20, "--jobs", 1, *choose_time(names[0]))
    ended = run("check", *pairs, "--kind", "kv", *size)
    assert all(letter.isprintable() or letter == "\n" for letter in ended.text)
    assert len(ended.text) < 10_000
    return ended


@pytest.mark.parametrize(("name", "what", "tokens", "words"), BLAMED)
def test_the_program_to_blame_is_kept_and_replays(
    request: pytest.FixtureRequest,
    name: str,
    what: str,
    tokens: int,
    words: str,
) -> None:
    is_fatal = what in ("crash", "hang")
    run = request.getfixturevalue("run_workers" if is_fatal else "run")
    ended = check(run, name)
    assert ended.status == DIVERGES
    assert f"layer-kv-update-{what}" in ended.out
    assert words in ended.words

    (path,) = Path("failures").glob("layer-*/*.json")
    (program,) = load_programs(path)
    assert program.to_json()["ops"] == [update(tokens)]
    assert program.meta["backend"] == f"{HERE}:{name}"
    assert f"lockstep replay {path} --backend" in ended.words
    assert path.stat().st_size < 10_000

    replayed = run("replay", path, "--backend", f"{HERE}:{name}", *choose_time(name))
    assert replayed.status == DIVERGES
    assert replayed.text.startswith("FAILED")
    assert words in replayed.text
    assert "in another way" not in replayed.text
    assert replayed.text[:-1].isprintable()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("dies_in_open", "crash"),
        ("hangs_in_open", "hang"),
        ("interrupts_in_open", "crash"),
    ],
)
def test_the_opening_of_a_cache_is_to_blame_and_nothing_else(
    run_workers: Run, name: str, what: str
) -> None:
    """One signature, before and after the program is made shorter."""
    ended = check(run_workers, name)
    assert ended.status == DIVERGES
    (path,) = Path("failures").glob("layer-*/*.json")
    assert path.parent.name == f"layer-kv-open-{what}"
    (program,) = load_programs(path)
    assert (list(program.ops), program.config["heads"]) == ([], 2)
    again = ("--backend", f"{HERE}:{name}", *choose_time(name))
    for command in ("replay", "show"):
        shown = run_workers(command, path, *again)
        assert (shown.status, what in shown.words) == (command == "replay", True)
        assert "in another way" not in shown.words


def test_an_error_of_a_kernel_is_told_of_the_step_that_launched_it(
    run_workers: Run,
) -> None:
    """A crash is run again, alone and with launches that block: what it shows then is
    what counts."""
    ended = check(run_workers, "loses_its_device_late")
    assert ended.status == DIVERGES
    (path,) = Path("failures").glob("layer-*/*.json")
    assert path.parent.name == "layer-kv-update-crash"
    assert [folder.name for folder in Path("failures").glob("layer-*")] == [
        "layer-kv-update-crash"
    ]
    (program,) = load_programs(path)
    assert program.to_json()["ops"] == [update(1)]
    assert "size-crash" not in ended.words and "flaky" not in ended.words


def test_a_crash_that_does_not_come_back_alone_is_flaky(
    run_workers: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(PID_FILE, str(tmp_path / "once"))
    ended = check(run_workers, "dies_once")
    assert ended.status == DIVERGES
    assert "flaky: failed once, then agreed once" in ended.words
    (path,) = Path("failures").glob("layer-*/*.json")
    replayed = run_workers("replay", path, "--backend", f"{HERE}:dies_once")
    assert (replayed.status, replayed.text[:5]) == (DIVERGES, "FLAKY")


def test_a_pair_that_crashes_stops_and_says_so(run_workers: Run) -> None:
    pair = ("--backend", f"{HERE}:dies_later", "--programs", 600, "--jobs", 1)
    ended = run_workers("check", *pair)
    assert ended.status == DIVERGES
    outcome = json.loads(Path("failures/outcome.json").read_text())
    (found,) = outcome["pairs"]
    assert (outcome["complete"], found["crashes"]) == (False, 2)
    ran = f"stopped after 2 crashes: {found['programs'] + 2} of 600 programs ran"
    assert found["shortfall"] == ran
    assert ran in ended.words and "(stopped before the end)" in ended.words
    assert ran in run_workers("report", "--format", "markdown").text


def test_options_that_change_the_verdict_stand_in_the_line(run_workers: Run) -> None:
    """What is pasted from the terminal, the file or a report fails as well."""
    check(run_workers, "hangs")
    (path,) = Path("failures").glob("layer-*/*.json")
    line = f"lockstep replay {path} --backend {HERE}:hangs --step-time 0.3"
    (program,) = load_programs(path)
    assert program.meta["replay"] == line
    for shown in ("show", path, "--backend", f"{HERE}:hangs", "--step-time", 0.3), (
        "report", "--format", "markdown"
    ):  # fmt: skip
        assert line in run_workers(*shown).words
    replayed = run_workers(*line.split()[1:])
    assert (replayed.status, replayed.text[:6]) == (DIVERGES, "FAILED")


@pytest.mark.parametrize("name", ["returns_colours", "raises_colours", "says_colours"])
def test_what_a_backend_says_does_nothing_to_the_terminal(
    request: pytest.FixtureRequest, name: str
) -> None:
    run = request.getfixturevalue("run_workers" if name == "says_colours" else "run")
    backend = ("--backend", f"{HERE}:{name}")
    assert check(run, name).status == DIVERGES
    (path,) = Path("failures").glob("layer-*/*.json")
    for command in (
        ("replay", path),
        ("show", path),
        ("shrink", path, "--time", 1),
        ("explore", "--depth", 1, "--size", "tiny"),
        ("report", "--format", "markdown"),
    ):
        ended = run(*command, *backend)
        assert ended.text.replace("\n", "").isprintable()


def test_answers_that_are_no_numbers_of_json(run: Run) -> None:
    """trim answers with a number of numpy, and a wrong one: a plain divergence."""
    ended = check(run, "answers_in_numpy")
    assert (ended.status, "layer-kv-trim-result" in ended.out) == (DIVERGES, True)
    (path,) = Path("failures").glob("layer-*/*.json")
    assert load_programs(path)[0].meta["got"]["trimmed"] == 1
