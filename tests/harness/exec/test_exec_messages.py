"""Arrays and messages of drivers; every kind through the protocol."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from lockstep.harness.backends.driver import schema
from lockstep.harness.backends.driver.arrays import (
    PromisedMask,
    Tensor,
    WireArrays,
    parse_array,
    parse_mask,
)
from lockstep.harness.backends.driver.client import decode, encode
from lockstep.harness.backends.driver.fields import Malformed
from lockstep.harness.backends.driver.limits import Limits
from lockstep.harness.execution.executor import run
from lockstep.harness.programs.generate import FRONTS
from lockstep.harness.programs.generate.drawer import Drawer
from lockstep.harness.programs.program import Program
from lockstep.harness.workers.registry import load

RELAY = (
    f"exec:{sys.executable} -m tests.harness.exec.relay lockstep.impl.torch.backend:cpu"
)


def test_numbers_go_over_the_wire_to_the_last_bit() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 5000, dtype=np.uint32)
    floats = bits.view(np.float32)
    floats = np.append(floats[np.isfinite(floats)], np.float32([0.0, 0.5, 0.5]))
    for part in (floats, floats[:9], floats[-3:], floats[::-1]):
        line = encode(1, "put", {"layer": 0, "keys": Tensor(part, "float32")})
        message = json.loads(line)
        got = parse_array(message["keys"], "keys", "float32")
        assert message["layer"] == 0
        assert (got.content.view(np.uint32) == part.view(np.uint32)).all()


def test_what_json_has_not() -> None:
    line = b'{"shape": [2, 2], "data": [null, 1e999, -1e999, 1e39]}'
    content = parse_array(decode(line), "mask", "float32").content
    assert content.dtype == np.float32
    assert math.isnan(content[0, 0])
    assert content.ravel()[1:].tolist() == [math.inf, -math.inf, math.inf]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1.0], "is [1.0], not an array with shape and data"),
        ({"data": [1.0]}, "has shape null"),
        ({"shape": [1], "data": [[1.0]]}, "place 0, is [1.0], not a number"),
        ({"shape": [1], "data": ["1.0"]}, 'place 0, is "1.0", not a number'),
        ({"shape": [1], "data": [True]}, "place 0, is true, not a number"),
        ({"shape": [1.0], "data": [1.0]}, "has shape [1.0]"),
        ({"shape": [-1], "data": [1.0]}, "has shape [-1]"),
        ({"shape": [2], "data": [1.0]}, "has 1 numbers, but its shape [2] is for 2"),
        ({"shape": [1] * 9, "data": [1.0]}, "has shape a list of 9"),
        ({"shape": [1], "data": [10**400]}, "has a whole number of over 300 digits"),
        ({"shape": [1], "data": [1.0], "dtype": "double"}, 'has dtype "double"'),
        ({"shape": [1], "data": [2], "dtype": "bool"}, "place 0, is 2, not 0 or 1"),
        ({"shape": [1], "data": [0.0], "dtype": "bool"}, "place 0, is 0.0, not 0 or 1"),
    ],
)
def test_an_array_that_is_none(value: Any, words: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse_array(value, "keys", "float32")
    assert f"keys {words}" in str(caught.value) or f"keys, {words}" in str(caught.value)


def test_masks_in_few_words() -> None:
    promised = PromisedMask(length=2, rows=3)
    every = parse_mask(None, promised, 3, "bool", "lower-right").content
    assert every.all() and every.shape == (3, 3)
    lower = parse_mask("causal", promised, 3, "bool", "lower-right").content
    upper = parse_mask("causal", promised, 3, "bool", "upper-left").content
    assert lower.astype(int).tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert upper.astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_attention_is_the_softmax_of_what_is_seen() -> None:
    keys = Tensor(np.zeros((1, 1, 3, 2), np.float32), "float32")
    values = np.array([1.0, 3.0, np.nan], np.float32).reshape(1, 1, 3, 1)
    mask = Tensor(np.array([[0.0, 0.0, -np.inf]], np.float32), "float32")
    queries = Tensor(np.ones((1, 1, 1, 2), np.float32), "float32")
    got = WireArrays().attend(queries, keys, Tensor(values, "float32"), mask)
    assert got.content.item() == 2.0


# --- every kind, through the protocol ---------------------------------------------------


def draw(backend: Any, contract: str, kind: str, count: int) -> Iterator[Program]:
    programs: list[Program] = []
    declared = backend.contracts[contract][kind]
    drawer = Drawer(contract, kind, declared, backend.dtypes, [])
    FRONTS["plain"](count, 5, drawer.draw, programs.append)
    yield from programs


@pytest.fixture(scope="module")
def relay() -> Any:
    if find_spec("torch") is None:
        pytest.skip("there is no torch, and the relay has our caches on it behind it")
    return load(RELAY, Limits(strict=True))


def test_nothing_of_a_backend_is_lost_on_the_way(relay: Any) -> None:
    """All kinds of all contracts, by strict messages, agree as they do without."""
    contracts = relay.contracts
    kinds = [(each, kind) for each in contracts for kind in contracts[each]]
    assert len(kinds) == 13
    for contract, kind in kinds:
        for program in draw(relay, contract, kind, 6):
            result = run(program, relay)
            assert result.divergence is None, (program, result.divergence)


# --- schemas ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", schema.NAMES)
def test_the_schemas_are_schemas(name: str) -> None:
    document = schema.load(name)
    Draft202012Validator.check_schema(document)
    assert document["$id"] == f"{name}.json"


def test_every_message_has_a_request_and_an_answer() -> None:
    for name in schema.NAMES[1:]:
        names = list(schema.load(name)["$defs"])
        requests = [each.removesuffix(".request") for each in names[::2]]
        assert names[1::2] == [f"{each}.answer" for each in requests]


def test_the_numbers_of_an_array_are_looked_at_though_all_at_once() -> None:
    array = {"shape": [2], "data": [0.5, "x"]}
    answer = {"id": 1, "conv": array, "delta": array}
    with pytest.raises(Malformed, match="'x' is not of type 'number'"):
        schema.check_answer("layer", "read", answer)
    array["data"] = [0.5, None]
    schema.check_answer("layer", "read", answer)
    with pytest.raises(Malformed, match="5 is not of type 'array'"):
        schema.check_answer(
            "layer", "read", {**answer, "conv": {"shape": [1], "data": 5}}
        )
