"""What a driver says about itself, as a `harness.backends.backend.Backend`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import Backend, Kind
from lockstep.harness.backends.driver.arrays import WireArrays
from lockstep.harness.backends.driver.client import PROTOCOL
from lockstep.harness.backends.driver.fields import (
    Answer,
    Malformed,
    find,
    find_bool,
    find_list,
    find_text,
    say,
)
from lockstep.harness.backends.driver.refusals import REFUSALS
from lockstep.harness.core.fields import suggest

Open = Callable[[Mapping[str, Any]], Any]

FIELDS = (
    "id",
    "protocol",
    "name",
    "version",
    "device",
    "contracts",
    "dtypes",
    "causal",
    "poison",
    "tolerance",
    "ledger",
    "notes",
)
KIND = ("operations", "config", "refuses")


def make_backend(hello: Answer, open_cache: Open) -> Backend:
    """Raises Malformed. That kinds, operations and config fields exist is checked as for
    every backend; see `harness.workers.registry`."""
    check_names(hello, FIELDS, "hello")
    if find(hello, "protocol") != PROTOCOL:
        spoken = say(hello["protocol"])
        raise Malformed(f"it speaks protocol {spoken}, and the harness speaks {PROTOCOL}")
    name = find_text(hello, "name")
    optional = {
        field: OPTIONAL[field](hello, field) for field in OPTIONAL if field in hello
    }
    return Backend(
        name=name,
        contracts=find_contracts(hello),
        arrays=WireArrays(),
        open=open_cache,
        lifetime="forever",  # what came over a pipe is a copy
        errors=REFUSALS,
        versions={name: find_text(hello, "version")} if "version" in hello else {},
        **{"device": "cpu", **optional},
    )


def check_names(answer: Answer, known: tuple[str, ...], what: str) -> None:
    for name in answer:
        if name not in known:
            raise Malformed(
                f"{what} has {say(name)}{suggest(name, dict.fromkeys(known))}"
            )


def find_contracts(hello: Answer) -> Mapping[str, Mapping[str, Kind]]:
    contracts = find_object(hello, "contracts")
    return {name: find_kinds(contracts, name) for name in contracts}


def find_kinds(contracts: Answer, contract: str) -> Mapping[str, Kind]:
    kinds = find_object(contracts, contract)
    return {name: find_kind(kinds, name) for name in kinds}


def find_kind(kinds: Answer, name: str) -> Kind:
    declared = find_object(kinds, name)
    check_names(declared, KIND, f"kind {name}")
    fields = find_object(declared, "config") if "config" in declared else {}
    config = {field: tuple(find_list(fields, field)) for field in fields}
    refuses = find_bool(declared, "refuses") if "refuses" in declared else False
    return Kind(frozenset(find_texts(declared, "operations")), config, refuses=refuses)


def find_object(answer: Answer, name: str) -> Answer:
    value = find(answer, name)
    if not isinstance(value, Mapping):
        raise Malformed(f"{name} is {say(value)}, not an object")
    for field in value:
        if not is_name(field):
            raise Malformed(f"{name} has {say(field)}, which is no name")
    return value


def is_name(text: str) -> bool:
    """Whether a text can be the name of anything, and be shown."""
    return 0 < len(text) <= 64 and text.isascii() and text.isprintable()


def find_texts(answer: Answer, name: str) -> tuple[str, ...]:
    values = find_list(answer, name)
    for value in values:
        if not isinstance(value, str) or not is_name(value):
            raise Malformed(f"{name} has {say(value)}, which is no name")
    return tuple(values)


def find_tolerance(answer: Answer, name: str) -> float:
    value = find(answer, name)
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise Malformed(f"{name} is {say(value)}, not a number from 0 to 1")
    return float(value)


def find_path(answer: Answer, name: str) -> Path:
    return Path(find_text(answer, name))


OPTIONAL: Mapping[str, Callable[[Answer, str], Any]] = {
    "device": find_text,
    "dtypes": find_texts,
    "causal": find_text,
    "poison": find_bool,
    "tolerance": find_tolerance,
    "ledger": find_path,
    "notes": find_text,
}
"""The fields of a hello that may be left out, and how each is read."""
