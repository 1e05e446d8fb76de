"""Five hundred wrong invocations of all commands: a reason for each, and no traceback."""

from __future__ import annotations

import gzip
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from lockstep.harness.cli.main import HOMES, main
from lockstep.harness.workers.pool import Pool
from tests.harness.commands import CORRECT, HERE, ROOT, run_here

COUNT = 500
PROGRAM = """{"format": "lockstep/1", "contract": "layer", "config": {"kind": "kv"},
"ops": [{"op": "update", "length": 2}]}"""

VALUES = (
    "", " ", "-", "--", "0", "-1", "1e999", "nan", "inf", "0x10", "9" * 30, "1/0", "a/b",
    "../..", "/", "/dev/null", "/proc/self/mem", "\x1b[31m", "\u202e", "\udc80", "*", "~",
    "kv", "roating", "quick", "html", "guided", "exec:", "exec:./none", "exec:\"",
    "a:b:c", "no.such:make", "os:getcwd", "json:loads", f"{HERE}:nothing", CORRECT, "{}",
    "http://[", "s3://x/y", "file:///nowhere", "1.0..0.1", "HEAD~99", "==", "numpy==",
)  # fmt: skip


def make_files(folder: Path) -> list[str]:
    """Files, folders and others that a command may be given by mistake."""
    texts = {
        "good.json": PROGRAM,
        "empty.json": "",
        "cut.json": PROGRAM[:60],
        "list.json": "[1, 2]",
        "deep.json": "[" * 5000,
        "number.json": "1e999",
        "other.json": PROGRAM.replace("lockstep/1", "lockstep/9"),
        "kind.json": PROGRAM.replace('"kv"', '"vk"'),
        "ops.json": PROGRAM.replace("update", "updat"),
        "huge.json": PROGRAM.replace('"length": 2', '"length": 99999999999'),
        "surrogate.json": PROGRAM.replace("kv", "\\ud800"),
        "lines.jsonl": f"{PROGRAM!r}\n",
        "none.jsonl": "\n\n",
        "outcome.json": '{"format": "lockstep-outcome/1"}',
        "a.zip": "PK\3\4 but no more",
        "page.html": "<p>",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "bytes.json").write_bytes(bytes(range(256)))
    (folder / "bomb.json.gz").write_bytes(gzip.compress(b"[" + b" " * (16 << 20)))
    (folder / "short.json.gz").write_bytes(gzip.compress(b"{}")[:12])
    (folder / "folder").mkdir()
    (folder / "folder" / "deeper.json").mkdir()
    (folder / "loop.json").symlink_to("loop.json")
    os.mkfifo(folder / "pipe.json")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket.json"))
    more = [
        "folder",
        "none.json",
        "lines.jsonl:9",
        "x" * 300,
    ]
    return [*(path.name for path in folder.iterdir()), *more]


def list_commands() -> list[list[str]]:
    """Every command, also those of groups."""
    context, found = click.Context(main), []
    for name in HOMES:
        command = main.get_command(context, name)
        found.append([name])
        if isinstance(command, click.Group):
            found += [[name, below] for below in command.commands]
    return found


def list_options(words: list[str]) -> list[click.Parameter]:
    command: click.Command | None = main
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    return command.params


def make_wrong(draw: random.Random, words: list[str], files: list[str]) -> list[str]:
    """Arguments with at least one that is wrong, and little to run if it is not."""
    line = list(words)
    options = list_options(words)
    for option in draw.sample(options, k=min(draw.choice([0, 0, 1, 2]), len(options))):
        if isinstance(option, click.Option):
            line.append(option.opts[-1])
            if not option.is_flag:
                line.append(draw.choice([*VALUES, *files]))
    line += draw.choices([*files, *VALUES], k=draw.randint(0, 3))
    if draw.random() < 0.2:
        line.insert(draw.randrange(len(line) + 1), draw.choice(["--nope", "-x", "chekc"]))
    return line


