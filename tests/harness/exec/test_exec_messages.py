"""Arrays and messages of drivers; every kind through the protocol."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from msgspec import Struct
from referencing import Registry, Resource

from lockstep.harness.backends.driver import schema
from lockstep.harness.backends.driver.client import Limits, encode
from lockstep.harness.backends.driver.decoding import (
    Malformed,
    PromisedMask,
    Tensor,
    WireArrays,
    decode,
    make_mask,
    make_tensor,
    parse,
)
from lockstep.harness.backends.driver.messages import (
    COMMON,
    get_operation,
)
from lockstep.harness.contracts.protocol import make_protocol
from lockstep.harness.execution.executor import run
from lockstep.harness.workers.registry import load
from tests.harness.building import draw_some, iter_changed

PROTOCOL = make_protocol()

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
        got = read_array(message["keys"])
        assert message["layer"] == 0
        assert (got.content.view(np.uint32) == part.view(np.uint32)).all()


def test_what_json_has_not() -> None:
    line = b'{"shape": [2, 2], "data": [null, 1e999, -1e999, 1e39]}'
    content = read_array(decode(line)).content
    assert content.dtype == np.float32
    assert math.isnan(content[0, 0])
    assert content.ravel()[1:].tolist() == [math.inf, -math.inf, math.inf]


def test_what_json_has_not_in_words_that_every_parser_reads() -> None:
    line = b'{"shape": [2, 2], "data": ["nan", "inf", "-inf", null]}'
    content = read_array(decode(line)).content.ravel()
    assert np.isnan(content[[0, 3]]).all()
    assert content[1:3].tolist() == [math.inf, -math.inf]
    mask = parse(
        {"id": 1, "mask": decode(line)},
        PROTOCOL.get_answer("batched", "make_mask.states"),
        strict=True,
    )
    assert mask.mask.data == ["nan", "inf", "-inf", None]  # type: ignore[attr-defined]


def test_infinity_is_written_as_a_text_and_nan_as_null() -> None:
    """A number such as 1e999 stops the parsers of Go and Rust."""
    for _ in range(2):
        array = Tensor(np.array([np.inf, 0.5, -np.inf, np.nan], np.float32), "float32")
        assert json.loads(array.to_json())["data"] == ["inf", 0.5, "-inf", None]


ONE = {"shape": [1], "data": [1.0]}


MALFORMED: tuple[Any, ...] = (
    [1.0],
    {"data": [1.0]},
    {"shape": [1], "data": ["1.0"]},
    {"shape": [1], "data": [[1.0]]},
    {"shape": [1], "data": ["inf"], "dtype": "bool"},
    {"shape": [1], "data": [True]},
    {"shape": [1.0], "data": [1.0]},
    {"shape": [-1], "data": [1.0]},
    {"shape": [2], "data": [1.0]},
    {"shape": [0, 1 << 39, 1 << 39], "data": []},
    {"shape": [1] * 9, "data": [1.0]},
    {"shape": [1], "data": [10**400]},
    {**ONE, "dtype": "double"},
    {**ONE, "data": [2], "dtype": "bool"},
    {**ONE, "data": [0.0], "dtype": "bool"},
)


def test_an_array_that_is_malformed(snapshot: Any) -> None:
    said = []
    for value in MALFORMED:
        with pytest.raises(Malformed) as caught:
            read_array(value)
        said.append(str(caught.value))
    assert said == snapshot


def read_array(value: Any) -> Tensor:
    answer = {"id": 1, "keys": value, "values": None}
    held: Any = parse(answer, PROTOCOL.get_answer("layer", "state"), strict=False)
    return make_tensor(held.keys, "keys", "float32")


def test_masks_in_few_words() -> None:
    promised = PromisedMask(length=2, rows=3)
    every = make_mask(None, promised, 3, "bool", "lower-right").content
    assert every.all() and every.shape == (3, 3)
    lower = make_mask("causal", promised, 3, "bool", "lower-right").content
    upper = make_mask("causal", promised, 3, "bool", "upper-left").content
    assert lower.astype(int).tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert upper.astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_attention_is_the_softmax_of_what_is_seen() -> None:
    keys = Tensor(np.zeros((1, 1, 3, 2), np.float32), "float32")
    values = np.array([1.0, 3.0, np.nan], np.float32).reshape(1, 1, 3, 1)
    mask = Tensor(np.array([[0.0, 0.0, -np.inf]], np.float32), "float32")
    queries = Tensor(np.ones((1, 1, 1, 2), np.float32), "float32")
    got = WireArrays().attend(queries, keys, Tensor(values, "float32"), mask)
    assert got.content.item() == 2.0


def test_attention_takes_masks_in_words() -> None:
    """As a batch returns them: each row of it sees the same columns."""
    keys = Tensor(np.zeros((2, 1, 3, 2), np.float32), "float32")
    content = np.array([[1.0, 3.0, 8.0], [2.0, 4.0, 9.0]], np.float32)
    values = Tensor(content.reshape(2, 1, 3, 1), "float32")
    queries = Tensor(np.ones((2, 1, 2, 2), np.float32), "float32")
    for mask, causal, wanted in (
        (None, "lower-right", [[4, 4], [5, 5]]),
        ("causal", "lower-right", [[2, 4], [3, 5]]),
        ("causal", "upper-left", [[1, 2], [2, 3]]),
    ):
        got = WireArrays(causal).attend(queries, keys, values, mask)
        assert got.content[:, 0, :, 0].tolist() == wanted


# --- every kind, through the protocol ---------------------------------------------------


@pytest.fixture(scope="module")
def relay() -> Any:
    if find_spec("torch") is None:
        pytest.skip("there is no torch, and the relay has our caches on it behind it")
    return load(RELAY, Limits(strict=True))


def test_nothing_of_a_backend_is_lost_on_the_way(relay: Any) -> None:
    """All kinds of all contracts, by strict messages, agree as they do without."""
    contracts = relay.contracts
    kinds = [(each, kind) for each in contracts for kind in contracts[each]]
    assert len(kinds) == 23
    for contract, kind in kinds:
        declared = contracts[contract][kind]
        for program in draw_some(6, contract, kind, declared, 5, relay.dtypes):
            result = run(program, relay)
            assert result.divergence is None, (program, result.divergence)


# --- schemas ----------------------------------------------------------------------------

DOCUMENTS = schema.make_documents(PROTOCOL)
REGISTRY: Registry[Any] = Registry().with_resources(
    (document["$id"], Resource.from_contents(document)) for document in DOCUMENTS.values()
)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_files_are_what_the_messages_say(name: str) -> None:
    text = (schema.FOLDER / f"{name}.json").read_text()
    again = "python -m lockstep.harness.contracts.tables"
    assert json.loads(text) == DOCUMENTS[name], f"run {again}"
    Draft202012Validator.check_schema(DOCUMENTS[name])
    assert len(DOCUMENTS) == len(list(schema.FOLDER.iterdir()))


def make_example(of: Any) -> Any:
    """The least message that a schema allows, every field set."""
    if "required" in of and "properties" not in of:
        return dict.fromkeys(of["required"], "x")
    if "$ref" in of:
        return make_example(DOCUMENTS["common"]["$defs"][of["$ref"].rpartition("/")[2]])
    if "enum" in of:
        return of["enum"][-1]  # an event with an entry
    if "anyOf" in of:
        return make_example(of["anyOf"][0])
    if of.get("type") == "object" and "properties" in of:
        example = {name: make_example(each) for name, each in of["properties"].items()}
        return {**example, **(ONE if "shape" in example else {})}
    if "prefixItems" in of:
        return [make_example(each) for each in of["prefixItems"]]
    if of.get("type") == "array":
        return [make_example(of["items"])] if of.get("items") else [1]
    simple = {"integer": 1, "number": 0.5, "string": "x", "boolean": True}
    return simple.get(str(of.get("type")), {})


def is_read(message: Any, kinds: list[type[Struct]]) -> bool:
    """Whether a strict reader takes it."""
    for kind in kinds:
        with suppress(Malformed):
            parse(message, kind, strict=True)
            return True
    return False


def list_structs() -> Iterator[tuple[str, str, list[type[Struct]]]]:
    """File, name in it, and the structs that it describes."""
    for name, kind in COMMON.items():
        yield "common", name, [kind]
    for contract, own in PROTOCOL.messages.items():
        for operation in dict.fromkeys(map(get_operation, own)):
            variants = [name for name in own if get_operation(name) == operation]
            for end, get in (
                ("request", PROTOCOL.get_request),
                ("answer", PROTOCOL.get_answer),
            ):
                kinds = [get(contract, name) for name in variants]
                yield contract, f"{operation}.{end}", kinds


def test_a_schema_allows_what_is_read_and_nothing_else() -> None:
    """Every message of every contract, and mistakes at each of its places. Contents of
    an array, of a config and of names are beyond a schema."""
    count: Counter[bool] = Counter()
    for contract, name, kinds in list_structs():
        own = {"$ref": f"{contract}.json#/$defs/{name}"}
        validator = Draft202012Validator(own, registry=REGISTRY)
        described = DOCUMENTS[contract]["$defs"][name]
        example = make_example(described)
        if name == "hello.answer":
            kinds_of_layer = {"kv": {"operations": ["update"], "config": {"keep": [0]}}}
            example["contracts"] = {"layer": kinds_of_layer}
        assert validator.is_valid(example) and is_read(example, kinds), (name, example)
        for _, wrong in iter_changed(example, WRONG):
            is_valid = validator.is_valid(wrong)
            later = [wrong.get(field) != example.get(field) for field in CHECKED_LATER]
            if is_valid != is_read(wrong, kinds) and not any(later):
                assert is_valid and any(word in str(wrong) for word in BEYOND), (
                    name,
                    wrong,
                )
            count[is_valid] += 1
    assert min(count[True], count[False]) > 300


WRONG = (None, {"no": "such"}, "2", 1.5, -1, True, [])

BEYOND = ("'shape': []", "'data': []", "'shape': [0]", "'stored', 'entry': None")
"""Rules between fields: an array has as many numbers as its shape says, and only the
event "cleared" has no entry."""

CHECKED_LATER = ("contracts", "config")
"""Fields whose content is checked kind by kind, and as for every backend."""


def test_a_set_has_each_item_once() -> None:
    kind = {"operations": ["update", "update"]}
    parse(kind, COMMON["kind"], strict=False)
    with pytest.raises(Malformed, match="operations has an item twice"):
        parse(kind, COMMON["kind"], strict=True)
