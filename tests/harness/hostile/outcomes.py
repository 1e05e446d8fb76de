"""Outcomes of checks that are none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lockstep.harness.core.document import MAX_BYTES
from tests.harness.hostile.makers import ESCAPES, GOOD, Cases, Make, as_file

PAIR: Mapping[str, Any] = {
    "backend": "mine",
    "contract": "layer",
    "kind": "kv",
    "programs": 1,
    "steps": 1,
    "failures": [],
}
FAILURE: Mapping[str, Any] = {
    "signature": "layer-kv-update-contents",
    "path": "p.json",
    "program": GOOD,
    "divergence": {"what": "contents", "step": 0, "operation": "update", "message": ""},
}


def as_outcome(text: str | None = None, pair: Any = None, **fields: Any) -> Make:
    """An outcome with other fields at the top, or in its pair; `text` in its place."""
    outcome = {
        "format": "lockstep-outcome/1",
        "seed": 0,
        "seconds": 1,
        "complete": True,
        "pairs": [{**PAIR, **(pair or {})}],
        **fields,
    }
    return as_file(json.dumps(outcome) if text is None else text, "outcome.json")


def with_failure(**fields: Any) -> Make:
    return as_outcome(pair={"failures": [{**FAILURE, **fields}]})


NO_OUTCOME = "is not the outcome of a check"

OUTCOMES: Cases = {
    "empty": (as_outcome(""), "is not JSON"),
    "cut off": (as_outcome('{"format": "lockstep-outcome/1", "pa'), "is not JSON"),
    "another format": (as_outcome(format="lockstep-outcome/9"), "outcome.json"),
    "pairs that are an object": (as_outcome(pairs={"a": 1}), NO_OUTCOME),
    "very many pairs": (as_outcome(pairs=[PAIR] * 501), NO_OUTCOME),
    "a pair without a backend": (as_outcome(pairs=[{"kind": "kv"}]), NO_OUTCOME),
    "programs beyond counting": (as_outcome(pair={"programs": 1 << 70}), NO_OUTCOME),
    "NaN seconds": (as_outcome(seconds=float("nan")), "NaN is not a JSON number"),
    "seconds before the start": (as_outcome(seconds=-5), NO_OUTCOME),
    "a seed in words": (as_outcome(seed=ESCAPES), NO_OUTCOME),
    "versions that are a list": (as_outcome(versions=[ESCAPES]), NO_OUTCOME),
    "a failure without a program": (with_failure(program=None), NO_OUTCOME),
    "a divergence that is none": (with_failure(divergence={}), NO_OUTCOME),
    "a step before the first": (
        with_failure(divergence={**FAILURE["divergence"], "step": -1}),
        NO_OUTCOME,
    ),
    "one byte too many": (as_outcome(" " * (MAX_BYTES + 1)), "is too large"),
}