SAFE = ("--backend", CORRECT, "--kind", "kv")
BOUNDS: dict[str, tuple[str, ...]] = {
    "check": (*SAFE, "--programs", "1"),
    "explore": (*SAFE, "--depth", "1", "--size", "tiny"),
    "faults": ("--backend", CORRECT, "--programs", "1"),
    "backends": ("--backend", CORRECT),
    "vectors": ("--size", "tiny", "--kind", "kv"),
    "campaign": ("--programs", "1"),
}
"""What bounds a command that runs after all."""

LONG = {("bisect",)}
"""Commands that go on for long where nothing is wrong: these get a wrong option."""


@pytest.mark.parametrize("part", range(5))
def test_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("LOCKSTEP_BACKENDS", CORRECT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Pool, "run", run_here)
    files, commands = make_files(tmp_path), list_commands()
    draw = random.Random(part)
    bad: list[str] = []
    for number in range(part, COUNT, 5):
        words = commands[number // 5 % len(commands)]
        line = make_wrong(draw, words, files)
        if tuple(words) in LONG:
            line.append("--nope")
        elif words[0] in BOUNDS and words[-1] not in ("serve", "status", "merge"):
            line[len(words) : len(words)] = BOUNDS[words[0]]
        bad += list_wrongs(line)
    assert bad == []


LONG_NAME = "x" * 300
UNUSABLE: dict[str, tuple[str, str]] = {
    "check my_cache:make": ("", "; name a backend with --backend NAME"),
    f"show good.json --failures {LONG_NAME}": (LONG_NAME[:9], "File name too long"),
    f"backends --failures {LONG_NAME}": (LONG_NAME[:9], "File name too long"),
    f"check --programs 1 --failures {LONG_NAME}": (LONG_NAME[:9], "File name too long"),
    f"check -b exec:{LONG_NAME}": ("xxx", "File name too long"),
    f"bisect good.json -b a:b --git {LONG_NAME} --good a --bad b": (
        "x",
        "File name too long",
    ),
    f"bisect good.json -b a:b --package x --versions 1.{'9' * 5000}..": (
        "--versions 1.99",
        "give two versions",
    ),
    "trace a\0b": ("a·b: ", "has a NUL character; remove it"),
    "report -o a\0b": ("a·b: ", "has a NUL character; remove it"),
    f"check --programs {'9' * 400}": ("", "is not in the range 1<=x<=10000000"),
}


@pytest.mark.parametrize("line", UNUSABLE)
def test_names_and_numbers_that_nothing_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """A name of 300 letters, a NUL, a number of 400 or 5,000 digits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Pool, "run", run_here)
    (tmp_path / "good.json").write_text(PROGRAM)
    ended = CliRunner(env={"COLUMNS": "80"}).invoke(main, line.split(" "))
    begin, reason = UNUSABLE[line]
    words = " ".join(ended.stderr.split())
    assert (ended.exit_code, reason in words) == (2, True), words
    if begin:
        assert ended.stderr.count("\n") == 1 and begin in words


def list_wrongs(line: list[str]) -> list[str]:
    """What is wrong about the way in which a command ended."""
    runner = CliRunner(env={"COLUMNS": "80"})
    ended = runner.invoke(main, line, input="")
    checks: dict[str, Callable[[], bool]] = {
        "an exception": lambda: not isinstance(ended.exception, SystemExit | None),
        "a traceback": lambda: "Traceback (most recent" in ended.output,
        "the harness failed": lambda: "the harness itself failed" in ended.output,
        "another status": lambda: ended.exit_code not in (0, 1, 2),
        "no reason": lambda: ended.exit_code != 0 and not ended.output.strip(),
    }
    found = [name for name, is_wrong in checks.items() if is_wrong()]
    return [f"{name}: {line}: {ended.output[-300:]!r}" for name in found]
