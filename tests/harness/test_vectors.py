"""Sets of vectors: that they are the same everywhere, cover what they say, and can be
read by their own README."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Cell, advance
from lockstep.harness.core.payload import BITS, MAX_DIGITS, ROLES, compute_vectors
from lockstep.harness.programs.program import parse_program
from lockstep.harness.programs.vectors.selection import (
    ADDED,
    SIZES,
    Selection,
    list_levels,
)
from tests.harness.building import ALL_KINDS
from tests.harness.commands import ROOT, lockstep

Document = dict[str, Any]


def export(folder: Path, seed: int, jobs: int, *kinds: str) -> None:
    """Writes a tiny set. kinds: of its programs; none for all."""
    size = ("--size", "tiny", "--jobs", jobs)
    chosen = chain.from_iterable(("--kind", kind) for kind in kinds)
    ended = lockstep("vectors", "-o", folder, *size, *chosen, PYTHONHASHSEED=str(seed))
    assert ended.status == 0, ended.text


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny set of all kinds."""
    folder = tmp_path_factory.mktemp("vectors") / "tiny"
    export(folder, seed=1, jobs=1)
    return folder


@pytest.fixture(scope="module")
def documents(tiny: Path) -> list[Document]:
    return [
        json.loads(line)
        for path in sorted(tiny.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def manifest(tiny: Path) -> Document:
    document: Document = json.loads((tiny / "manifest.json").read_text())
    return document


@pytest.fixture(scope="module")
def readme(tiny: Path) -> str:
    return (tiny / "README.md").read_text()


# --- the same everywhere ----------------------------------------------------------------


def test_two_exports_have_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    """Whatever the seed of Python's hashes, and the number of workers."""
    kinds = dict(reversed(ALL_KINDS))  # one of each
    export(tmp_path / "other", 2, 2, *kinds.values())
    assert len(list(tiny.iterdir())) == len(ALL_KINDS) + 3
    others = sorted((tmp_path / "other").glob("*.jsonl"))
    assert len(others) == len(kinds) == len(CONTRACTS)
    for other in others:
        assert (tiny / other.name).read_bytes() == other.read_bytes()


def test_a_file_is_nothing_but_its_programs(tiny: Path, manifest: Document) -> None:
    """Nothing tells where or when it was made; no number has a fraction, which languages
    write differently; the manifest has its hash."""

    def refuse(digits: str) -> Any:
        raise AssertionError(digits)

    assert manifest["format"] == "lockstep-vectors/1"
    paths = {path.name: path for path in tiny.iterdir()}
    assert {*manifest["files"], "manifest.json"} == {*paths}
    for name, path in paths.items():
        content = path.read_bytes()
        text = content.decode()
        assert str(tiny) not in text and str(ROOT) not in text
        assert not re.search(r"20\d\d-\d\d-\d\d(?!/)", text)
        assert "\r" not in text
        if name in manifest["files"]:
            entry = manifest["files"][name]
            assert entry["sha256"] == hashlib.sha256(content).hexdigest()
            assert entry["bytes"] == len(content)
        for line in text.splitlines() if name.endswith(".jsonl") else ():
            document = json.loads(line, parse_float=refuse, parse_constant=refuse)
            again = json.dumps(document, sort_keys=True, separators=(",", ":"))
            assert line == again and line.isascii()


# --- what is covered --------------------------------------------------------------------


def recount(document: Document) -> Iterator[Cell]:
    """The cells that a program of a file reaches, with the reference alone."""
    program = parse_program(document, "a line")
    rules = program.rules
    model = rules.open_model(program.config)
    for op in program.ops:
        operation = rules.operations[op["op"]]
        assert operation.why_illegal(op, model) is None
        yield from ((state, op["op"]) for state in rules.get_states(op, model))
        advance(rules.operations, op, model)


def ungroup(cells: Mapping[str, list[str]]) -> set[Cell]:
    return {(state, name) for state, names in cells.items() for name in names}


def test_a_tiny_set_has_every_operation(
    documents: list[Document], manifest: Document
) -> None:
    """Recounted from the files."""
    operations: dict[tuple[str, str], set[str]] = {}
    for document in documents:
        program = document["program"]
        key = program["contract"], program["config"]["kind"]
        operations.setdefault(key, set()).update(op["op"] for op in program["ops"])
    kinds = [entry["holds"] for entry in manifest["files"].values() if "holds" in entry]
    assert sorted((holds["contract"], holds["kind"]) for holds in kinds) == sorted(
        ALL_KINDS
    )
    for holds in kinds:
        names = {*CONTRACTS[holds["contract"]].list_operations(holds["kind"])}
        assert operations[holds["contract"], holds["kind"]] == names
        assert {*holds["covered"][""]} <= names
        assert "" not in holds["not_covered"]


@pytest.mark.parametrize(
    ("contract", "kind"), [("layer", "kv"), ("unified", "encoder"), ("prefix", "session")]
)
def test_a_small_set_reaches_every_cell_twice(contract: str, kind: str) -> None:
    selection = Selection(contract, kind, SIZES["small"])
    selection.select()
    counted: Counter[Cell] = Counter()
    lines = [line for _, line in selection.chosen]
    for line in lines:
        counted.update(set(recount(json.loads(line))))
    cells = CONTRACTS[contract].list_cells(kind, get_whole(contract, kind))
    assert {cell: counted[cell] for cell in cells if counted[cell] < 2} == {}
    assert not re.search(r"[0-9.]\.[0-9]", "".join(lines))
    assert set(counted) == set(cells) <= ungroup(selection.describe()["covered"])


def get_whole(contract: str, kind: str) -> Kind:
    """The declaration of all levels together."""
    return replace(list_levels(contract, kind)["settings"], refuses=True)


@pytest.mark.parametrize(("contract", "kind"), ALL_KINDS)
def test_levels_grow(contract: str, kind: str, documents: list[Document]) -> None:
    """Each level may do all that the one before may, and its programs do no more."""
    levels = list_levels(contract, kind)
    before: frozenset[str] = frozenset()
    for declared in levels.values():
        assert before <= declared.operations
        before = declared.operations
    rules = CONTRACTS[contract]
    assert before == {*rules.list_operations(kind)}
    for document in documents:
        program = document["program"]
        if (program["contract"], program["config"]["kind"]) == (contract, kind):
            level = program["meta"]["level"]
            assert {op["op"] for op in program["ops"]} <= levels[level].operations
            if level != "settings":
                for name in rules.opt_in - {*levels[level].config}:
                    default = rules.config[name]["default"]
                    assert program["config"][name] == default, name


# --- the schema -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schema(tiny: Path) -> Document:
    schema: Document = json.loads((tiny / "schema.json").read_text())
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def test_every_line_is_valid(schema: Document, documents: list[Document]) -> None:
    """By the branch of its kind, and each answer by the schema of its operation: the
    schema of a line cannot say that."""
    assert len(schema["anyOf"]) == len(ALL_KINDS)
    branches = dict(zip(ALL_KINDS, schema["anyOf"], strict=True))
    answers: dict[tuple[str, str], Any] = {}
    for document in documents:
        program = document["program"]
        contract, kind = program["contract"], program["config"]["kind"]
        jsonschema.Draft202012Validator(branches[contract, kind]).validate(document)
        operations = CONTRACTS[contract].operations
        for op, expected in zip(program["ops"], document["expected"], strict=True):
            if (kind, op["op"]) not in answers:
                answer = operations[op["op"]].get_answer(kind)
                answers[kind, op["op"]] = jsonschema.Draft202012Validator(answer)
            answers[kind, op["op"]].validate(expected)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), "lockstep-trace/2"),
        (("program", "format"), "lockstep/2"),
        (("program", "contract"), "unified"),
        (("program", "config", "kind"), "causal"),
        (("program", "config", "heads"), 0),
        (("program", "config", "dtype"), "float64"),
        (("program", "ops", 0, "op"), "forward"),
        (("program", "ops", 0, "length"), 0),
        (("program", "ops", 0, "length"), 1.5),
        (("program", "ops", 0, "cache"), "../a"),
        (("expected", 0), {"size": -1}),
        (("expected", 0), {"error": "unknown"}),
        (("expected", 0), {"tags": [1], "offset": 2}),
    ],
)
def test_wrong_values_are_refused(
    schema: Document, documents: list[Document], path: tuple[Any, ...], value: Any
) -> None:
    kv = [one for one in documents if one["program"]["config"]["kind"] == "kv"]
    first = {one["program"]["ops"][0]["op"]: one for one in kv}
    document = deepcopy(first["update"])
    inner: Any = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert not jsonschema.Draft202012Validator(schema).is_valid(document)


