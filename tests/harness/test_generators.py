"""Drawn programs: the same for one seed wherever they are drawn, long and various; usage
is broken only where that is asked for."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations, dropwhile, permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Op, Source
from lockstep.harness.execution.executor import Coverage, run
from lockstep.harness.programs.generate.drawer import MOST_NUMBERS, Drawer
from lockstep.harness.programs.generate.hypothesis import generate
from lockstep.harness.programs.generate.sources import RandomSource
from lockstep.harness.programs.program import (
    Program,
    parse_program,
    trace,
    walk,
)
from lockstep.harness.programs.words import describe_config
from lockstep.impl.shared.operations import CONFIG
from lockstep.impl.torch.backend import cpu
from tests.harness.building import KINDS, count_cells, declare_all, draw_some
from tests.harness.commands import ROOT

DTYPES = ("float32", "float16", "bfloat16")
PROGRAMS = 150

ALL = {kind: frozenset(CONTRACTS["layer"].list_operations(kind)) for kind in CONFIG}
DECLARED = {kind: Kind(ALL[kind], CONFIG[kind]) for kind in ALL}
DECLARED["kv-chunked"] = Kind(ALL["kv"], {"chunk": (2, 4, 1, 3)})

every_kind = pytest.mark.parametrize("name", sorted(DECLARED))


def make_drawer(name: str) -> Drawer:
    return Drawer("layer", name.partition("-")[0], DECLARED[name], DTYPES)


def generate_some(name: str, seed: int = 0, count: int = PROGRAMS) -> list[Program]:
    programs: list[Program] = []
    generate(count, seed, make_drawer(name).draw, programs.append)
    return programs


def hash_all(programs: list[Program]) -> str:
    text = "\n".join(json.dumps(program.to_json()) for program in programs)
    return hashlib.sha256(text.encode()).hexdigest()


ELSEWHERE = """
import sys
sys.path[:0] = {paths}
{loads}
import lockstep.harness.cli.main, reference.rotating, lockstep.impl.shared.kv
import test_generators
print(*[test_generators.hash_all(test_generators.generate_some(name, 7, 40))
        for name in ("rotating", "kv-chunked")])
