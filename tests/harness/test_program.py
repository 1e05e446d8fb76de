"""Program files: what is read, what is written, and what is refused, with its place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.program import (
    load_programs,
    parse_program,
    trace,
)
from lockstep.harness.programs.words import describe_config
from tests.harness.building import make, trim, update

UPDATE = update(2)
GOOD: dict[str, Any] = make(UPDATE, trim(1)).to_json()


def change(**fields: Any) -> dict[str, Any]:
    return {**GOOD, **fields}


def with_op(**op: Any) -> dict[str, Any]:
    return change(ops=[UPDATE, op])


def with_config(**config: Any) -> dict[str, Any]:
    return change(config={"kind": "kv", **config})


# --- what is read -----------------------------------------------------------------------


def test_missing_fields_take_their_defaults() -> None:
    program = parse_program(GOOD, "here")
    sizes = {"layers": 1, "heads": 1, "key_dim": 4, "value_dim": 4, "conv_width": 4}
    visible = {"window": None, "keep": 0, "chunk": None, "shift": True, "step": 256}
    visible |= {"pool": None, "overlap": 0, "lookahead": 0}
    padding = {"cache_padding": 1, "mask_padding": 1, "mask_form": "any"}
    plain = {"kind": "kv", "dtype": "float32", "special_numbers": False, "record": False}
    plain |= {"scope": 0, "variant": 0}
    assert program.config == {**plain, **visible, **sizes, **padding}
    update = {"op": "update", "length": 2, "cache": "a", "wrong": None}
    assert program.ops[0] == update
    assert program.meta == {}
    assert program.count_tags() == 2


def test_a_round_trip_changes_nothing() -> None:
    document = change(
        config={"kind": "rotating", "window": 3, "keep": 1, "dtype": "bfloat16"},
        ops=[
            update(3, cache="b"),
            {"op": "snapshot", "from": -1, "into": "s.0"},
            {"op": "restore", "snapshot": None, "target": 0},
            {"op": "prepare", "offsets": [1, 2]},
            {"op": "take", "into": ["x", "y"]},
        ],
        meta={"found": "by hand", "more": [1, {"a": None}]},
    )
    program = parse_program(document, "here")
    assert program.to_json() == document
    assert parse_program(program.to_json(), "there") == program


def test_defaults_are_left_out_of_a_file() -> None:
    spelled = with_config(heads=1, step=256, window=None)
    assert parse_program(spelled, "here").to_json() == GOOD


def test_the_digest_depends_on_config_and_operations_alone() -> None:
    digest = parse_program(GOOD, "here").digest()
    same = (change(meta={"a": 1}), with_config(heads=1))
    other = (with_config(heads=2), change(ops=[UPDATE]), with_op(op="trim", count=2))
    assert {parse_program(document, "").digest() for document in same} == {digest}
    digests = {parse_program(document, "").digest() for document in other}
    assert len(digests | {digest}) == 4


def test_a_program_has_at_most_80_caches_and_saved_contents() -> None:
    clones = [{"op": "clone", "into": f"c{number}"} for number in range(80)]
    parse_program(change(ops=clones[:79]), "here")
    with pytest.raises(UsageError, match="here: names 81 caches and saved contents; at"):
        parse_program(change(ops=clones), "here")


def test_a_whole_float_is_an_integer() -> None:
    program = parse_program(with_op(op="trim", count=2.0), "here")
    assert repr(program.ops[1]["count"]) == "2"
    with pytest.raises(UsageError, match=r"here: ops.*inf is not of type 'integer'"):
        parse_program(with_op(op="trim", count=float("inf")), "here")


def test_a_trace_is_read_as_the_program_in_it() -> None:
    document = {"format": "lockstep-trace/1", "program": GOOD, "expected": []}
    assert parse_program(document, "here") == parse_program(GOOD, "there")


LINES = "\n".join([json.dumps(GOOD), "", json.dumps(change(ops=[UPDATE])), ""])


@pytest.mark.parametrize("write", [bytes, gzip.compress])
def test_one_program_a_line_or_a_file(tmp_path: Path, write: Any) -> None:
    ending = ".gz" if write is gzip.compress else ""
    lines, whole = tmp_path / f"p.jsonl{ending}", tmp_path / f"p.json{ending}"
    lines.write_bytes(write(LINES.encode()))
    assert [len(program.ops) for program in load_programs(lines)] == [2, 1]
    whole.write_bytes(write(json.dumps(GOOD, indent=1).encode()))
    assert load_programs(whole) == [parse_program(GOOD, "here")]


@pytest.mark.parametrize("blank", ["\u2028", "\x85", "\u2029"])
def test_a_line_ends_at_a_newline_and_nowhere_else(tmp_path: Path, blank: str) -> None:
    """JSON strings may hold these as they are, though str.splitlines splits there."""
    path = tmp_path / "p.jsonl"
    line = json.dumps(change(meta={"note": f"one{blank}two"}), ensure_ascii=False)
    path.write_text(f"{line}\r\n{line}\n", newline="")
    assert len(load_programs(path)) == 2


# --- what is refused; more in `hostile.programs` ----------------------------------------


@pytest.mark.parametrize("name", ["scope", "variant"])
def test_an_index_is_not_negative(name: str) -> None:
    with pytest.raises(UsageError, match=f"config: {name}: -1 is less than the minimum"):
        parse_program(with_config(**{name: -1}), "here")


def test_deep_nesting_inside_a_field_is_refused_or_free() -> None:
    """In `meta` anything may stand, as long as Python can hold it."""
    deep: Any = 0
    for _ in range(400):
        deep = [deep]
    assert parse_program(change(meta={"deep": deep}), "here").meta["deep"] == deep
    with pytest.raises(UsageError, match="heads"):
        parse_program(with_config(heads=deep), "here")


def test_a_folder_is_not_a_program_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder, not a program file"):
        load_programs(tmp_path)


# --- what is skipped --------------------------------------------------------------------


def test_an_operation_that_is_illegal_is_skipped_and_burns_its_tags() -> None:
    program = make(
        {"op": "restore", "snapshot": "s0", "target": 0},
        {"op": "clone", "into": "a"},
        {"op": "split", "snapshot": "s0", "at": 1, "parent": "x", "child": "x"},
        {"op": "close", "snapshot": "s0"},
        {"op": "take", "into": ["x", "x"]},
        UPDATE,
    )
    answers = trace(program)
    assert [list(answer) for answer in answers[:5]] == [["skipped"]] * 5
    assert answers[5] == {"offset": 2, "visible": [[0], [0, 1]]}


def test_a_usage_error_is_an_answer_and_changes_nothing() -> None:
    """Unlike what cannot be asked at all, a backend must refuse it."""
    program = make(
        update(4),
        {"op": "snapshot", "from": 0, "into": "s0"},
        {"op": "snapshot", "from": 3, "into": "s1"},
        {"op": "merge", "parent": "s0", "child": "s1", "into": "s2"},
        {"op": "prepare", "offsets": [6, 5]},
        {"op": "prepare", "offsets": [3, 5]},
        {"op": "prepare", "offsets": [5]},
        {"op": "prepare", "offsets": [6]},
        {"op": "restore", "snapshot": "s0", "target": 4},
    )
    answers = trace(program)
    assert answers[3:8] == [{"error": "usage"}] * 3 + [{}, {"error": "usage"}]
    assert answers[8] == {"ok": True, "offset": 4}


def test_groups_of_a_config_are_put_in_words() -> None:
    groups = [{"type": "chunked", "block": 2, "width": 3, "layers": 1}]
    program = make(contract="paged", kind="paged-chunked", groups=groups, blocks=6)
    words = "groups chunked block 2 width 3 layers 1, blocks 6"
    assert describe_config(program) == words
