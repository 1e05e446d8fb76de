"""Scripts for third-party caches: each known divergence as code that needs the framework
alone, and that comes to what the harness comes to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from lockstep.harness.backends.backend import Backend
from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.executor import run
from lockstep.harness.execution.scripts.script import try_script, write_script
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.generate.sources import RandomSource
from lockstep.harness.programs.ledger import Entry, load_ledger
from lockstep.harness.programs.program import Program, parse_program
from lockstep.harness.workers.registry import get_target, list_names, load
from tests.impl.released import load as load_peer

PROGRAMS = 2
"""That are drawn for each backend and kind."""

LONGEST = 28
"""Operations of these: longer ones may have more numbers than a script holds."""

LIBRARIES = (
    "mlx_lm", "mlx_vlm", "vllm_mlx", "transformers", "litgpt", "executorch", "fla",
)  # fmt: skip

RUNNER = """
import contextlib, io, json, sys, traceback

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("lockstep", "tests"):
            raise ImportError(f"a script imports {name}")

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


def run_all(scripts: Mapping[str, str], folder: Path) -> Mapping[str, Any]:
    """Name → (exit status, what was printed), far from this repository."""
    inherited = {
        name: value for name, value in os.environ.items() if "PYTHON" not in name
    }
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", RUNNER],
        input=json.dumps(scripts),
        cwd=folder,
        env=inherited,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def write(program: Program, name: str) -> str:
    return write_script(program, load(name), get_target(name))


def draw(backend: Backend) -> Iterator[tuple[str, Program, int]]:
    """Programs with what a script of each has to end with, and a name."""
    for contract, kinds in backend.contracts.items():
        for kind, declared in kinds.items():
            drawer = Drawer(contract, kind, declared, backend.dtypes, [], longest=LONGEST)
            source = RandomSource(7)
            for number in range(PROGRAMS):
                program = drawer.draw(source)
                divergence = run(program, backend, every=True).divergence
                if divergence is not None:
                    program = replace(program, meta={"step": divergence.step})
                name = f"{backend.name}-{kind}-{number}"
                yield name, program, int(divergence is not None)


class Framework:
    """All scripts of one framework, run in one process: importing it takes long."""

    def __init__(self, framework: str, folder: Path) -> None:
        prefix = f"{framework.replace('_', '-')}"
        names = [name for name in list_names() if name.startswith(prefix)]
        self.entries: dict[str, Entry] = {}
        self.wanted: dict[str, int] = {}
        self.why_not: list[str] = []
        self.scripts: dict[str, str] = {}
        for name in names:
            backend = load(name)
            if "serving" in backend.contracts:  # a script of an engine needs a server
                continue
            for entry in load_ledger(backend.ledger, backend.name):
                self.entries[entry.id] = entry
                self.scripts[entry.id] = write(entry.program, name)
            for label, program, status in draw(backend):
                try:
                    self.scripts[label] = write(program, name)
                    self.wanted[label] = status
                except UsageError as error:
                    self.why_not.append(str(error))
        self.ended = run_all(self.scripts, folder)


@pytest.fixture(scope="module", params=LIBRARIES)
def framework(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Framework:
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return Framework(request.param, tmp_path_factory.mktemp("far"))


def test_every_known_divergence_has_a_script_that_shows_it(framework: Framework) -> None:
    assert framework.entries
    for name, entry in framework.entries.items():
        status, out = framework.ended[name]
        assert (name, status) == (name, 1), out
        assert ("Traceback" in out) == entry.signature.endswith("-error"), out
        assert "Traceback" in out or "<- differs" in out


def test_a_script_comes_to_what_the_harness_comes_to(framework: Framework) -> None:
    """Programs at large: those that agree end with 0, the others with 1."""
    got = {name: framework.ended[name][0] for name in framework.wanted}
    assert got == framework.wanted
    assert len(framework.wanted) > 3 * len(framework.why_not), framework.why_not
    assert not [why for why in framework.why_not if "define" in why or "copy" in why]


def test_a_script_for_an_engine_calls_our_adapter() -> None:
    backend = load_peer("sglang-radix-default")
    (entry,) = load_ledger(backend.ledger, backend.name)
    script = write_script(entry.program, backend, get_target(backend.name))
    assert "backend = lockstep.impl.peers.sglang.sglang_radix_default()" in script
    assert try_script(script) == 1


# --- what a file may do -----------------------------------------------------------------


@pytest.fixture(scope="module")
def mlx_lm() -> Backend:
    pytest.importorskip("mlx_lm")
    return load("mlx-lm")


def make(*ops: Mapping[str, Any], meta: Any = None, **config: Any) -> Program:
    document = {"contract": "layer", "config": {"kind": "kv", **config}, "meta": meta}
    return parse_program({"format": "lockstep/1", "ops": list(ops), **document}, "here")


UPDATE = {"op": "update", "length": 2}


def test_the_calls_of_a_script(mlx_lm: Backend, snapshot: SnapshotAssertion) -> None:
    """Caches may be called like modules, or like nothing that Python allows; what a file
    tells of its failure, such as a step that there is not, is not heeded."""
    ops = [
        {"op": "clone", "into": "sys"},
        {**UPDATE, "cache": "sys"},
        {**UPDATE, "cache": "-1.exit"},
        {"op": "update", "length": 12, "cache": "sys"},
    ]
    meta = {"signature": "x\n__import__('os')", "backend": "EVIL\n", "step": 10**30}
    text = write(make(UPDATE, *ops, kind="rotating", window=4, meta=meta), "mlx-lm")
    assert text == write(make(UPDATE, *ops, kind="rotating", window=4), "mlx-lm")
    assert text[text.index("\nbackend = ") :] == snapshot
