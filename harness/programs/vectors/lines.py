"""A program and its answers on one line, the same bytes everywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lockstep.harness.programs.program import FORMAT, Program, trace
from lockstep.harness.programs.vectors import TRACE_FORMAT


def make_typed(program: Program) -> Program:
    """The same without tokens that are no integers: that those are refused can only be
    asked where they can be handed over at all."""
    ops = []
    for op in program.ops:
        if "generate" in op and not is_typed(op["generate"]):
            op = {**op, "generate": []}
        if is_typed(op.get("tokens", ())):
            ops.append(op)
    return replace(program, ops=ops)


def is_typed(tokens: Sequence[Any]) -> bool:
    return all(type(token) is int for token in tokens)


def make_line(program: Program, meta: Mapping[str, Any]) -> str:
    """A trace on one line, the same bytes everywhere: keys in the order of names, no
    blanks, every field written, and no number with a fraction."""
    document = {
        "format": TRACE_FORMAT,
        "program": {
            "format": FORMAT,
            "contract": program.contract,
            "config": program.config,
            "ops": list(program.ops),
            "meta": meta,
        },
        "expected": trace(program),
    }
    return write_json(document)


def write_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def write_lines(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def write_pretty(value: Any) -> bytes:
    """For people, too: one field a line."""
    return (json.dumps(value, sort_keys=True, indent=1) + "\n").encode()
