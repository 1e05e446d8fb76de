"""Snippets: each known divergence as code that needs the framework alone, and that comes
to what the harness comes to."""

from __future__ import annotations

import html
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lockstep.harness.backends.backend import Backend, Call
from lockstep.harness.cli.main import main
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.executor import run
from lockstep.harness.execution.snippet import NOT_SHOWN, write_snippet
from lockstep.harness.programs.generate.drawer import Drawer, RandomSource
from lockstep.harness.programs.ledger import Entry, load_ledger
from lockstep.harness.programs.program import Program, parse_program
from lockstep.harness.workers.pool import Pool
from lockstep.harness.workers.registry import load
from tests.harness.commands import run_here

BACKENDS = {
    "mlx_lm": (
        "mlx-lm", "mlx-lm-restored", "mlx-lm-max-kv-size", "mlx-lm-return-array",
        "mlx-lm-plamo3", "mlx-lm-concatenate", "mlx-lm-quantized", "mlx-lm-quantized-6",
        "mlx-lm-quantized-5", "mlx-lm-quantized-4", "mlx-lm-quantized-3",
        "mlx-lm-quantized-2", "mlx-lm-to-quantized", "mlx-lm-chunked",
        "mlx-lm-prompt-cache",
        "mlx-lm-batched", "mlx-lm-batched-restored", "mlx-lm-batched-max-kv-size",
    ),
    "transformers": (
        "transformers", "transformers-chunked", "transformers-recorded",
        "transformers-static", "transformers-static-chunked", "transformers-quantized",
        "transformers-fp8", "transformers-batched", "transformers-batched-chunked",
        "transformers-batched-static", "transformers-batched-static-chunked",
        "transformers-batched-indexed", "transformers-batched-static-indexed",
        "transformers-batched-quantized", "transformers-batched-linear",
        "transformers-batched-hybrid",
        "transformers-batched-static-hybrid",
    ),
}  # fmt: skip
ROOT = Path(__file__).parents[2]
PROGRAMS = 6
"""That are drawn for each backend and kind."""

NONE = "TypeError: 'NoneType' object is not subscriptable"
RAISED = {
    "mlx-lm-batched-extract-unwritten-kv": NONE,
    "mlx-lm-batched-extract-unwritten-rotating": NONE,
    "mlx-lm-batched-extract-unwritten-state": NONE,
    "mlx-lm-batched-load-crash": "AttributeError: 'BatchRotatingKVCache'",
    "mlx-lm-batched-load-empty-crash": "AttributeError: 'BatchRotatingKVCache'",
    "mlx-lm-batched-max-kv-size-extract-unwritten-rotating": NONE,
    "mlx-lm-batched-max-kv-size-single-column-padded": "RuntimeError: finalize()",
    "mlx-lm-batched-restored-extract-unwritten-kv": NONE,
    "mlx-lm-batched-restored-extract-unwritten-state": NONE,
    "mlx-lm-batched-single-column-padded": "RuntimeError: finalize()",
    "mlx-lm-concatenate-load-empty": "AttributeError: 'NoneType' object",
    "mlx-lm-quantized-3-width": "ValueError: [broadcast_shapes]",
    "mlx-lm-quantized-5-width": "ValueError: [broadcast_shapes]",
    "mlx-lm-quantized-6-width": "ValueError: [broadcast_shapes]",
    "transformers-chunked-trim-unwritten": "AttributeError: 'NoneType' object",
    "transformers-fp8-trim-crash": "IndexError: too many indices",
    "transformers-recorded-chunked-trim-unwritten": "AttributeError: 'NoneType' object",
    "transformers-recorded-trim-unwritten": "AttributeError: 'NoneType' object",
    "transformers-quantized-trim-crash": "IndexError: too many indices",
    "transformers-sliding-trim-unwritten": "AttributeError: 'NoneType' object",
    "transformers-batched-chunked-trim-unwritten": "AttributeError: 'NoneType' object",
    "transformers-batched-sliding-trim-unwritten": "AttributeError: 'NoneType' object",
    "transformers-batched-hybrid-filter-reset": "RuntimeError: The size of tensor",
    "transformers-batched-hybrid-filter-reset-one": "AssertionError",
    "transformers-batched-hybrid-filter-rows": "RuntimeError: Sizes of tensors",
    "transformers-batched-quantized-filter": "IndexError: index is out of bounds",
    "transformers-batched-quantized-repeat": "RuntimeError: Sizes of tensors",
    "transformers-batched-hybrid-repeat": "RuntimeError: Sizes of tensors",
    "transformers-batched-hybrid-repeat-reset": "RuntimeError: output with shape",
    **{
        f"transformers-batched{layer}-{operation}-emptied": "RuntimeError: Sizes of"
        for layer in ("", "-sliding", "-chunked", "-indexed")
        for operation in ("filter", "select", "repeat")
    },
    **{
        f"transformers-batched-static{layer}-select-reset": "RuntimeError: index_copy_()"
        for layer in (
            *("", "-sliding", "-chunked", "-indexed"),
            *("-hybrid", "-hybrid-sliding", "-hybrid-state"),
        )
    },
}
"""What a snippet ends with where a cache raises."""

