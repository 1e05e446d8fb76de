"""Program files that were made to harm, or came to harm."""

from __future__ import annotations

import gzip
import json
from typing import Any

from lockstep.harness.core.document import MAX_BYTES
from tests.harness.hostile.makers import (
    DEEP,
    ESCAPES,
    GOOD,
    TEXT,
    Cases,
    Make,
    as_file,
    as_gzip,
    change,
    replaced,
    with_config,
    with_length,
    with_op,
)

PREPARE = {"op": "prepare", "offsets": [1, "2"]}
TAKE = {"op": "take", "into": "s0"}
LONG = {"op": "update", "length": 1024}
WIDE = {"heads": 64, "key_dim": 1024, "value_dim": 1024}


def with_trim(**fields: Any) -> Make:
    return change(ops=[{"op": "trim", **fields}])


def forward(positions: list[int]) -> Make:
    op = {"op": "forward", "positions": positions, "sequences": [0]}
    return change(contract="unified", config={"kind": "causal"}, ops=[op])


def with_layer(layer: str) -> Make:
    config = {"kind": "trie", "layers": [layer]}
    return change(contract="prefix", config=config, ops=[])


PROGRAMS: Cases = {
    "empty": (as_file(""), "is not JSON"),
    "byte order mark": (as_file("\ufeff" + TEXT), "is not JSON"),
    "overlong UTF-8": (as_file(b'{"\xc0\xaf": 1}'), "is not UTF-8 text"),
    "a raw zero in a string": (as_file('{"format": "\0"}'), "is not JSON"),
    "cut off": (as_file(TEXT[:-5]), "the file may be cut off"),
    "two documents": (as_file(TEXT + TEXT), "is not JSON: Extra data"),
    "Python": (as_file(str(dict(GOOD))), "is not JSON"),
    "NaN": (with_length("NaN"), "NaN is not a JSON number"),
    "beyond all floats": (with_length("1e999"), "1e999 is not a JSON number"),
    "many digits": (with_length("9" * 100_000), "a number has too many digits"),
    "many digits behind the point": (with_length("0." + "1" * 1_000_000), "is not of"),
    "beyond 64 bits": (with_length(str(1 << 70)), "is greater than the maximum of 2048"),
    "less than none": (with_length("-1"), "length: -1 is less than the minimum of 1"),
    "half a token": (with_length("1.5"), "(update): length: 1.5 is not of type"),
    "true tokens": (with_length("true"), "True is not of type 'integer'"),
    "deep lists": (as_file(lambda: "[" * DEEP), "is nested too deeply"),
    "deep in an operation": (with_length("[" * DEEP + "]" * DEEP), "is nested too"),
    "a name twice, escaped": (as_file('{"\\u006fps": [], ' + TEXT[1:]), '"ops" twice'),
    "very many names, one twice": (
        as_file(lambda: "{" + "".join(f'"{n}":1,' for n in range(200_000)) + '"0":1}'),
        'an object has "0" twice',
    ),
    "a list": (as_file("[]"), "a program must be an object, not a list"),
    "no format": (as_file("{}"), 'p.json: "format" is null; this version reads'),
    "another format": (change(format="lockstep/2"), '"lockstep/2"; this version reads'),
    "a config that is a list": (change(config=[]), '"config" must be an object'),
    "an unknown kind": (with_config(kind="kvv"), "config: kind: 'kvv' is not one of"),
    "a field that is a lone surrogate": (
        replaced('"kind"', '"\\udfff": 1, "kind"'),
        "field",
    ),
    "a dtype with line breaks": (with_config(dtype="a\nb\r\u2028c"), "is not one of"),
    "a field with escape sequences": (with_config(**{ESCAPES: 1}), "unknown field"),
    "a field of a megabyte": (with_config(**{"x" * (1 << 20): 1}), "unknown field"),
    "too many heads": (with_config(heads=65), "config: heads: 65 is greater than the"),
    "a window in a kv cache": (with_config(window=4), "fields of rotating caches only"),
    "too large a keep": (
        with_config(kind="rotating", window=2, keep=2),
        "keep must be less than the window",
    ),
    "operations that are an object": (change(ops={}), '"ops" must be a list'),
    "too many operations": (
        change(ops=[{"op": "size"}] * 10_001),
        "10001 operations; at most",
    ),
    "an operation without a name": (
        change(ops=[{}]),
        "ops[0]: operation: is missing; give one",
    ),
    "a cache that is a path": (with_op(cache="../../etc/passwd"), "does not match"),
    "a cache with a line break": (with_op(cache="a\nb"), "does not match"),
    "a cache that ends a line": (with_op(cache="a\n"), "does not match"),
    "a cache with a long name": (with_op(cache="x" * 100_000), "cache: 'xxx"),
    "too many tokens": (change(ops=[LONG] * 9), "at most"),
    "too many numbers": (
        change(config={"kind": "kv", **WIDE}, ops=[LONG]),
        "K and V would",
    ),
    "no contract": (
        change(contract=None),
        "p.json: contract: is missing; give one of layer",
    ),
    "a wrong name": (with_config(head=2), 'unknown field "head"; did you mean heads'),
    "no values": (
        with_config(kind="state", value_dim=0),
        "value_dim of a state must be at least 1",
    ),
    "few numbers for many tokens": (
        change(config={"kind": "kv", "key_dim": 2}, ops=[LONG]),
        "at most 256",
    ),
    "no count": (with_trim(), 'ops[0] (trim): the field "count" is missing'),
    "a short operation": (change(ops=[{"op": "snap"}]), "did you mean snapshot?"),
    "an offset in quotes": (change(ops=[PREPARE]), "offsets[1]: '2' is not of type"),
    "a name in the place of names": (change(ops=[TAKE]), "into: 's0' is not of type"),
    "a gzip with broken bytes": (
        as_gzip(TEXT.encode() * 50, lambda zip: zip[:30] + b"####" + zip[34:]),
        "cannot be read",
    ),
    "a trace in a trace": (
        as_file(json.dumps({"program": {"program": {"program": GOOD}}})),
        "format",
    ),
    "very many positions": (forward([0] * 100_000), "has 100000 items"),
    "a layer with escape sequences": (with_layer(ESCAPES), "layers"),
    "one byte too many": (as_file(lambda: " " * (MAX_BYTES + 1)), "is too large"),
    "very many empty lists": (
        as_file(lambda: "[" + "[]," * 2_700_000 + "[]]"),
        "an object",
    ),
    "a bomb": (as_gzip(b" " * (64 << 20)), "is too large; at most 8 MiB"),
    "a bomb of lines": (
        as_file(lambda: gzip.compress(b"\n" * (64 << 20)), "p.jsonl.gz"),
        "is too large",
    ),
    "very many gzips in one": (as_gzip(b"", lambda one: one * 100_000), "is not JSON"),
    "a gzip that is none": (as_file(TEXT, "p.json.gz"), "Not a gzipped file"),
    "a gzip with a wrong sum": (
        as_gzip(TEXT.encode(), lambda zip: zip[:-8] + bytes(8)),
        "CRC check",
    ),
    "millions of empty lines": (as_file(lambda: "\n" * 4_000_000, "p.jsonl"), "holds no"),
    "a line that is none": (as_file(f"{TEXT}\n{{\n", "p.jsonl"), "p.jsonl:2: is not"),
}
