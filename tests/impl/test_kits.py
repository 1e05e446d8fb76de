"""The kits for drivers, by their examples: they agree with the reference by strict
messages, answer what they cannot read with an error, and say what is not written yet."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.backends.driver.decoding import parse
from lockstep.harness.backends.driver.messages import Refusal
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.execution.executor import run
from lockstep.harness.workers.registry import load
from tests.impl.kits import CONFIG, KIT, KITS, Kit, draw, start

PROGRAMS = 30
"""Of each kind of an example; a third of them of each kind of `kinds.js`."""

ASKS = Limits(message_seconds=30, strict=True)


@pytest.fixture(params=list(KIT))
def kit(request: pytest.FixtureRequest) -> Kit:
    return KIT[request.param]


def test_the_example_agrees(kit: Kit, tmp_path: Path) -> None:
    backend = load(f"exec:{kit.build(tmp_path / 'kit')}", ASKS)
    assert {*backend.contracts["layer"]} == {"kv", "rotating"}
    assert_agrees(backend)


def assert_agrees(backend: Any, programs: int = PROGRAMS) -> None:
    for kinds in backend.contracts.values():
        assert all(declared.refuses for declared in kinds.values())
    for program in draw(backend, programs):
        divergence = run(program, backend).divergence
        assert divergence is None, (program.to_json(), divergence)


def test_a_cache_of_each_kind_agrees() -> None:
    """By what the documents of the kits and of the protocol say alone."""
    KIT["javascript"].find_compiler()
    backend = load(f"exec:node {KITS / 'javascript' / 'kinds.js'}", ASKS)
    declared = {name: set(kinds) for name, kinds in backend.contracts.items()}
    contracts = {name: rules for name, rules in CONTRACTS.items() if rules.has_arrays}
    assert declared == {name: {*rules.kinds} for name, rules in contracts.items()}
    assert_agrees(backend, PROGRAMS // 3)


def test_it_answers_whatever_it_is_asked(kit: Kit, tmp_path: Path) -> None:
    """With the changes that `Kit` describes."""
    command = kit.build(tmp_path / "kit", *kit.changes)
    with start(command) as ask:
        assert_refuses_what_it_cannot_read(ask)
        declared = ask({"op": "hello", "protocol": 1})["contracts"]["layer"]["kv"]
        assert "size" in declared["operations"]
        cache = ask({"op": "open", "config": CONFIG})["cache"]
        assert_reads(ask, cache)
        assert_refuses_operations(ask, cache)
        assert_keeps_numbers(ask, cache)
        if "save" in declared["operations"]:
            assert_keeps_saved_content(ask, cache)
        assert_numbers_what_it_holds(ask, cache)


def test_a_formatter_leaves_the_kit_as_it_is(kit: Kit) -> None:
    if not kit.format:
        pytest.skip(f"no formatter of {kit.language} is asked")
    name, *arguments = shlex.split(kit.format)
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not on PATH")
    folder = KITS / kit.language
    done = subprocess.run([name, *arguments], cwd=folder, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_kit_names_its_licence(kit: Kit) -> None:
    for name in kit.files:
        head = (KITS / kit.language / name).read_text().splitlines()[:4]
        assert any("SPDX-License-Identifier: MIT" in line for line in head), name
        assert any("Copyright (c) 2026 the Lockstep authors" in line for line in head)


HOSTILE = [
    *("", "?", "[]", "17", "null", '"text', "{", "{}", '{"id": 1', '{"id": 1}}', "nul"),
    *('{"id": 1,, "op": "hello"}', '{"id": "1", "op": "hello"}', '{"id": inf}', "\\"),
    *('{"op": "hello"}', '{"id" 1}', "[" * 100_000, '{"a":' * 100_000, '{"id": 0x1}'),
    '{"id": 1, "op": "hello"} {"id": 2, "op": "hello"}',
    *('{"id": 1, "op": "\\x"}', '{"id": 1, "op": "\\u12', '{"id": 1, "op": "\\'),
    *('{"id": 1, "op": "\\ud800"}', '{"id": 1, "op": "\\ud800\\u0041"}'),
    '{"id": 1, "op": "\\u0000"}',
]


def assert_refuses_what_it_cannot_read(ask: Any) -> None:
    for line in HOSTILE:
        answer = ask(line)
        assert answer.pop("id") in (0, 1), line
        assert answer.pop("error") == "failed", line
        assert answer.pop("message") and not answer, line


def array(shape: Any, data: Any) -> dict[str, Any]:
    return {"shape": shape, "data": data}


def assert_reads(ask: Any, cache: int) -> None:
    """By `echo`, which puts a text under the name of each object."""
    objects = [{"name": "a"}, {"name": "b/"}]
    message = {"op": "echo", "cache": cache, "objects": objects, "é😀\n": "x"}
    answer = ask({**message, "texts": ['\\"', None]})
    assert answer.items() >= {"a": '\\"', "b/": "none", "read": "x"}.items()
    for wrong in ({"objects": [1]}, {"objects": {}}, {"texts": [1]}, {"texts": "x"}):
        assert ask({**message, "texts": [], **wrong})["error"] == "failed", wrong
    for token in (1.5, None, "a", True, [], {}, 1 << 53, 1e300):
        assert ask({**message, "tokens": [1, token]})["error"] == "usage", token
    line = '{"id": 9, "op": "trim", "cache": %d.0, "count": 0e0}'
    assert ask(line % cache).items() >= {"id": 9, "trimmed": 0}.items()


K, V = array([1, 2, 1, 2], [1, 2, 3, 4]), array([1, 2, 1, 1], [1, 2])
HUGE = array([1 << 50, 4], [1, 2, 3, 4])


def assert_refuses_operations(ask: Any, cache: int) -> None:
    """By the right error, as the schema has it; and nothing changes."""
    here = {"cache": cache}
    update = {"op": "update", "rows": 1, "keys": K, "values": V, **here}
    for message, error in (
        ({"op": "open", "config": {"kind": "no-such"}}, "missing"),
        ({"op": "open", "config": {"kind": "kv"}}, "failed"),
        ({"op": "open"}, "failed"),
        ({"op": "open", "config": 3}, "failed"),
        ({"op": "open", "config": [1]}, "failed"),
        ({**update, "keys": [1]}, "failed"),
        ({"op": "size", **here}, "missing"),
        ({"op": "no-such", **here}, "missing"),
        ({"op": "forward", **here}, "missing"),
        ({"op": "view"}, "failed"),
        ({"op": "view", "cache": 99}, "failed"),
        ({"op": "view", "cache": -1}, "failed"),
        ({"op": "view", "cache": "0"}, "failed"),
        ({"op": 3, **here}, "failed"),
        ({"op": "drop", "caches": [7]}, "failed"),
        ({"op": "drop", "snapshots": 7}, "failed"),
        ({"op": "trim", "count": -1, **here}, "usage"),
        ({"op": "trim", "count": 0.5, **here}, "failed"),
        ({"op": "trim", "count": None, **here}, "failed"),
        ({"op": "restore", "snapshot": 5, "target": 0, **here}, "failed"),
        (update | {"keys": None}, "failed"),
        (update | {"keys": {"shape": [1]}}, "failed"),
        (update | {"keys": {"shape": "1", "data": []}}, "failed"),
        (update | {"keys": array([1, 2, 1, 2], [1, 2, 3])}, "failed"),
        (update | {"keys": array([1, 2, 1, 2], [1, 2, 3, "four"])}, "failed"),
        (update | {"keys": array([1, 2, -1, -2], [1, 2, 3, 4])}, "failed"),
        (update | {"keys": HUGE}, "failed"),
        (update | {"values": array([1, 2, 1 << 40, 0], [])}, "failed"),
        (update | {"rows": -1}, "usage"),
        (update | {"rows": 0}, "usage"),
        (update | {"keys": array([1, 2, 2, 1], [1, 2, 3, 4])}, "usage"),
        (update | {"values": array([1, 2, 2, 1], [1, 2, 3, 4])}, "usage"),
    ):
        answer = ask(message)
        parse(answer, Refusal, strict=True)
        assert answer["error"] == error, (message, answer)
    nothing = {"keys": None, "values": None}
    assert ask({"op": "view", **here}).items() >= nothing.items()


def assert_keeps_numbers(ask: Any, cache: int) -> None:
    """Also those that JSON does not have, in all forms that a harness may write."""
    message = {"id": 500, "op": "update", "cache": cache, "rows": 2}
    numbers = [0.1, -0.0, 3.4028234663852886e38, 1e-45, None, "inf", "-inf", "nan"]
    keys, values = array([1, 2, 2, 2], numbers), array([1, 2, 2, 1], [1, 2, 3, 99])
    line = json.dumps({**message, "keys": keys, "values": values})
    answer = ask(line.replace("99", "-1e999"))
    parsed = list(map(to_bits, answer["keys"]["data"]))
    assert parsed == list(map(to_bits, numbers))
    values = [1, 2, 3, -math.inf]
    assert list(map(to_bits, answer["values"]["data"])) == list(map(to_bits, values))
    assert answer["keys"]["shape"] == [1, 2, 2, 2]
    assert answer["mask"] == array([2, 2], [1, 0, 1, 1])


def to_bits(number: Any) -> Any:
    """What a number is known by as float32. NaN is one."""
    is_nan = number is None or number == "nan"
    return "nan" if is_nan else np.float32(number).tobytes()


def assert_keeps_saved_content(ask: Any, cache: int) -> None:
    """Until it is dropped."""
    here = {"cache": cache}
    content = ask({"op": "view", **here})["keys"]
    saved = ask({"op": "save", **here})["saved"]
    assert ask({"op": "trim", "count": 1, **here})["offset"] == 1
    ask({"op": "load", "saved": saved, **here})
    assert ask({"op": "view", **here})["keys"] == content
    ask({"op": "drop", "saved": [saved]})
    assert ask({"op": "load", "saved": saved, **here})["error"] == "failed"


def assert_numbers_what_it_holds(ask: Any, cache: int) -> None:
    """A number is free again after `drop` and `close`, and content is a copy."""
    here = {"cache": cache}
    kept = ask({"op": "snapshot", "begin": 1, **here})["snapshot"]
    assert kept == {"number": 0, "begin": 1, "end": 2}
    assert ask({"op": "snapshot", "begin": 2, **here})["snapshot"] is None
    copy = ask({"op": "clone", **here})["cache"]
    assert copy not in (None, cache)
    assert ask({"op": "free", **here})["offset"] == 0
    assert ask({"op": "trim", "cache": copy, "count": 1})["offset"] == 1
    restored = ask({"op": "restore", "cache": copy, "snapshot": 0, "target": 2})
    assert (restored["ok"], restored["offset"]) == (True, 2)
    ask({"op": "close", "cache": copy, "snapshot": 0})
    ask({"op": "drop", "caches": [cache, copy]})
    assert ask({"op": "view", **here})["error"] == "failed"
    assert ask({"op": "open", "config": CONFIG})["cache"] == 0
