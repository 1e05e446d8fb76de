"""The messages of the protocol.

The class of an operation defines the operation's message: the message is derived from the
fields and the answer of the class, or the class declares the message. The tables below
have all other messages. `harness.contracts.protocol` makes the structs that validate
messages, and the JSON Schemas in `schemas/`, from all messages. A name with a dot is a
variant: "begin.slot" is the operation `begin` of slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from lockstep.harness.backends.backend import Alignment
from lockstep.harness.backends.interface import STATISTICS
from lockstep.harness.backends.paged import EVENTS, TELLS
from lockstep.harness.core.document import NAMES, Schema
from lockstep.harness.core.errors import Reported, clean

PROTOCOL = 1
MAX_SIZE = 1 << 40

Dtype = Literal["float32", "float16", "bfloat16"]
ArrayDtype = Literal["float32", "float16", "bfloat16", "bool"]
ErrorName = Literal[
    "usage", "cache-full", "not-supported", "shared", "no-slot", "missing", "failed"
]
Contract = Literal["layer", "batched", "unified", "prefix", "paged"]
Tell = Literal[TELLS]  # type: ignore[valid-type]
Id = Annotated[int, Meta(ge=1)]
Size = Annotated[int, Meta(ge=0, le=MAX_SIZE)]
Positive = Annotated[int, Meta(ge=1)]
Text = Annotated[str, Meta(min_length=1)]
Type = Annotated[int, Meta(ge=0, description="Of a wrapper: which of its caches.")]
Part = Annotated[int, Meta(ge=0, description="Of a list: which of its caches.")]
Tokens = Annotated[
    list[Any], Meta(description="Refuse one that is not an integer: error 'usage'.")
]


# Not checked here: each kind is checked separately, so that an error names the kind, and
# the config is checked as for every backend (`harness.workers.registry`).
SET = {"uniqueItems": True}  # msgspec 0.21 says so itself
LISTS = {"additionalProperties": {"type": "array", "minItems": 1}}
KIND = {"$ref": "common.json#/$defs/kind"}
KINDS = {
    "propertyNames": {"enum": list(get_args(Contract))},
    "additionalProperties": {"type": "object", "additionalProperties": KIND},
}


Special = Literal["inf", "-inf", "nan"]
"""The texts for numbers that JSON lacks: common parsers and printers refuse 1e999."""


class Array(Struct):
    """An array in row-major order. null and "nan" are NaN. A boolean array may have true
    and false for 1 and 0."""

    shape: Annotated[list[Size], Meta(max_length=8)]
    data: list[bool | int | float | Special | None]
    dtype: ArrayDtype | UnsetType = UNSET

    def __post_init__(self) -> None:
        count = math.prod(self.shape)
        if len(self.data) != count:
            text = f"has {len(self.data)} numbers, but its shape {self.shape}"
            raise ValueError(f"{text} is for {count}")
        if not count and math.prod(size or 1 for size in self.shape) > MAX_SIZE:
            raise ValueError(
                f"has the shape {self.shape}, which is too large: without zeros, its"
                f" sizes multiply to more than {MAX_SIZE}"
            )


class Snapshot(Struct):
    """A snapshot of the positions [begin, end) of a cache, with its number."""

    number: int
    begin: int
    end: int


class Pair(Struct):
    """K and V of one row of a batch, or of one request in a step of a paged cache."""

    keys: Array
    values: Array


class State(Struct):
    """The recurrent state of one row of a batch."""

    conv: Array
    delta: Array


class Layer(Struct):
    """A cache of the layer contract that a session or a trie has created."""

    cache: int
    offset: int


class Entry(Struct):
    """A prefix that can be hit in one group of a paged cache."""

    group: Annotated[int, Meta(ge=0)]
    namespace: str | None
    tokens: Annotated[list[int], Meta(min_length=1)]
    block: int
    adapter: str | UnsetType | None = UNSET
    extras: list[tuple[int, int, str]] | UnsetType = UNSET


class Event(Struct):
    """A change of the prefixes that can be hit. The event "cleared" has null as its
    entry; every other event has an entry."""

    event: Literal[EVENTS]  # type: ignore[valid-type]
    entry: Entry | None

    def __post_init__(self) -> None:
        if (self.entry is None) != (self.event == "cleared"):
            entry = "no entry" if self.entry is None else "an entry"
            raise ValueError(f'is "{self.event}" and has {entry}')


class Duty(Struct):
    """Calls that callers of a cache must not make. No program makes them."""

    when: dict[str, Any]
    rule: Text

    def __post_init__(self) -> None:
        require_line(self.rule, "rule")


class Declared(Struct):
    """The promise of a driver for one kind of cache."""

    operations: Annotated[frozenset[str], Meta(min_length=1, extra_json_schema=SET)]
    config: Annotated[dict[str, Any], Meta(extra_json_schema=LISTS)] = {}
    refuses: bool = False
    atomic: bool = True
    duties: tuple[Duty, ...] = ()
    tells: Annotated[frozenset[Tell], Meta(extra_json_schema=SET)] = frozenset()

    def __post_init__(self) -> None:
        require_names(sorted(self.operations), "operation")
        require_names(self.config, "config field")


class Answer(Struct, kw_only=True):
    """The answer to one message."""

    id: Id


class Hello(Answer, kw_only=True):
    """The declaration of a driver."""

    protocol: Literal[PROTOCOL]  # type: ignore[valid-type]
    name: Text
    contracts: Annotated[
        dict[str, dict[str, Any]], Meta(min_length=1, extra_json_schema=KINDS)
    ]
    version: Text | UnsetType = UNSET
    device: Text = "cpu"
    dtypes: Annotated[tuple[Dtype, ...], Meta(min_length=1)] = ("float32",)
    causal: Alignment = "lower-right"
    poison: bool = False
    tolerance: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    ledger: Text | UnsetType = UNSET
    notes: Text | UnsetType = UNSET

    def __post_init__(self) -> None:
        for name in ("name", "version", "device", "ledger", "notes"):
            if getattr(self, name) is not UNSET:
                require_line(getattr(self, name), name)
        require_names(self.contracts, "contract")
        for contract, kinds in self.contracts.items():
            require_names(kinds, f"kind of {contract}")


class Refusal(Answer, kw_only=True):
    """The answer to a message that was refused. `message` is shown to people."""

    error: ErrorName
    message: Text


def require_line(text: str, name: str) -> None:
    """Raises ValueError for a text that is not a single line of printable characters."""
    if not text.strip() or clean(text) != text:
        raise ValueError(f"has a {name} that is not one line of printable text")


def require_names(names: Iterable[str], sort: str) -> None:
    """Raises ValueError for names that are not 1 to 64 printable ASCII characters."""
    for name in names:
        if not (0 < len(name) <= 64 and name.isascii() and name.isprintable()):
            text = clean(ascii(name), 80)
            raise ValueError(
                f"names the {sort} {text}; expected 1 to 64 printable ASCII characters"
            )


# The structs that messages of all contracts use, with their names in `common.json`.
COMMON: Mapping[str, type[Struct]] = {
    "array": Array,
    "snapshot": Snapshot,
    "pair": Pair,
    "state": State,
    "layer": Layer,
    "entry": Entry,
    "event": Event,
    "duty": Duty,
    "kind": Declared,
    "error": Refusal,
}

Fields = Mapping[str, Any]
"""Field of a message → its type; a field whose type has `UnsetType` is optional."""

Message = tuple[Fields, Fields]
"""The fields of a request, and of its answer."""

Messages = Mapping[str, Message]

CACHE = {"cache": int}
OFFSET = {"offset": int}
STATES = {"conv": Array, "delta": Array}
HELD = {"keys": Array | None, "values": Array | None}
PAIR = {"keys": Array, "values": Array}
PAIRS = {"coordinates": list[tuple[int, int]] | UnsetType}
MASK = {"mask": Array | Literal["causal"] | None}
SNAPSHOT = {"snapshot": Snapshot | None}
NUMBERS = list[int] | UnsetType
KEYS = {
    "adapter": str | UnsetType | None,
    "extras": list[tuple[int, int, str]] | UnsetType,
}
NUMBER_PAIRS = list[tuple[int, int]]
TYPE = {"type": Type | UnsetType}
PART = {"part": Part | UnsetType}
OFFSETS = {"offsets": list[int]}
SAVED = {"saved": int}

PLACE = (*TYPE, *PART)
"""Fields that name a part of a cache; a message has them in addition to its other
fields."""

CONFIG = Annotated[dict[str, Any], Meta(extra_json_schema={"required": ["kind"]})]
SESSION: Messages = {
    "hello": ({"protocol": Literal[PROTOCOL]}, {}),
    "open": ({"config": CONFIG}, CACHE),
    "drop": ({"caches": NUMBERS, "snapshots": NUMBERS, "saved": NUMBERS}, {}),
}
LAYER: Messages = {
    "boundaries": ({"length": int, **PART}, {"lengths": list[int]}),
    "read": (PART, STATES),
    "write": ({**STATES, "length": Positive, **PART}, OFFSET),
}
BATCHED: Messages = {
    "offsets": (PART, OFFSETS),
    "pad_left": ({"padding": list[int]}, {}),
    "make_mask": ({"length": Positive, **PART}, MASK),
    "make_mask.states": ({"length": Positive, **PART}, {"mask": Array | None}),
    "read": (PART, STATES),
    "write": ({**STATES, "length": Positive, **PART}, {}),
}
UNIFIED: Messages = {
    "cached": (TYPE, {"cached": bool}),
    "read_states": ({"layer": int, **TYPE}, STATES),
    "write_states": ({"layer": int, **STATES, **TYPE}, {}),
}

TOKENS, STORED, COUNT = {"tokens": Tokens}, {"stored": int}, {"count": int}
SLOT = {"slot": int}
PREFIX: Messages = {
    "begin": ({**TOKENS, "checkpoints": list[int]}, {"remaining": list[int]}),
    "begin.slot": (TOKENS, SLOT),
    "layers": ({}, {"layers": list[Layer | None]}),
    "below": ({}, CACHE),
    "extend": (TOKENS, {}),
    "extend.slot": ({**SLOT, **TOKENS}, {}),
    "close": ({}, STORED),
    "close.slot": (SLOT, STORED),
    "cancel": ({}, STORED),
    "cancel.slot": (SLOT, STORED),
    "free": ({}, {}),
    "set_limit": ({"limit": int | None}, {}),
    "count_tokens": ({}, COUNT),
    "count_bytes": ({}, COUNT),
    "get_statistics": ({}, dict.fromkeys(STATISTICS, int)),
    "get_tokens": (SLOT, {"tokens": list[int]}),
    "get_remaining": (SLOT, {"tokens": list[int]}),
    "reserve": ({**SLOT, **COUNT}, {"positions": list[int]}),
    "commit": ({**SLOT, **COUNT}, {}),
}

LAYER_NUMBER = {"layer": int}
PAGED: Messages = {
    "tables": ({"request": str}, {"tables": list[list[int | None]]}),
    "copies": ({}, {"copies": NUMBER_PAIRS}),
    "slots": ({"request": str}, {"slots": list[list[list[int | None]]]}),
    "pool": (
        {},
        {
            "references": NUMBER_PAIRS,
            "free": list[int],
            "cached": list[int],
            "pinned": NUMBERS,
            "idle": NUMBERS,
        },
    ),
    "entries": ({}, {"entries": list[Entry]}),
    "host_entries": ({}, {"entries": list[Entry]}),
    "events": ({}, {"events": list[Event]}),
    "update": ({**LAYER_NUMBER, **PAIR}, {"requests": list[Pair]}),
    "attend": ({**LAYER_NUMBER, "queries": Array}, {"attended": Array}),
    "read_states": (LAYER_NUMBER, {"requests": list[Pair | None]}),
    "list_ends": (LAYER_NUMBER, {"ends": list[list[int]]}),
    "write_states": ({**LAYER_NUMBER, **PAIR}, {}),
}

CONTRACTS: Mapping[str, Messages] = {
    "session": SESSION,
    "layer": LAYER,
    "batched": BATCHED,
    "unified": UNIFIED,
    "prefix": PREFIX,
    "paged": PAGED,
}
"""Contract → the messages that no operation declares: calls between operations,
queries about a cache, and the methods of prefix caches, because an operation calls
several of these methods."""


def get_operation(message: str) -> str:
    """Returns the `op` of a message: its name without the variant."""
    return message.partition(".")[0]


# --- derived messages -------------------------------------------------------------------


OBJECTS = ("cache", "snapshot", "saved")
"""The sorts of objects that messages name by a number."""

PLAIN = {"boolean": bool, "string": str, "number": float}


def derive_message(fields: Mapping[str, Schema], answer: Schema) -> Message:
    """Derives a message from the JSON Schemas of an operation.

    Raises:
        TypeError: a field has a type that a message must spell out.
    """
    request = {name: fields[name] for name in fields if name != "cache"}
    options = [option["properties"] for option in answer.get("anyOf", [answer])]
    accepted = [option for option in options if "error" not in option]
    shared = [name for name in accepted[0] if all(name in option for option in accepted)]
    answered = {name: accepted[0][name] for name in shared}
    return derive_types(request), derive_types(answered)


def derive_types(schemas: Mapping[str, Schema]) -> Fields:
    return {name: derive_type(name, schema) for name, schema in schemas.items()}


def derive_type(name: str, schema: Schema) -> Any:
    """Returns the type of a field; for a choice of the backend, the type of one value."""
    if "anyOf" in schema:
        return derive_type(name, schema["anyOf"][0])
    types = schema.get("type", ())
    types = [types] if isinstance(types, str) else list(types)
    match [sort for sort in types if sort != "null"]:
        case ["array"]:
            item = derive_type(name, {NAMES: schema.get(NAMES), **schema["items"]})
            plain: Any = list[item]  # type: ignore[valid-type]
        case [_] if schema.get(NAMES) in OBJECTS:
            plain = int
        case ["integer"]:
            plain = Positive if schema.get("minimum", 0) >= 1 else int
        case [single] if single in PLAIN:
            plain = PLAIN[single]
        case _:
            raise TypeError(f"field {name} has no type in messages; declare `messages`")
    return plain | None if "null" in types else plain


# --- all of them ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Protocol:
    """All messages: contract → message → its fields."""

    messages: Mapping[str, Messages]

    @cache  # noqa: B019 - one object for as long as the process
    def get_request(self, contract: str, message: str) -> type[Struct]:
        """Returns the struct of a request."""
        fields, _ = self.messages[contract][message]
        about = {} if contract == "session" else CACHE
        operation = Literal[get_operation(message)]  # type: ignore[valid-type]
        fields = {"id": Id, "op": operation, **about, **fields}
        return define(f"{contract}_{message}_request", fields, Struct)

    @cache  # noqa: B019
    def get_answer(self, contract: str, message: str) -> type[Struct]:
        """Returns the struct of an answer that refuses nothing."""
        if message == "hello":
            return Hello
        _, fields = self.messages[contract][message]
        return define(f"{contract}_{message}_answer", fields, Answer)


def define(name: str, fields: Fields, base: type[Struct]) -> type[Struct]:
    """Defines a struct, in which optional fields are UNSET by default."""
    name = name.replace(".", "_")
    listed: list[Any] = [
        (field, kind, UNSET) if UnsetType in get_args(kind) else (field, kind)
        for field, kind in fields.items()
    ]
    return defstruct(name, listed, bases=(base,), kw_only=True)


# --- refusals, as exceptions ------------------------------------------------------------


REFUSALS: Mapping[str, type[Exception]] = {
    name: type(title, (Reported,), {})
    for name, title in (
        ("usage", "Misuse"),
        ("cache-full", "CacheFull"),
        ("not-supported", "NotSupported"),
        ("shared", "Shared"),
        ("no-slot", "NoSlot"),
    )
}
"""The errors that `harness.backends.backend.Backend.errors` names."""


class Failed(Reported):
    """Any other error in the driver."""


ERRORS: Mapping[str, type[Exception]] = {
    **REFUSALS,
    "missing": NotImplementedError,
    "failed": Failed,
}
"""All errors that an answer may name."""
