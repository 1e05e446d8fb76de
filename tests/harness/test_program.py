"""Program files: what is read, what is written, and what is refused, with its place."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.core.document import MAX_BYTES, parse_json
from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.program import Program, load_programs, parse_program
from lockstep.harness.programs.walk import trace

Make = Callable[..., Program]

UPDATE = {"op": "update", "length": 2}
GOOD: dict[str, Any] = {
    "format": "lockstep/1",
    "contract": "layer",
    "config": {"kind": "kv"},
    "ops": [UPDATE, {"op": "trim", "count": 1}],
}


def change(**fields: Any) -> dict[str, Any]:
    return {**GOOD, **fields}


def with_op(**op: Any) -> dict[str, Any]:
    return change(ops=[UPDATE, op])


def with_config(**config: Any) -> dict[str, Any]:
    return change(config={"kind": "kv", **config})


# --- what is read -----------------------------------------------------------------------


def test_missing_fields_take_their_defaults() -> None:
    program = parse_program(GOOD, "here")
    assert program.config == {
        "kind": "kv",
        "window": None,
        "keep": 0,
        "chunk": None,
        "step": 256,
        "layers": 1,
        "heads": 1,
        "key_dim": 4,
        "value_dim": 4,
        "conv_width": 4,
        "dtype": "float32",
        "cache_padding": 1,
        "mask_padding": 1,
        "mask_form": "any",
        "shift": True,
    }
    assert program.ops[0] == {"op": "update", "length": 2, "cache": "a"}
    assert program.meta == {}
    assert program.count_tokens() == 2


def test_a_round_trip_changes_nothing() -> None:
    document = change(
        config={"kind": "rotating", "window": 3, "keep": 1, "dtype": "bfloat16"},
        ops=[
            {"op": "update", "length": 3, "cache": "b"},
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


def test_a_whole_float_is_an_integer() -> None:
    program = parse_program(with_op(op="trim", count=2.0), "here")
    assert repr(program.ops[1]["count"]) == "2"


def test_a_trace_is_read_as_the_program_in_it() -> None:
    document = {"format": "lockstep-trace/1", "program": GOOD, "expected": []}
    assert parse_program(document, "here") == parse_program(GOOD, "there")


LINES = "\n".join([json.dumps(GOOD), "", json.dumps(change(ops=[UPDATE])), ""])


@pytest.mark.parametrize("name", ["p.jsonl", "p.jsonl.gz"])
def test_one_program_a_line(tmp_path: Path, name: str) -> None:
    write = gzip.compress if name.endswith(".gz") else bytes
    (tmp_path / name).write_bytes(write(LINES.encode()))
    assert [len(program.ops) for program in load_programs(tmp_path / name)] == [2, 1]


@pytest.mark.parametrize("name", ["p.json", "p.json.gz"])
def test_one_program_a_file(tmp_path: Path, name: str) -> None:
    write = gzip.compress if name.endswith(".gz") else bytes
    (tmp_path / name).write_bytes(write(json.dumps(GOOD, indent=1).encode()))
    assert load_programs(tmp_path / name) == [parse_program(GOOD, "here")]


@pytest.mark.parametrize("blank", ["\u2028", "\x85", "\u2029"])
def test_a_line_ends_at_a_newline_and_nowhere_else(tmp_path: Path, blank: str) -> None:
    """JSON strings may hold these as they are, though str.splitlines splits there."""
    path = tmp_path / "p.jsonl"
    line = json.dumps(change(meta={"note": f"one{blank}two"}), ensure_ascii=False)
    path.write_text(f"{line}\r\n{line}\n", newline="")
    assert len(load_programs(path)) == 2


# --- what is refused: documents ---------------------------------------------------------

TOO_MANY = [{"op": "free"}] * 10_001
TOO_LONG = [{"op": "update", "length": 1024}] * 5


@pytest.mark.parametrize(
    ("document", "place", "words"),
    [
        ([GOOD], "here", "a program is an object, this is a list"),
        (None, "here", "a program is an object"),
        (7, "here", "this is a number"),
        (change(format="lockstep/2"), "here", '"lockstep/2"; this version reads "lockst'),
        ({"contract": "layer"}, "here", '"format" is null'),
        (change(contract="layers"), "here: contract", 'unknown "layers"; did you mean l'),
        (change(contract=None), "here: contract", "missing; one of layer"),
        (change(contract=["layer"]), "here: contract", 'unknown ["layer"]'),
        (change(config=None), "here", '"config" must be an object, not missing'),
        (change(config=[]), "here", '"config" must be an object, not a list'),
        (change(config={}), "here: config", 'the field "kind" is missing'),
        (with_config(kind="kvv"), "here: config: kind", "'kvv' is not one of ['kv',"),
        (with_config(head=2), "here: config", 'unknown field "head"; did you mean heads'),
        (with_config(heads=0), "here: config: heads", "0 is less than the minimum of 1"),
        (with_config(heads=65), "here: config: heads", "65 is greater than the maximum"),
        (with_config(heads=True), "here: config: heads", "True is not of type 'integer'"),
        (with_config(heads="2"), "here: config: heads", "'2' is not of type 'integer'"),
        (with_config(dtype="float64"), "here: config: dtype", "'float64' is not one of"),
        (with_config(kind="rotating"), "here: config", "needs a window"),
        (with_config(window=4), "here: config", "window and keep belong to rotating"),
        (
            with_config(kind="rotating", window=2, keep=2),
            "here: config",
            "keep 2 leaves nothing to rotate",
        ),
        (with_config(kind="state", value_dim=0), "here: config", "a value_dim of at lea"),
        (change(ops=None), "here", '"ops" must be a list, not missing'),
        (change(ops={}), "here", '"ops" must be a list, not an object'),
        (change(ops=TOO_MANY), "here", "10001 operations; a program may have 10000"),
        (change(ops=TOO_LONG), "here", "writes 5120 tokens; with these dimensions at mo"),
        (
            change(config={"kind": "kv", "key_dim": 2}, ops=TOO_LONG[:1]),
            "here",
            "writes 1024 tokens; with these dimensions at most 256",
        ),
        (
            change(
                config={"kind": "kv", "heads": 64, "key_dim": 256, "value_dim": 256},
                ops=TOO_LONG[:4],
            ),
            "here",
            "at most 16777216",
        ),
        (change(ops=[UPDATE, 3]), "here: ops[1]", "an operation is an object, not a num"),
        (change(ops=["update"]), "here: ops[0]", "not a string"),
        (with_op(op="updaet"), "here: ops[1]: operation", "did you mean update?"),
        (with_op(op="snap"), "here: ops[1]: operation", "did you mean snapshot?"),
        (with_op(length=1), "here: ops[1]: operation", "missing; one of update,"),
        (with_op(op={"a": 1}), "here: ops[1]: operation", 'unknown {"a": 1}'),
        (with_op(op="trim"), "here: ops[1] (trim)", 'the field "count" is missing'),
        (
            with_op(op="trim", cont=1),
            "here: ops[1] (trim)",
            'unknown field "cont"; did you mean count',
        ),
        (
            with_op(op="update", length=-1),
            "here: ops[1] (update): length",
            "-1 is less than the minimum of 1",
        ),
        (
            with_op(op="update", length=10**30),
            "here: ops[1] (update): length",
            "is greater than the maximum of 1024",
        ),
        (
            with_op(op="update", length=1.5),
            "here: ops[1] (update): length",
            "1.5 is not of type 'integer'",
        ),
        (
            with_op(op="trim", count=float("inf")),
            "here: ops[1] (trim): count",
            "inf is not of type 'integer'",
        ),
        (
            with_op(op="free", cache="../../x"),
            "here: ops[1] (free): cache",
            "does not match",
        ),
        (with_op(op="free", cache=""), "here: ops[1] (free): cache", "does not match"),
        (with_op(op="free", cache=None), "here: ops[1] (free): cache", "not of type"),
        (
            with_op(op="prepare", offsets=[1, "2"]),
            "here: ops[1] (prepare): offsets[1]",
            "'2' is not of type 'integer'",
        ),
        (
            with_op(op="take", into="s0"),
            "here: ops[1] (take): into",
            "'s0' is not of type 'array'",
        ),
    ],
)
def test_a_bad_document_is_refused(document: Any, place: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_program(document, "here")
    message = str(caught.value)
    assert message.startswith(f"{place}: ")
    assert words in message
    assert len(message) < 400
    assert "\n" not in message


@pytest.mark.parametrize("name", ["a\n", "b\nc"])
def test_a_name_has_no_newline(name: str) -> None:
    with pytest.raises(UsageError, match="ops"):
        parse_program(with_op(op="free", cache=name), "here")


def test_a_huge_value_is_shortened_in_the_message() -> None:
    with pytest.raises(UsageError) as caught:
        parse_program(with_op(op="free", cache="x" * 100_000), "here")
    assert len(str(caught.value)) < 400


# --- what is refused: text --------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON: Expecting value, line 1 column 1"),
        ("forward 1 2 3", "is not JSON: Expecting value"),
        (json.dumps(GOOD)[:-9], "the file may be cut off"),
        (json.dumps(GOOD) + "x", "is not JSON: Extra data"),
        ('{"format": "lockstep/1", "config": {"heads": NaN}}', "NaN is not a number of"),
        ("[Infinity]", "Infinity is not a number of JSON"),
        ("[" * 100_000, "is nested too deeply to be a program"),
        ('{"a":' * 100_000, "is nested too deeply to be a program"),
        ("\ufeff{}", "is not JSON"),
        ("9" * 10_000, "is not JSON"),
    ],
)
def test_bad_text_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_json(text, "here")
    assert str(caught.value).startswith("here: ")
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_number_beyond_all_floats_is_refused() -> None:
    text = json.dumps(with_op(op="trim", count=777)).replace("777", "1e999")
    with pytest.raises(UsageError, match="1e999 is not a number of JSON"):
        parse_program(parse_json(text, "here"), "here")


def test_deep_nesting_inside_a_field_is_refused_or_free() -> None:
    """In `meta` anything may stand, as long as Python can hold it."""
    deep: Any = 0
    for _ in range(400):
        deep = [deep]
    assert parse_program(change(meta={"deep": deep}), "here").meta["deep"] == deep
    with pytest.raises(UsageError, match="heads"):
        parse_program(with_config(heads=deep), "here")


# --- what is refused: files -------------------------------------------------------------

BOMB = gzip.compress(b" " * (MAX_BYTES + 1))
WHOLE = gzip.compress(json.dumps(GOOD).encode() * 50)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.json", b"\xff\xfe{}", "is not UTF-8 text"),
        ("p.json", b" " * (MAX_BYTES + 1), "is too large; at most 8 MiB"),
        ("p.json.gz", b"no gzip", "cannot be read: Not a gzipped file"),
        ("p.json.gz", WHOLE[:-20], "cannot be read"),
        ("p.json.gz", WHOLE[:30] + b"####" + WHOLE[34:], "cannot be read"),
        ("p.json.gz", b"", "is not JSON"),
        ("p.json.gz", BOMB, "is too large; at most 8 MiB"),
        ("p.jsonl.gz", BOMB, "is too large"),
        ("p.json", b"\x00\x00", "is not JSON"),
    ],
)
def test_a_bad_file_is_refused(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_programs(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)


def test_the_bomb_is_small() -> None:
    assert len(BOMB) < 20_000


def test_the_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{{\n")
    with pytest.raises(UsageError) as caught:
        load_programs(path)
    assert str(caught.value).startswith(f"{path}:3: is not JSON")


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        load_programs(tmp_path / "nothing.json")
    with pytest.raises(UsageError, match="is a folder, not a program file"):
        load_programs(tmp_path)
    (tmp_path / "p.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot be read"):
        load_programs(tmp_path / "p.json" / "q.json")


# --- what is skipped --------------------------------------------------------------------


def test_an_operation_that_is_illegal_is_skipped_and_burns_its_tags(make: Make) -> None:
    program = make(
        {"op": "restore", "snapshot": "s0", "target": 0},
        {"op": "clone", "into": "a"},
        {"op": "split", "snapshot": "s0", "at": 1, "parent": "x", "child": "x"},
        {"op": "close", "snapshot": "s0"},
        {"op": "take", "into": ["x", "x"]},
        {"op": "update", "length": 2},
    )
    answers = trace(program)
    assert [list(answer) for answer in answers[:5]] == [["skipped"]] * 5
    assert answers[5] == {"offset": 2, "visible": [[0], [0, 1]]}


def test_a_usage_error_is_an_answer_and_changes_nothing(make: Make) -> None:
    """Unlike what cannot be asked at all, a backend must refuse it."""
    program = make(
        {"op": "update", "length": 4},
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


def test_a_seventeenth_cache_is_skipped(make: Make) -> None:
    updates = [
        {"op": "update", "length": 2, "cache": f"c{number}"} for number in range(16)
    ]
    answers = trace(make(*updates, {"op": "update", "length": 1}))
    assert answers[15] == {"skipped": "there are 16 caches already"}
    assert answers[16] == {"offset": 1, "visible": [[32]]}
