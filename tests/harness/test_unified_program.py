"""Program files of the unified family: what is refused, with which words, and what is
only skipped."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.program import Program, parse_program, trace, why_too_large

FORWARD = {"op": "forward", "positions": [0], "sequences": [0]}


def parse(ops: list[dict[str, Any]], **config: Any) -> Program:
    document = {"format": "lockstep/1", "contract": "unified", "ops": ops}
    return parse_program({**document, "config": {"kind": "causal", **config}}, "here")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"kind": "swa"}, "swa needs a window"),
        ({"kind": "swa-memory", "window": 2}, "swa-memory needs a memory"),
        ({"kind": "chunked"}, "chunked needs a chunk"),
        ({"window": 2}, "window does not belong to causal"),
        ({"slots": 2}, "slots does not belong to causal"),
        ({"checkpoints": 2}, "checkpoints does not belong to causal"),
        (
            {"kind": "swa-memory", "window": 4, "memory": 2},
            "memory 2 is smaller than the window of 4",
        ),
        (
            {"kind": "swa-memory", "window": 0, "memory": 2},
            "memory 2 is smaller than the window of all tokens",
        ),
        ({"kind": "wrapper"}, "a wrapper needs caches"),
        ({"caches": [{"kind": "causal"}]}, "only a wrapper has them"),
        ({"kind": "wrapper", "caches": [{"kind": "wrapper"}]}, "caches[0][kind]"),
        ({"kind": "wrapper", "caches": [{"kind": "swa"}]}, "swa needs a window"),
        ({"kind": "wrapper", "caches": [{"kind": "causal"}] * 5}, "5 items; at most 4"),
        ({"key_dim": 3}, "a key of 3 numbers has no pairs to turn"),
        ({"capacity": 65_536, "heads": 64, "key_dim": 64}, "has room for"),
        (
            {"kind": "recurrent", "sequences": 32, "heads": 64, "key_dim": 1024}
            | {"value_dim": 1024, "layers": 3},
            "has room for",
        ),
        ({"sequences": 0}, "sequences: 0 is less than the minimum of 1"),
    ],
)
def test_a_config_that_breaks_a_rule_is_refused(
    config: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError) as refused:
        parse([FORWARD], **config)
    assert words in str(refused.value)
    assert str(refused.value).startswith("here: config")


@pytest.mark.parametrize(
    "config",
    [
        {"kind": "encoder"},
        {"kind": "recurrent"},
        {"kind": "wrapper", "caches": [{"kind": "causal"}]},
    ],
)
def test_what_cannot_be_saved_is_skipped(config: dict[str, Any]) -> None:
    program = parse([{"op": "save", "into": "x"}, {"op": "load", "from": "x"}], **config)
    answers = trace(program)
    assert answers[0] == {"skipped": f"a {config['kind']} cache is not saved"}
    assert answers[1] == {"skipped": "nothing was saved as x"}


def test_whole_floats_are_ints_however_deep() -> None:
    program = parse(
        [{**FORWARD, "positions": [2.0]}],
        kind="wrapper",
        caches=[{"kind": "causal", "capacity": 4.0}],
    )
    assert repr(program.config["caches"]) == "[{'kind': 'causal', 'capacity': 4}]"
    assert repr(program.ops[0]["positions"]) == "[2]"


def test_no_program_writes_more_tokens_than_its_values_tell_apart() -> None:
    """Tags are read from values, whatever the keys are."""
    ops = [{"op": "forward", "positions": [0] * 4, "sequences": [0] * 4}] * 5
    assert why_too_large(parse(ops, value_dim=2)) is None
    with pytest.raises(UsageError, match="writes 20 tokens; with these dimensions at mo"):
        parse(ops, value_dim=1)
