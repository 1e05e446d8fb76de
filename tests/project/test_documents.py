"""The documents are true: every command in them runs, and the matrix is as it stands."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lockstep.harness.cli.main import main
from lockstep.harness.core.errors import Unavailable
from lockstep.harness.programs.ledger import load_ledger
from lockstep.harness.workers.pool import Pool
from lockstep.harness.workers.registry import load
from tests.harness.commands import CORRECT, run_here

ROOT = Path(__file__).resolve().parents[2]

BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"^    ((?:lockstep|pytest|python) .*)$", re.MULTILINE)

SMALL = {
    "bisect": ["--help"],  # what it installs is no business of a test
    "check": ["--programs", "9", "--jobs", "1"],  # with fewer, some prove nothing
    "explore": ["--depth", "1", "--jobs", "1"],
    "campaign start": ["--backend", CORRECT, "--slice", "1", "--jobs", "1"],
    "campaign resume": ["--backend", CORRECT, "--jobs", "1"],
    "faults": ["--fault", "shift-twice", "--backend", "torch-cpu"],
    "shrink": ["--time", "1"],
    "vectors": ["--kind", "kv", "--size", "tiny"],
    "vectors verify": [],
}
"""Command → what makes it one of seconds: an option that comes twice counts as it came
last."""

STATUS = {
    "lockstep check --backend my_cache:make": 2,  # unfinished, as they say
    "lockstep check --backend my_blocks:make": 2,
    "lockstep check --backend exec:./my_driver.py": 2,
    "lockstep check --backend http://localhost:": 2,  # no server is there
    "lockstep explore --kind trie": 2,  # one operation closes no request
    "lockstep check --backend 'exec:./my-driver --flag'": 2,
    "lockstep replay failures": 1,  # the failure is still there
    "lockstep shrink failures/SIGNATURE/FILE.json": 1,
    "lockstep known failures/SIGNATURE/FILE.json": 2,  # is in the ledger
    "lockstep known failures/layer-kv-update-error": 2,  # what another command saves
    "lockstep check --backend my_static:make": 2,
    "lockstep replay run.json": 1,  # a bug of mlx-lm
    "lockstep shrink run.json": 1,
}

BUDGETS = {"--time": "1", "--programs": "3"}
"""Of campaigns: the one that a command has becomes as small as can be."""

CAMPAIGNS = re.compile(r"bucket/night|night|part-[123]")
"""Folders of campaigns that commands name: they are there, but for those of `start`."""

NOT_HERE = {
    "vllm": "a server, which would run until it is stopped",
    "pip": "an environment of its own is what shows what it does",
    "gh": "needs an account",
}


def list_documents() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in names.stdout.split()]


@cache
def list_commands() -> list[str]:
    """Every command of every document, without what is said behind #."""
    found: dict[str, None] = {}
    for document in list_documents():
        text = document.read_text()
        lines = [*INDENTED.findall(text)]
        for block in BLOCK.findall(text):
            is_session = block.startswith("$ ")
            for line in block.replace("\\\n", " ").splitlines():
                if not is_session or line.startswith("$ "):
                    lines.append(line.removeprefix("$ "))
        for line in lines:
            words = shlex.split(line, comments=True)
            if words:
                found[shlex.join(words)] = None
    return list(found)


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path:
    """A folder with all that the commands name, and the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    entry = ROOT / "impl" / "peers" / "ledger" / "mlx-lm-rotating-keep-mask.json"
    known = json.loads(entry.read_text())
    meta = {"backend": known["backend"], "signature": known["signature"]}
    program = known["program"] | {"meta": meta}
    found = "failures/paged-paged-full-free-references/f.json"
    for path in (
        "program.json",
        "run.json",
        "failures/SIGNATURE/FILE.json",
        "lockstep-0/f.json",
        found,
    ):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(program))
    for name in ("my-cache", "mycache"):
        run(["new-backend", name])
    run(["new-backend", "my-driver", "--exec"])
    run(["new-backend", "my-static"])
    run(["new-backend", "my-blocks", "--kind", "paged-full"])
    shutil.copy("my_driver.py", "my-driver")
    for folder in ("impl", "tests", "ci"):
        Path(folder).symlink_to(ROOT / folder)
    if "build/" in request.node.name:
        Path("build").mkdir()
    if "exec:build/kit-c" in request.node.name:
        compiler = shutil.which("gcc") or pytest.skip("gcc is not installed")
        source = "impl/kits/c/example.c"
        subprocess.run([compiler, source, "-o", "build/kit-c", "-lm"], check=True)
    return tmp_path


def run(arguments: Sequence[str]) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="lockstep")


@cache
def collect(*options: str) -> subprocess.CompletedProcess[str]:
    """Collects a file with these options: one that takes them. That all can be collected
    shows the run that this is a part of."""
    takes = any(each.startswith("--lockstep") for each in options)
    file = "conformance/test_conformance.py" if takes else "project/test_release.py"
    command = [sys.executable, "-m", "pytest", f"tests/{file}", "--collect-only", "-q"]
    return subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)


def prepare_campaign(arguments: list[str]) -> list[str]:
    """The arguments with a small budget, a folder for a store, and without Ray, whose
    clusters another test starts; makes the campaigns that they name."""
    text = shlex.join(arguments).replace("s3://", "").replace("--ray auto", "")
    name, command, *words = shlex.split(text.replace("--ray ", ""))
    if command == "start":
        budgets = [(each, few) for each, few in BUDGETS.items() if each in words]
        return [name, command, *words, *chain.from_iterable(budgets)]
    for word in filter(CAMPAIGNS.fullmatch, words):
        own = "--programs", "3", *SMALL["campaign start"]
        made = run([name, "start", word, *own])
        assert made.exit_code == 0, made.output
    return [name, command, *words]


def test_there_are_commands_in_the_documents() -> None:
    assert len(list_commands()) > 25


@pytest.mark.parametrize("command", list_commands())
def test_a_command_of_a_document_runs(
    command: str, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that run only what is registered do so here, where it is imported."""
    program, *arguments = shlex.split(command)
    if not re.search(r"\bmy|exec:", command):
        monkeypatch.setattr(Pool, "run", run_here)
    if program in NOT_HERE:
        pytest.skip(f"{program}: {NOT_HERE[program]}")
    if program == "pytest":
        folders = [each for each in arguments if each.startswith("tests")]
        assert all([*(ROOT / folder).glob("**/test_*.py")] for folder in folders)
        done = collect(*(each for each in arguments if each not in folders))
        assert done.returncode == 0, done.stdout + done.stderr
    elif program == "lockstep":
        for made in desk.glob("my_*.py"):
            if arguments[0] == "new-backend":
                made.unlink()
        is_group = arguments[0] == "campaign" or "verify" in arguments
        name = " ".join(arguments[:2]) if is_group else arguments[0]
        if arguments[0] == "campaign":
            arguments = prepare_campaign(arguments)
        if name == "vectors verify":
            assert run(["vectors", "-o", "vectors", *SMALL["vectors"]]).exit_code == 0
        if name == "check" and "--backend" not in arguments:
            arguments += ["--backend", "torch-cpu"]  # not all that are registered
        ended = run([*arguments, *SMALL.get(name, [])])
        wanted = [status for start, status in STATUS.items() if command.startswith(start)]
        if "my" in command and arguments[0] == "replay":
            wanted = [2]  # what is begun does not declare such a program yet
        assert [ended.exit_code] == (wanted or [0]), ended.output
    else:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
        subprocess.run(shlex.split(command), cwd=desk, check=True)


def test_the_matrices_are_as_they_stand() -> None:
    """By what backends declare, and the known divergences of each."""
    columns, shown = list[str](), 0
    text = (ROOT / "impl" / "peers" / "README.md").read_text()
    for line in text.splitlines():
        first, *cells = line.strip("| ").split(" | ")
        if first == "backend":
            columns = [cell.partition(",")[0] for cell in cells]
        if not line.startswith("|"):
            columns = []
        if not line.startswith("| `") or len(cells) != len(columns):
            continue
        try:
            backend = load(first.strip("`"))
        except Unavailable:
            continue
        known = Counter(e.program.kind for e in load_ledger(backend.ledger, backend.name))
        kinds = {kind for kinds in backend.contracts.values() for kind in kinds}
        wanted = [
            str(known[kind] or "✓") if kind in kinds else "–"
            for kind in ("causal" if one == "unified" else one for one in columns)
        ]
        assert [cell.split()[0] for cell in cells] == wanted, backend.name
        shown += 1
    assert shown > 2
