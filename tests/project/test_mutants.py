"""The command for mechanical mutants finds them, and lists those that it does not."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from ci import mutants
from ci.mutation import covering
from ci.mutation.mutants import Mutant, list_mutants

ROOT = Path(__file__).resolve().parents[2]
FILE = "impl/shared/encoder.py"
SOURCE = (ROOT / FILE).read_bytes()


RUNNER = """
import functools, json, sys
from ci import mutants
from click.testing import CliRunner

mutants.measure = functools.cache(mutants.measure)
ended = [CliRunner().invoke(mutants.main, own) for own in json.load(sys.stdin)]
print(json.dumps([(one.exit_code, one.stdout, one.stderr) for one in ended]))
"""


def run(*commands: Sequence[object]) -> list[tuple[int, str, str]]:
    """Runs the command several times in one process that measures the backends once.

    Returns:
        The exit status, the output and the errors of each.
    """
    pytest.importorskip("torch")
    few = [[FILE, "--programs", "1", "--time", "1", *map(str, one)] for one in commands]
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(few),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [tuple(one) for one in json.loads(done.stdout)]


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


def test_mutants_are_found_survive_or_are_explained(tmp_path: Path) -> None:
    none = explain(tmp_path / "none.json")
    right = explain(tmp_path / "one.json", EXPLANATION)
    wrong = {"function": FOUND.function, "original": FOUND.original}
    wrong = EXPLANATION | wrong | {"mutated": FOUND.mutated}
    stale = explain(tmp_path / "two.json", wrong, EXPLANATION | {"mutated": "gone"})
    ids = [f"--mutant={each.id}" for each in (FOUND, EQUIVALENT)]
    survives, is_explained, is_stale = run(
        [*ids, "--explained", none],
        [ids[1], "--explained", right],
        [ids[0], "--explained", stale],
    )

    status, text, errors = survives
    assert status == 1, errors
    assert f"survived: {EQUIVALENT.id} in EncoderCacheBase.__init__" in text
    assert "- self.position = 0\n+ self.position = 1" in text
    assert f"{FOUND.id}  False → True  found by unified-" in text
    assert "2 mutants: 1 found, 0 explained, 1 survived, 0 not reached" in text

    status, text, errors = is_explained
    assert status == 0, errors
    assert f"explained: {EQUIVALENT.id}" in text
    assert "nothing is cached yet" in text

    status, _, errors = is_stale
    assert status == 2
    assert "explained, but found: " in errors
    assert "explained, but no longer there: " in errors


BAD = [
    (
        ["ci"],
        "ci is not in a folder that can be mutated: impl/shared, impl/torch",
    ),
    (["impl/shared/nothing.py"], "there is no such file or folder"),
    (["--count", "-1"], "-1 is not in the range"),
    ([FILE, "--mutant", "nothing"], "there is no mutant nothing"),
    (["--explained", str(ROOT / "README.md")], "README.md: cannot be read"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(mutants.main, arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())


QUICK = "tests/harness/test_reading.py"
WATCH = "harness/contracts/watch.py"
MUTANT = next(
    each
    for each in list_mutants(WATCH, (ROOT / WATCH).read_bytes())
    if each.kind == "remove" and each.old.startswith("raise Broken")
)


def test_a_mutant_of_the_harness_is_found_by_a_test_that_runs_it() -> None:
    pytest.importorskip("torch")
    script = ROOT / "ci" / "mutants.py"
    command = [sys.executable, script, WATCH, "--mutant", MUTANT.id]
    command += ["--tests", ROOT / QUICK]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True)
    assert (done.returncode, done.stderr) in [(0, ""), (0, f"measuring {QUICK}\n")]
    assert f"found by {QUICK}::" in done.stdout


@pytest.mark.parametrize(
    ("lines", "is_same", "chosen"),
    [
        ({MUTANT.line: [0, 2], 1: [-1]}, True, ["fast", "slow"]),
        ({MUTANT.line: [-1], 999: [1]}, True, ["other"]),  # when the file is imported
        ({999: [1, 2]}, True, []),
        ({999: [1, 2]}, False, ["fast", "other"]),  # it has changed
        ({MUTANT.line: [0, 3]}, True, ["slow"]),
    ],
)
def test_tests_that_run_a_line_are_chosen(
    lines: dict[int, list[int]], is_same: bool, chosen: list[str]
) -> None:
    measured = {
        "hashes": {WATCH: covering.compute_hash(ROOT / WATCH) if is_same else "older"},
        "tests": [(2, "slow"), (1, "other"), (0.5, "fast"), (99, "too slow")],
        "lines": {WATCH: {str(line): tests for line, tests in lines.items()}},
    }
    assert covering.choose_tests(ROOT, [measured], MUTANT) == chosen


def test_the_script_finds_its_modules() -> None:
    script = ROOT / "ci" / "mutants.py"
    command = [sys.executable, script, FILE, "--mutant", "nothing"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True)
    assert (done.returncode, "there is no mutant nothing" in done.stderr) == (2, True)


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