RUNNER = """
import contextlib, io, json, sys, traceback

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("lockstep", "tests"):
            raise ImportError(f"a snippet imports {name}")

sys.meta_path.insert(0, Blocker())
ended = {}
for name, text in json.load(sys.stdin).items():
    out, status = io.StringIO(), 0
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(text, name, "exec"), {"__name__": "__main__"})
        except SystemExit as error:
            status = error.code
        except BaseException:
            status = 1
            print(traceback.format_exc())
    ended[name] = status, out.getvalue()
assert "lockstep" not in sys.modules
json.dump(ended, sys.stdout)
"""

Ended = Mapping[str, Any]


def run_all(snippets: Mapping[str, str], folder: Path) -> Ended:
    """Name → (exit status, what was printed), far from this repository."""
    inherited = {
        name: value for name, value in os.environ.items() if "PYTHON" not in name
    }
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", RUNNER],
        input=json.dumps(snippets),
        cwd=folder,
        env=inherited,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def draw(backend: Backend) -> list[tuple[str, Program, int]]:
    """Programs with what a snippet of each has to end with, and a name."""
    drawn = []
    for contract, kinds in backend.contracts.items():
        for kind, declared in kinds.items():
            drawer = Drawer(contract, kind, declared, backend.dtypes, [])
            source = RandomSource(7)
            for number in range(PROGRAMS):
                program = drawer.draw(source)
                divergence = run(program, backend, every=True).divergence
                if divergence is not None:
                    signature = divergence.get_signature(program)
                    meta = {"step": divergence.step, "signature": signature}
                    program = replace(program, meta=meta)
                status = int(divergence is not None)
                drawn.append((f"{backend.name}-{kind}-{number}", program, status))
    return drawn


class Batch:
    """All snippets of one framework, run in one process, for importing it takes long."""

    def __init__(self, framework: str, folder: Path) -> None:
        self.framework = framework
        backends = [load(name) for name in BACKENDS[framework]]
        self.entries: dict[str, Entry] = {}
        self.wanted: dict[str, int] = {}
        self.why_not: list[str] = []
        snippets = {}
        for backend in backends:
            for entry in load_ledger(backend.ledger, backend.name):
                self.entries[entry.id] = entry
                snippets[entry.id] = write_snippet(entry.program, backend)
            for name, program, status in draw(backend):
                try:
                    snippets[name] = write_snippet(program, backend)
                    self.wanted[name] = status
                except UsageError as error:
                    self.why_not.append(str(error))
        self.snippets, self.ended = snippets, run_all(snippets, folder)