"""
LOADS = "import loaded_first, xml.dom.minidom, sqlite3, unittest.mock"


def test_the_same_seed_gives_the_same_programs_in_any_process(tmp_path: Path) -> None:
    """Hypothesis mixes constants of the modules that a process has loaded into its draws,
    so the other process loads some that are full of them."""
    numbers = [1, 4, 7, 100, 1000, 65_535, 1 << 24, 1 << 40, 1 << 99, 1 << 128]
    constants = f"NUMBERS = {numbers}\nBYTES = {[b'x' * n for n in (1, 12, 15, 50)]}"
    (tmp_path / "loaded_first.py").write_text(constants)
    paths = [str(tmp_path), str(Path(__file__).parent), str(ROOT)]
    hashes = []
    caches = tmp_path / "caches"
    for loads in (LOADS, ""):
        command = [sys.executable, "-c", ELSEWHERE.format(paths=paths, loads=loads)]
        environment = {**os.environ, "XDG_CACHE_HOME": str(caches)}
        ended = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert ended.stderr == ""
        hashes.append(ended.stdout.split())
    here = [hash_all(generate_some(name, 7, 40)) for name in ("rotating", "kv-chunked")]
    assert hashes == [here, here]
    assert any((caches / "lockstep" / "hypothesis").rglob("*"))
    assert not (tmp_path / ".hypothesis").exists()


@pytest.mark.parametrize("limit", [2, 3, 7, 16, 17, 60, 720])
def test_each_option_is_as_likely_as_the_others(limit: int) -> None:
    """Hypothesis prefers small numbers, unless they are drawn from far away."""
    drawn: Counter[int] = Counter()

    def draw(source: Source) -> Program:
        choices = [source.below(limit) for _ in range(40)]
        length = min(2, source.below(100))  # the simplest programs are short, and few
        drawn.update(choices if length > 1 else ())
        return Program("layer", {"kind": "kv"}, [{"op": "trim"}] * length)

    generate(200, 0, draw, lambda program: None)
    assert {*drawn} <= {*range(limit)}
    expected = drawn.total() / limit
    spread = sum((drawn[option] - expected) ** 2 for option in range(limit)) / expected
    assert spread < 2 * limit + 30


@every_kind
def test_programs_are_many_long_and_various(name: str) -> None:
    """Run on the reference alone: an operation that it would skip does not count."""
    programs, declared = generate_some(name), DECLARED[name]
    assert len(programs) == PROGRAMS
    assert len({program.digest() for program in programs}) > 0.95 * PROGRAMS
    executed = sum(not step.skipped for each in programs for step in walk(each, False))
    assert executed / PROGRAMS >= 45
    assert sum(len(program.ops) < 36 for program in programs) < 0.12 * PROGRAMS
    reached = {state for state, _ in count_cells(programs)}
    wanted = programs[0].rules.list_states(programs[0].kind, declared)
    assert len(wanted) >= 9
    assert not {*wanted} - reached
    operations = {op["op"] for program in programs for op in program.ops}
    assert operations == declared.operations
    for field, values in {**declared.config, "dtype": DTYPES}.items():
        assert {program.config[field] for program in programs} == {*values}
    for program in programs[:20]:
        assert parse_program(json.loads(json.dumps(program.to_json())), "") == program


def test_what_is_raised_comes_out_as_it_is() -> None:
    """Even if it is raised once only."""
    seen: list[Program] = []

    def consume(program: Program) -> None:
        seen.append(program)
        if len(seen) == 7:
            raise KeyError("the seventh")

    drawer = Drawer("layer", "kv", Kind(frozenset({"update"})), ("float32",))
    with pytest.raises(KeyError, match="the seventh"):
        generate(50, 0, drawer.draw, consume)


MANY, FEW, LEAST = 100, 50, 10
OPT_IN: Mapping[str, Mapping[str, Any]] = {
    "layer": {},
    "batched": {},
    "unified": dict.fromkeys(("layers", "cache_padding", "mask_padding"), (1, 2, 4)),
    "prefix": {"interval": (None, 1, 2, 3)},
    "paged": {
        "hash_block": (None, 1, 2),
        "data": ("tags", "backend"),
        "drop_last": (False, True),
        "host": (0, 4),
        "flight": (0, 2),
        "overlap": (False, True),
        "remote": (False, True),
    },
}
every_pair = pytest.mark.parametrize(("contract", "kind"), KINDS)


def declare(contract: str, kind: str, refuses: bool = False) -> Kind:
    return declare_all(contract, kind, config=OPT_IN[contract], refuses=refuses)


@cache
def draw(
    contract: str, kind: str, refuses: bool = False, count: int = FEW
) -> list[Program]:
    declared = declare(contract, kind, refuses)
    return draw_some(count, contract, kind, declared, misuse=1)


@every_pair
def test_every_operation_is_drawn_with_many_configs(contract: str, kind: str) -> None:
    programs, declared = draw(contract, kind, count=MANY), declare(contract, kind)
    drawn = Counter(op["op"] for program in programs for op in program.ops)
    names = {name for _, name in CONTRACTS[contract].list_cells(kind, declared)}
    assert {name: drawn[name] for name in names if drawn[name] < LEAST} == {}
    assert 48 < drawn.total() / MANY < 72  # a few programs have 500 operations
    assert len({json.dumps(program.config) for program in programs}) > 0.8 * MANY


def test_loads_land_and_are_read() -> None:
    """A load needs some ten operations, which random choice hardly draws in order."""
    reads: Counter[str] = Counter()
    resets: Counter[str] = Counter()
    for kind in CONTRACTS["paged"].kinds:
        declared = cpu().contracts["paged"][kind]
        for program in draw_some(64, "paged", kind, declared):
            coverage: Coverage = Counter()
            run(program, cpu(), coverage=coverage)
            reads[kind] += coverage["loaded", "run"] + coverage["loaded", "finish"] > 0
            answers = zip(program.ops, trace(program), strict=True)
            later = dropwhile(lambda item: item[0]["op"] != "offload", answers)
            resets[kind] += any(
                op["op"] == "reset" and answer["ok"] is True for op, answer in later
            )
    assert reads.total() >= 5 * 64 / 8, reads
    assert min(reads.values()) >= 2, reads
    assert resets.total() >= 16, resets


def test_namespaces_are_nearly_equal() -> None:
    pairs: Counter[tuple[str, str]] = Counter()
    for program in draw("paged", "paged-full", count=MANY):
        opened: dict[tuple[int, ...], set[str]] = {}
        for op in program.ops:
            if op["op"] == "open" and op["namespace"]:
                opened.setdefault(tuple(op["tokens"][:1]), set()).add(op["namespace"])
        pairs.update(pair for names in opened.values() for pair in permutations(names, 2))
    assert any(len(a) == len(b) > 1 and a[:8] == b[:8] for a, b in pairs)
    assert any(len(a) == len(b) > 1 and a[-8:] == b[-8:] for a, b in pairs)
    numbers = [int(a) - int(b) for a, b in pairs if (a + b).isdecimal()]
    assert {1 << 16, 1 << 32} <= {*numbers}
    assert any(a.startswith(b) for a, b in pairs)


def test_adapters_and_extras_are_nearly_equal() -> None:
    """Each of these is met in at least one of 20 programs."""
    declared = cpu().contracts["paged"]["paged-full"]
    met: Counter[str] = Counter()
    count = 3 * MANY
    for program in draw_some(count, "paged", "paged-full", declared):
        pairs = combinations((op for op in program.ops if op["op"] == "open"), 2)
        met.update({name for pair in pairs for name in compare_opened(*pair)})
    names = "letters", "another key", "near key", "another place", "another end"
    assert {name: met[name] for name in names if met[name] < count / 20} == {}


def compare_opened(one: Op, other: Op) -> Iterator[str]:
    """In what requests with the same first two tokens are nearly equal."""
    if one["tokens"][:2] != other["tokens"][:2]:
        return
    names = [(op["namespace"], op["adapter"]) for op in (one, other)]
    letters = {"".join(name or "" for name in pair) for pair in names}
    if names[0] != names[1] and len(letters) == 1:
        yield "letters"
    for first, end, key in one["extras"]:
        for other_first, other_end, other_key in other["extras"]:
            if key == other_key and first != other_first:
                yield "another place"
            elif key == other_key and end != other_end:
                yield "another end"
            elif key != other_key and first == other_first:
                yield "another key"
                if key[:4] == other_key[:4] or key[-4:] == other_key[-4:]:
                    yield "near key"


def test_requests_end_with_a_block_and_are_asked_for_their_last_token() -> None:
    """In at least one of 20 programs, for blocks of 32 tokens."""
    declared = declare_all("serving", "serving-full")
    asked = sum(
        any(
            step.op["op"] == "interrogate"
            and len(step.model.requests[step.op["request"]].tokens) % 32 == 0
            for step in walk(program, rows=False)
        )
        for program in draw_some(MANY, "serving", "serving-full", declared)
    )
    assert asked >= MANY / 20


def test_one_request_has_several_transfers() -> None:
    declared = declare_all("paged", "paged-full", config={"host": (8,)})
    doubled = 0
    for program in draw_some(MANY, "paged", "paged-full", declared):
        begun = [
            step.model.find_owner(name) or ""
            for step in walk(program, rows=False)
            for name in step.model.transfers
            if step.op["op"] == "offload" == program.ops[step.number - 1]["op"]
            and step.op["request"] == program.ops[step.number - 1]["request"]
        ]
        doubled += bool(begun)
    assert doubled > MANY // 8


@pytest.mark.parametrize("kind", ["causal", "swa", "recurrent"])
def test_all_sequences_of_a_pass_skip_a_position(kind: str) -> None:
    alike = 0
    for program in draw("unified", kind, count=MANY):
        for step in walk(program, rows=False):
            if step.op["op"] != "forward" or step.skipped:
                continue
            owners = step.op["sequences"]
            firsts = {
                owner: step.op["positions"][owners.index(owner)] for owner in owners
            }
            gaps = {at - step.model.get_end(owner) for owner, at in firsts.items()}
            alike += len(firsts) > 1 and len(gaps) == 1 and gaps != {0}
    assert alike >= MANY // 50


MEASURED = 192


def test_some_programs_have_real_sizes() -> None:
    """Heads and dimensions of models, long updates, large offsets."""
    programs = draw_some(MEASURED, "layer", "kv", declare("layer", "kv"))
    met: Counter[str] = Counter()
    for program in programs:
        config, lengths = program.config, [op.get("length", 0) for op in program.ops]
        met["key_dim"] += config["key_dim"] >= 64
        met["heads"] += config["heads"] >= 32
        met["length"] += max(lengths, default=0) > 256
        met["tokens"] += program.count_tags() > 1024
        numbers = program.count_tags() * program.rules.count_numbers(config)
        assert numbers <= MOST_NUMBERS
        assert parse_program(program.to_json(), "here") == program
    assert set(met) == set(+met), met
    assert met["key_dim"] < MEASURED // 8


def test_some_programs_update_one_cache_hundreds_of_times() -> None:
    most = 0
    for program in draw_some(6 * MEASURED, "layer", "kv", declare("layer", "kv")):
        if len(program.ops) > 300:
            names = [op["cache"] for op in program.ops if op["op"] == "update"]
            most = max(most, *Counter(names).values())
    assert most > 200


def test_declared_sizes_are_kept() -> None:
    kind = declare_all("layer", "kv", config={"heads": (2,), "key_dim": (4,)})
    for program in draw_some(MEASURED, "layer", "kv", kind):
        assert (program.config["heads"], program.config["key_dim"]) == (2, 4)


def test_tokens_and_checkpoints_of_conversations_vary() -> None:
    """Tokens are not all alike: some might be taken for padding, or for each other in 16
    bits. Checkpoints come in any order."""
    ops = [op for program in draw("prefix", "trie", count=MANY) for op in program.ops]
    assert {token for op in ops for token in op.get("tokens", ())} >= {0, 1, 65_537}
    given = [op["offsets"] for op in ops if op["op"] == "checkpoint"]
    assert any(offsets != sorted(offsets) for offsets in given)


def list_refused(program: Program) -> list[bool]:
    """Whether each operation breaks a rule of usage."""
    steps = walk(program, rows=False)
    return [
        not step.skipped and step.run_reference() == {"error": "usage"} for step in steps
    ]


@every_pair
def test_usage_is_broken_often_but_only_where_asked_for(contract: str, kind: str) -> None:
    for program in draw(contract, kind):
        assert True not in list_refused(program)
    refused: Counter[str] = Counter()
    steps = 0
    for program in draw(contract, kind, refuses=True):
        steps += len(program.ops)
        for op, is_refused in zip(program.ops, list_refused(program), strict=True):
            refused[op["op"]] += is_refused
    low, high = (0.15, 0.65) if contract == "unified" else (0.08, 0.6)
    assert low < refused.total() / steps < high
    rules = CONTRACTS[contract]
    cells = rules.list_cells(kind, declare(contract, kind))
    breakable = {name for _, name in cells if rules.operations[name].has_misuse}
    assert len(breakable - {*+refused}) <= 1  # one may need more than few programs have


def test_a_list_that_sizes_forbid_is_drawn_again() -> None:
    """A state needs values."""
    state = [{"kind": "batch-state"}, {"kind": "batch-kv"}]
    config = {"caches": (state,), "value_dim": (0, 4)}
    kind = declare_all("batched", "batch-list", config=config)
    for program in draw_some(40, "batched", "batch-list", kind):
        assert program.config["value_dim"] == 4
        assert parse_program(program.to_json(), "here") == program


@every_pair
def test_programs_are_total(contract: str, kind: str) -> None:
    """Whatever is left out, the rest can be traced, and is the same after a detour
    through JSON. The config can be told, whatever it has."""
    random = Random(3)
    for program in draw(contract, kind, refuses=True)[:40]:
        words = describe_config(program)
        assert words and not set("{}'") & set(words), words
        document = program.to_json()
        assert parse_program(document, "here") == program
        document["ops"] = [op for op in document["ops"] if random.random() < 0.5]
        left = parse_program(document, "here")
        assert len(trace(left)) == len(left.ops)
        assert parse_program(left.to_json(), "here") == left


def test_empty_caches_are_stacked_too() -> None:
    """Beside others and alone; their names were not used before."""
    declared = Kind(frozenset({"open", "update", "extract", "stack"}))
    drawer, source = (
        Drawer("batched", "batch-kv", declared, ("float32",)),
        RandomSource(1),
    )
    sizes = set()
    for _ in range(60):
        used: set[str | None] = set()
        for op in drawer.draw(source).ops:
            fresh = [name for name in op.get("caches", ()) if name not in used]
            sizes.add((len(fresh), len(op.get("caches", ()))))
            used |= {op["cache"], op.get("into")}
    assert {(1, 1), (1, 2)} <= sizes


def test_another_seed_gives_other_programs() -> None:
    first = hash_all(generate_some("kv", 1, 20))
    assert hash_all(generate_some("kv", 1, 20)) == first
    assert hash_all(generate_some("kv", 2, 20)) != first


def test_only_what_is_declared_is_drawn() -> None:
    config = {"heads": (3,), "step": (2, 5)}
    declared = Kind(frozenset({"update", "trim"}), config)
    programs = draw_some(50, "layer", "kv", declared, 0, ("float16",))
    assert {op["op"] for program in programs for op in program.ops} == {"update", "trim"}
    for field, values in {**config, "dtype": ("float16",)}.items():
        assert {program.config[field] for program in programs} == {*values}
