"""The command for mechanical mutants finds them, and lists those that it does not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.append(str(Path(__file__).resolve().parents[2]))  # ci is not installed

from ci.mutation.mutants import Mutant, list_mutants

ROOT = Path(__file__).resolve().parents[2]
FILE = "impl/shared/encoder.py"
SOURCE = (ROOT / FILE).read_bytes()


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("torch")
    command = [sys.executable, "ci/mutants.py", "--programs", "6", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def get_mutant(function: str, mutated: str) -> Mutant:
    (mutant,) = [
        each
        for each in list_mutants(FILE, SOURCE)
        if (each.function, each.mutated) == (f"EncoderCacheBase.{function}", mutated)
    ]
    return mutant


FOUND = get_mutant("remove", "self.cached = True")
EQUIVALENT = get_mutant("__init__", "self.position = 1")
EXPLANATION = {
    "file": FILE,
    "function": EQUIVALENT.function,
    "original": EQUIVALENT.original,
    "mutated": EQUIVALENT.mutated,
    "reason": "nothing is cached yet",
}


def explain(path: Path, *explanations: dict[str, str]) -> Path:
    path.write_text(json.dumps({"explanations": explanations}))
    return path


def test_a_mutant_is_found_and_another_survives(tmp_path: Path) -> None:
    out, none = tmp_path / "out.json", explain(tmp_path / "none.json")
    ids = [f"--mutant={each.id}" for each in (FOUND, EQUIVALENT)]
    done = run(FILE, *ids, "--json", out, "--explained", none)
    assert done.returncode == 1, done.stderr
    assert f"survived: {EQUIVALENT.id} in EncoderCacheBase.__init__" in done.stdout
    assert "- self.position = 0\n+ self.position = 1" in done.stdout
    found, survived = json.loads(out.read_text())["mutants"]
    assert (found["verdict"], survived["verdict"]) == ("found", "survived")
    assert found["how"].startswith(("unified-encoder-", "unified-wrapper-"))
    assert survived["programs"] >= 6  # those that have such a cache


def test_an_explanation_is_held_against_what_is_found(tmp_path: Path) -> None:
    path = explain(tmp_path / "one.json", EXPLANATION)
    done = run(FILE, "--mutant", EQUIVALENT.id, "--explained", path)
    assert done.returncode == 0, done.stderr
    assert f"explained: {EQUIVALENT.id}" in done.stdout
    assert "nothing is cached yet" in done.stdout
    wrong = {"function": FOUND.function, "original": FOUND.original}
    wrong = EXPLANATION | wrong | {"mutated": FOUND.mutated}
    path = explain(tmp_path / "two.json", wrong, EXPLANATION | {"mutated": "gone"})
    done = run(FILE, "--mutant", FOUND.id, "--explained", path)
    assert done.returncode == 2
    assert "explained, but found: " in done.stderr
    assert "explained, but no longer there: " in done.stderr


BAD = [
    (["harness"], "harness is not in one of impl/shared"),
    (["impl/shared/nothing.py"], "there is no such file or folder"),
    (["--count", "-1"], "-1 is not in the range"),
    (["--mutant", "nothing"], "there is no mutant nothing"),
    (["--explained", str(ROOT / "README.md")], "README.md: cannot be read"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_refused(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script changes its own
    from ci.mutants import main

    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())


def test_hangs_crashes_and_exceptions_end_a_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    from ci.mutation import trial

    monkeypatch.setattr(trial, "START_SECONDS", 0.2)

    def allocate(beat: trial.Beat) -> int:
        return len(bytearray(2 * trial.MEMORY))

    def crash(beat: trial.Beat) -> None:
        beat()
        trial.os.kill(trial.os.getpid(), trial.signal.SIGKILL)

    assert trial.call(lambda beat: trial.time.sleep(9)).why == (
        "hang: nothing ended within 0.2 s"
    )
    monkeypatch.setattr(trial, "START_SECONDS", 60)
    assert trial.call(allocate).why == "raised MemoryError"
    ended = trial.call(crash)
    assert ended.why == "crash: the process was ended by SIGKILL"
    assert ended.beats == 1
    assert trial.call(lambda beat: 7).answer == 7


SNIPPET = b"""\
def f(a, b=1):
    if a < b and not a:
        a += 1
        return -a
    g(a, b)
"""

MUTATED = [
    "def f(a, b=2):",
    "def f(a, b=0):",
    "if not (a < b and not a):",
    "if a < b or not a:",
    "if a <= b and not a:",
    "if a < b and a:",
    "pass",
    "a -= 1",
    "a += 2",
    "a += 0",
    "return None",
    "return a",
    "pass",
    "g(b, a)",
]


def test_every_kind_of_mutation_is_made() -> None:
    mutants = list_mutants("f.py", SNIPPET)
    assert sorted(mutant.mutated for mutant in mutants) == sorted(MUTATED)
    assert len({mutant.id for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        compile(mutant.source, mutant.file, "exec")