@pytest.fixture(scope="module", params=list(BACKENDS))
def batch(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Batch:
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return Batch(request.param, tmp_path_factory.mktemp("far"))


def test_every_known_divergence_has_a_snippet_that_shows_it(batch: Batch) -> None:
    """Of all but lists of caches, whose answers are nested: these declare no code."""
    prefix, listed = batch.framework.replace("_", "-"), set[str]()
    for path in (ROOT / "impl" / "peers" / "ledger").glob(f"{prefix}*.json"):
        entry = json.loads(path.read_text())
        if entry["kind"] == "batch-list":
            assert load(entry["backend"]).code is None
        else:
            listed.add(path.stem)
    assert batch.entries.keys() == listed
    for name in batch.entries:
        status, out = batch.ended[name]
        assert (name, status) == (name, 1), out
        assert RAISED.get(name, "<- differs") in out
        assert name in RAISED or "Traceback" not in out


def test_what_a_snippet_says_is_what_the_harness_says(batch: Batch) -> None:
    """Programs at large: those that agree end with 0, the others with 1."""
    others = {
        name: batch.ended[name][1] + batch.snippets[name]
        for name, status in batch.wanted.items()
        if batch.ended[name][0] != status
    }
    assert not others, "\n\n".join([str(list(others)), *others.values()])
    assert {*batch.wanted.values()} == {0, 1}
    assert len(batch.wanted) > 3 * len(batch.why_not), batch.why_not


def test_a_snippet_stands_alone_and_is_short(batch: Batch) -> None:
    for name in batch.entries:
        text = batch.snippets[name]
        assert not any(f"import {ours}" in text for ours in ("lockstep", "tests"))
        assert not any(f"from {ours}" in text for ours in ("lockstep", "tests"))
        assert len(text.splitlines()) < 130
        assert max(map(len, text.splitlines())) <= 90
        assert text.replace("\n", "").isprintable()


# --- what a file may do -----------------------------------------------------------------


@pytest.fixture(scope="module")
def mlx_lm() -> Backend:
    pytest.importorskip("mlx_lm")
    return load("mlx-lm")


def make(*ops: Mapping[str, Any], meta: Any = None, **config: Any) -> Program:
    document = {
        "format": "lockstep/1",
        "contract": "layer",
        "config": {"kind": "kv", **config},
        "ops": list(ops),
        "meta": meta,
    }
    return parse_program(document, "here")


UPDATE = {"op": "update", "length": 2}


def test_the_same_program_gives_the_same_snippet(mlx_lm: Backend) -> None:
    program = make(UPDATE, {"op": "size"})
    assert write_snippet(program, mlx_lm) == write_snippet(program, mlx_lm)


def test_a_name_in_a_program_is_no_name_in_a_snippet(mlx_lm: Backend) -> None:
    """Caches may be called like modules, or like nothing that Python allows."""
    ops = [
        {"op": "clone", "into": "sys"},
        {**UPDATE, "cache": "sys"},
        {**UPDATE, "cache": "-1.exit"},
    ]
    text = write_snippet(make(UPDATE, *ops), mlx_lm)
    code = "\n".join(line.partition("#")[0] for line in text.splitlines())
    assert "cache_2 = copy.deepcopy(cache)" in code
    assert "visible = update(cache_3, [4, 5])" in code
    assert "exit" not in code.replace("sys.exit(0 if", "")
    compile(text, "snippet", "exec")


def test_meta_is_not_written(mlx_lm: Backend) -> None:
    meta = {"signature": "x\n__import__('os')", "what": "EVIL", "backend": "EVIL\n"}
    text = write_snippet(make(UPDATE, meta=meta), mlx_lm)
    assert text == write_snippet(make(UPDATE), mlx_lm)


def test_many_tokens_make_no_long_snippet(mlx_lm: Backend) -> None:
    text = write_snippet(make({"op": "update", "length": 1024}), mlx_lm)
    assert "visible = update(cache, list(range(0, 1024)))" in text
    assert 'compare("row 1023 sees tokens", visible[1023], list(range(0, 1024)))' in text
    assert 'compare("row 7 sees tokens", visible[7], [0, 1, 2, 3, 4, 5, 6, 7])' in text
    assert len(text) < 100_000


@pytest.mark.parametrize("step", [-1, 2, 10**30, True, "0", None, 0.5, [0]])
def test_a_step_that_is_none_is_not_heeded(mlx_lm: Backend, step: Any) -> None:
    program = make(UPDATE, UPDATE, meta={"step": step})
    assert write_snippet(program, mlx_lm) == write_snippet(make(UPDATE, UPDATE), mlx_lm)


def test_a_snippet_ends_where_the_program_failed(mlx_lm: Backend) -> None:
    longer = make(UPDATE, UPDATE, UPDATE, meta={"step": 1})
    assert write_snippet(longer, mlx_lm) == write_snippet(make(UPDATE, UPDATE), mlx_lm)


@pytest.mark.parametrize("what", NOT_SHOWN)
def test_what_no_snippet_shows(mlx_lm: Backend, what: str) -> None:
    with pytest.raises(UsageError, match="a snippet cannot show"):
        write_snippet(make(UPDATE, meta={"signature": f"layer-kv-update-{what}"}), mlx_lm)


def test_why_there_is_no_snippet(mlx_lm: Backend) -> None:
    clone = {"op": "clone", "into": "b"}
    long = [{"op": "update", "length": 256}, UPDATE]
    bare = replace(mlx_lm, code=None)
    assert mlx_lm.code is not None
    code = mlx_lm.code(make().config)
    poor = replace(mlx_lm, code=lambda config: replace(code, calls={"update": Call("")}))
    for program, backend, words in (
        (make(UPDATE), bare, "does not declare how its code is written"),
        (make(UPDATE), poor, "no snippet shows the offset of an operation"),
        (make(UPDATE, {"op": "size"}), poor, "mlx-lm has no code for size"),
        (make(UPDATE, {"op": "free"}), mlx_lm, "does not declare free"),
        (make(UPDATE, clone), mlx_lm, "the last operation, clone, answers nothing"),
        (make(), mlx_lm, "no operation of the program is legal"),
        (make(*long, dtype="bfloat16"), mlx_lm, "up to 256 tokens apart in bfloat16"),
    ):
        with pytest.raises(UsageError, match=words):
            write_snippet(program, backend)


# --- the command ------------------------------------------------------------------------


@pytest.fixture
def lockstep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command and its worker in this process, in a folder of its own."""
    monkeypatch.setattr(Pool, "run", run_here)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, arguments, prog_name="lockstep")


def test_the_command_prints_a_script_that_fails(
    mlx_lm: Backend, lockstep: Callable[..., Result], tmp_path: Path
) -> None:
    assert mlx_lm.ledger is not None
    file = mlx_lm.ledger / "mlx-lm-rotating-keep-mask.json"
    printed = lockstep("snippet", str(file), "--backend", "mlx-lm")
    assert (printed.exit_code, printed.stderr) == (0, "")
    (tmp_path / "bug.py").write_text(printed.stdout)
    ended = subprocess.run(
        [sys.executable, "bug.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "row 2 sees tokens: [1, 2], expected [0, 2] <- differs" in ended.stdout


def test_the_page_has_the_snippet_that_is_written_now(
    mlx_lm: Backend, lockstep: Callable[..., Result], tmp_path: Path
) -> None:
    """And none that a file brings along: people run what they are shown."""
    ops = [{"op": "update", "length": 3}]
    meta = {"backend": "mlx-lm", "snippet": "import os; os.system('evil')"}
    program = make(*ops, kind="rotating", window=2, keep=1, meta=meta)
    (tmp_path / "p.json").write_text(json.dumps(program.to_json()))
    ended = lockstep("report", "p.json", "--output", "page")
    assert (ended.exit_code, ended.stderr) == (0, "")
    page = html.unescape((tmp_path / "page" / "report.html").read_text())
    assert write_snippet(program, mlx_lm) in page
    assert "evil" not in page