# --- the README -------------------------------------------------------------------------


def compute_by_the_readme(
    tag: int, layer: int, head: int, role: str, dim: int, dtype: str
) -> list[Fraction]:
    """The formula of the README in whole numbers, and nothing of ours."""
    digits = min(dim, 4)
    modulus = 16**digits
    salt = 1 + 5 * (("key", "value", "query").index(role) + 3 * head + 192 * layer)
    code = (tag * 40503 + salt) % modulus
    bits = {"float32": 24, "float16": 11, "bfloat16": 8}[dtype]
    spread = 2 ** (bits - 5)
    numbers = []
    for d in range(dim):
        digit = (code * (1 + 2 * (d // 4)) // 16 ** (d % 4)) % 16
        fine = 2 * ((code * 2654435 + d * 40503) % spread) + 1 - spread
        numbers.append(Fraction(2 * digit - 15, 16) + Fraction(fine, 2**bits))
    return numbers


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dim", [1, 3, 4, 6, 8, 17])
def test_the_formula_of_the_readme_is_the_payload(dim: int, dtype: str) -> None:
    for layer, head, role in [(0, 0, "key"), (3, 2, "value"), (1, 7, "query")]:
        assert role in ROLES and MAX_DIGITS == 4
        ours = compute_vectors(np.arange(40), layer, head, role, dim, dtype)  # type: ignore[arg-type]
        for tag, vector in enumerate(ours.tolist()):
            formula = compute_by_the_readme(tag, layer, head, role, dim, dtype)
            assert [Fraction(number) for number in vector] == formula


def test_the_examples_of_the_readme_follow_its_formula(readme: str) -> None:
    row = r"^\| (\d+) \| (\d) \| (\d) \| (\w+) \| (\d) \| (\w+) \| (.*) \|$"
    rows = re.findall(row, readme, re.M)
    assert len(rows) > 5
    for tag, layer, head, role, dim, dtype, numbers in rows:
        place = int(tag), int(layer), int(head), role, int(dim), dtype
        formula = compute_by_the_readme(*place)
        scaled = [number * 2 ** BITS[dtype] for number in formula]
        assert [int(number) for number in numbers.split(", ")] == scaled


def test_the_readme_has_a_row_of_each_operation(readme: str, tiny: Path) -> None:
    """With its fields; and every field of a config, every level, every file."""
    for rules in CONTRACTS.values():
        section = re.search(rf"^## {rules.name}\n(.*?)(?=^## |\Z)", readme, re.M | re.S)
        assert section
        rows = re.findall(r"^\| (\w+) \| (.*?) \| (.+) \| (.+) \|$", section[1], re.M)
        fields = {name: cell.split(", ") for name, cell, *_ in rows}
        for name, operation in rules.operations.items():
            assert {*operation.fields} - {*fields[name]} <= {"cache"}
        for word in (*rules.kinds, *rules.config):
            assert re.search(rf"\b{word}\b", readme), word
    for level in list_levels("layer", "kv"):
        assert f"* `{level}`:" in readme
    for path in tiny.iterdir():
        assert path.name == "README.md" or f"`{path.name}`" in readme
    assert "@" not in readme


FORMULA = """\
salt = 1 + 5 * (role + 3 * head + 192 * layer)
code = (tag * 40503 + salt) mod modulus
digit(d) = (code * (1 + 2 * (d / 4)) / 16 ** (d mod 4)) mod 16
fine(d) = 2 * ((code * 2654435 + d * 40503) mod S) + 1 - S
x(d) = (2 * digit(d) - 15) / 16 + fine(d) / 2 ** b
"""


class Reader:
    """A cache written from the README alone: what it says suffices, and is right."""

    def __init__(self, config: Document) -> None:
        self.kind, self.window = config["kind"], config["window"]
        self.tags: list[int] = []

    def run(self, op: Document, tag: int) -> Document:
        before = len(self.tags)
        if op["op"] == "update":
            self.tags += range(tag, tag + op["length"])
            rows = [self.see(end) for end in range(before + 1, len(self.tags) + 1)]
            return {"offset": len(self.tags), "visible": rows}
        if op["op"] == "trim":
            dropped = self.kind == "rotating" and before > self.window
            count = 0 if dropped or self.kind == "state" else min(op["count"], before)
            del self.tags[before - count :]
            return {"trimmed": count, "offset": before - count}
        if op["op"] == "free":
            self.tags = []
            return {"offset": 0}
        if op["op"] == "size":
            return {"size": len(self.see(before))}
        return {"tags": sorted(self.see(before))}

    def see(self, end: int) -> list[int]:
        begin = max(0, end - self.window) if self.kind == "rotating" else 0
        return self.tags[begin:end]


@pytest.mark.parametrize("kind", ["kv", "rotating", "state"])
def test_a_reader_that_follows_the_readme_agrees(
    kind: str, documents: list[Document]
) -> None:
    """With what most engines can do."""
    ran = 0
    for document in documents:
        program, tag = document["program"], 0
        is_core = program["meta"]["level"] in ("core", *ADDED)
        if program["config"]["kind"] != kind or not is_core:
            continue
        caches = {"a": Reader(program["config"])}
        for op, expected in zip(program["ops"], document["expected"], strict=True):
            cache = caches.setdefault(op["cache"], Reader(program["config"]))
            if op["op"] == "clone":
                caches[op["into"]] = deepcopy(cache)
                assert expected == {}
                continue
            assert cache.run(op, tag) == expected, (program["meta"]["name"], op)
            tag += op.get("length", 0)
            ran += 1
    assert ran > 20


def test_the_formula_stands_in_the_readme(readme: str) -> None:
    assert all(line in readme for line in FORMULA.splitlines())
    assert not re.search(r"@[A-Z]+@", readme)
