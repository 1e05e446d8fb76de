"""Backends that misbehave: the check says what and where, keeps the program that is to
blame, and is none the worse itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep.harness.cli.main import main
from lockstep.harness.programs.program import load_programs

ROOT = Path(__file__).parents[2]

DIVERGES, CANNOT = 1, 2

BLAMED: list[tuple[str, int, str, int, str]] = [
    # backend, exit status, what, tokens in the shrunk update, words
    ("returns_none", CANNOT, "malformed", 1, "update returned None, not a pair"),
    ("returns_a_list", CANNOT, "malformed", 1, "K of update is a list"),
    ("wrong_rank", CANNOT, "malformed", 1, "K of update has shape [1, 1, 4]"),
    ("wrong_heads", CANNOT, "malformed", 1, "K of update has shape [1, 2, 1, 4]"),
    ("wrong_dtype", CANNOT, "malformed", 1, "K of update has dtype float16, not float32"),
    ("one_column_less", CANNOT, "malformed", 1, "0 columns of K and 1 of V"),
    ("shows_nan", DIVERGES, "contents", 3, "NaN"),
    ("shows_infinity", DIVERGES, "contents", 3, "row 0: key of "),
    ("writes_its_input", DIVERGES, "alias", 1, "array that update was given has changed"),
    ("wrong_mask_width", DIVERGES, "mask", 1, "for 1 rows × 1 columns"),
    ("raises", DIVERGES, "error", 1, "raised RuntimeError: no room"),
    ("raises_at_length", DIVERGES, "error", 1, "raised RuntimeError: xxx"),
    ("raises_the_unspeakable", DIVERGES, "error", 1, "raised Unspeakable"),
    ("exits_politely", CANNOT, "crash", 1, "exit"),
    ("exits", CANNOT, "crash", 1, "the process ended with exit status 3"),
    (
        "loses_its_device",
        CANNOT,
        "crash",
        1,
        "last words: raised RuntimeError: CUDA error",
    ),
    ("loses_it_when_read", CANNOT, "crash", 1, "raised RuntimeError: CUDA error"),
    ("dies", CANNOT, "crash", 3, "the process was ended by SIGSEGV"),
    ("babbles", CANNOT, "crash", 1, "assertion failed: ring.size > 0"),
    ("hangs", CANNOT, "hang", 1, "no step ended within 0.5 s"),
]

UNAVAILABLE = [
    ("factory_raises", "its factory raised OSError: the driver is too old"),
    ("factory_returns_five", "its factory returned int, not a Backend"),
    ("lacks_a_method", "has no method size"),
    ("cannot_open", "opening a kv cache raised OSError: no device"),
]

Lockstep = Callable[..., Any]


def check(lockstep: Lockstep, name: str, folder: Path) -> Any:
    backend = f"tests.harness.misbehaving:{name}"
    pair = ("--backend", backend, "--kind", "kv")
    size = ("--programs", 20, "--jobs", 1, "--step-time", 0.5 if name == "hangs" else 1)
    return lockstep("check", *pair, *size, "--failures", folder / "f")


def is_fit_for_a_terminal(text: str) -> bool:
    return all(letter.isprintable() or letter == "\n" for letter in text)


@pytest.mark.parametrize(("name", "status", "what", "tokens", "words"), BLAMED)
def test_the_program_to_blame_is_kept_and_replays(
    lockstep: Lockstep,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    status: int,
    what: str,
    tokens: int,
    words: str,
) -> None:
    ended = check(lockstep, name, tmp_path)
    assert "Traceback" not in ended.out + ended.err
    assert ended.status == status
    assert f"layer-kv-update-{what}" in ended.out
    assert words in ended.words
    assert is_fit_for_a_terminal(ended.out + ended.err)
    assert len(ended.out + ended.err) < 10_000

    (path,) = tmp_path.rglob("layer-*/*.json")
    (program,) = load_programs(path)
    assert program.to_json()["ops"] == [{"op": "update", "length": tokens}]
    assert program.meta["backend"] == f"tests.harness.misbehaving:{name}"
    assert f"lockstep replay {path} --backend" in ended.words
    assert path.stat().st_size < 10_000

    monkeypatch.chdir(ROOT)
    arguments = ["replay", str(path), "--backend", program.meta["backend"]]
    more = ["--step-time", "0.5", "--failures", str(tmp_path)]
    replayed = CliRunner().invoke(main, arguments + more)
    assert replayed.exit_code == status
    assert replayed.output.startswith("FAILED" if status == DIVERGES else "ERROR")
    assert words in replayed.output
    assert "in another way" not in replayed.output
    assert is_fit_for_a_terminal(replayed.output)
    assert replayed.output.count("\n") == 1


@pytest.mark.parametrize(("name", "words"), UNAVAILABLE)
def test_what_cannot_be_checked_is_said_in_a_line(
    lockstep: Lockstep, tmp_path: Path, name: str, words: str
) -> None:
    ended = check(lockstep, name, tmp_path)
    assert ended.status == CANNOT
    assert "Traceback" not in ended.out + ended.err
    assert f"misbehaving:{name}: not checked: " in ended.words
    assert words in ended.words
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["outcome.json"]


def test_answers_that_are_no_numbers_of_json(lockstep: Lockstep, tmp_path: Path) -> None:
    """trim answers with a number of numpy, and a wrong one: a plain divergence."""
    ended = check(lockstep, "answers_in_numpy", tmp_path)
    assert "Traceback" not in ended.out + ended.err
    assert (ended.status, "layer-kv-trim-result" in ended.out) == (DIVERGES, True)
    (path,) = tmp_path.rglob("layer-*/*.json")
    assert load_programs(path)[0].meta["got"]["trimmed"] == 1


def test_the_correct_one_agrees(lockstep: Lockstep, tmp_path: Path) -> None:
    for _ in range(2):  # the folder for failures is there in the second run
        ended = check(lockstep, "correct", tmp_path)
        assert (ended.status, ended.err) == (0, "")
        assert "✓ 20" in ended.out
        assert [path.name for path in (tmp_path / "f").iterdir()] == ["outcome.json"]
