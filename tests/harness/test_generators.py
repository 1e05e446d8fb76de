"""The generators: the same programs for the same seed, long enough, and everywhere."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.programs.generate import GENERATORS
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.program import Program, parse_program
from lockstep.harness.programs.walk import walk
from lockstep.impl.shared.operations import CONFIG, OPERATIONS
from tests.harness.building import count_cells, draw_some
from tests.harness.commands import ROOT

DTYPES = ("float32", "float16", "bfloat16")
PROGRAMS = 300

DECLARED = {kind: Kind(OPERATIONS[kind], CONFIG[kind]) for kind in OPERATIONS}
DECLARED["kv-chunked"] = Kind(OPERATIONS["kv"], {"chunk": (2, 4, 1, 3)})

every_generator = pytest.mark.parametrize("generator", sorted(GENERATORS))
every_kind = pytest.mark.parametrize("name", sorted(DECLARED))


@cache
def generate(
    generator: str, name: str, seed: int = 0, count: int = PROGRAMS
) -> list[Program]:
    programs: list[Program] = []
    drawer = Drawer("layer", name.partition("-")[0], DECLARED[name], DTYPES)
    GENERATORS[generator](count, seed, drawer.draw, programs.append)
    return programs


def hash_all(programs: list[Program]) -> str:
    text = "\n".join(json.dumps(program.to_json()) for program in programs)
    return hashlib.sha256(text.encode()).hexdigest()


ELSEWHERE = """
import sys
sys.path[:0] = {paths}
import loaded_first, xml.dom.minidom, sqlite3, unittest.mock
import lockstep.harness.cli.main, reference.rotating, lockstep.impl.shared.kv
import test_generators
print(*[test_generators.hash_all(test_generators.generate(generator, "rotating", 7, 40))
        for generator in sorted(test_generators.GENERATORS)])
"""


def test_the_same_seed_gives_the_same_programs_in_any_process(tmp_path: Path) -> None:
    """Hypothesis mixes constants of the modules that a process has loaded into its draws,
    so the other process loads some that are full of them."""
    numbers = [1, 4, 7, 100, 1000, 65_535, 1 << 24, 1 << 40, 1 << 99, 1 << 101]
    (tmp_path / "loaded_first.py").write_text(f"NUMBERS = {numbers}\nWORDS = ['a', 's0']")
    paths = [str(tmp_path), str(Path(__file__).parent), str(ROOT)]
    command = [sys.executable, "-c", ELSEWHERE.format(paths=paths)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.stderr == ""
    names = sorted(GENERATORS)
    here = [hash_all(generate(name, "rotating", 7, 40)) for name in names]
    assert ended.stdout.split() == here


@every_generator
def test_the_same_seed_again_and_another_seed(generator: str) -> None:
    generate.cache_clear()
    first = hash_all(generate(generator, "kv", 1, 20))
    generate.cache_clear()
    assert hash_all(generate(generator, "kv", 1, 20)) == first
    assert hash_all(generate(generator, "kv", 2, 20)) != first


@every_generator
@every_kind
def test_programs_are_many_long_and_various(generator: str, name: str) -> None:
    """Run on the reference alone: an operation that it would skip does not count."""
    programs, declared = generate(generator, name), DECLARED[name]
    assert len(programs) == PROGRAMS
    assert len({program.digest() for program in programs}) > 0.95 * PROGRAMS
    executed = sum(not step.skipped for each in programs for step in walk(each, False))
    assert executed / PROGRAMS >= 20
    reached = {state for state, _ in count_cells(programs)}
    wanted = programs[0].rules.list_states(programs[0].kind, declared)
    assert len(wanted) >= 9
    assert not {*wanted} - reached
    operations = {op["op"] for program in programs for op in program.ops}
    assert operations == declared.operations
    for field, values in {**declared.config, "dtype": DTYPES}.items():
        assert {program.config[field] for program in programs} == {*values}


@every_generator
def test_programs_are_files(generator: str) -> None:
    for name in DECLARED:
        for program in generate(generator, name)[:20]:
            assert parse_program(json.loads(json.dumps(program.to_json())), "") == program


def test_only_what_is_declared_is_drawn() -> None:
    config = {"heads": (3,), "step": (2, 5)}
    declared = Kind(frozenset({"update", "trim"}), config)
    programs = draw_some(50, "layer", "kv", declared, 0, ("float16",))
    assert {op["op"] for program in programs for op in program.ops} == {"update", "trim"}
    for field, values in {**config, "dtype": ("float16",)}.items():
        assert {program.config[field] for program in programs} == {*values}


@every_generator
def test_what_is_raised_comes_out_as_it_is(generator: str) -> None:
    """Even if it is raised once only."""
    seen: list[Program] = []

    def consume(program: Program) -> None:
        seen.append(program)
        if len(seen) == 7:
            raise KeyError("the seventh")

    drawer = Drawer("layer", "kv", Kind(frozenset({"update"})), ("float32",))
    with pytest.raises(KeyError, match="the seventh"):
        GENERATORS[generator](50, 0, drawer.draw, consume)
