"""Base classes and helpers of the paged contract's operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, TypeVar

from lockstep.harness.contracts.answer_schemas import USAGE, any_of, left_open, record
from lockstep.harness.contracts.operation import Answer, Op, Operation, Source
from lockstep.harness.contracts.paged.model import MOST_LENGTH, PagedModel
from lockstep.harness.core.document import NAME, NAMES, Schema, integer
from lockstep.reference.paged import Covered, Input, Request, Space

T = TypeVar("T")

REQUEST: Schema = {**NAME, NAMES: "request"}
TOKEN: Schema = integer(0, 1 << 20)
TOKENS: Schema = {"type": "array", "items": TOKEN, "maxItems": MOST_LENGTH + 1}
NAMESPACE: Schema = {
    "type": ["string", "null"],
    "pattern": r"^[A-Za-z0-9_.-]{0,32}(?![\s\S])",
    "default": None,
}
"""The name of a namespace or of an adapter. An empty name must be refused."""
POSITION: Schema = integer(-1, MOST_LENGTH + 1)
KEY: Schema = {"type": "string", "pattern": NAMESPACE["pattern"]}
EXTRAS: Schema = {
    "type": "array",
    "maxItems": MOST_LENGTH,
    "items": {
        "type": "array",
        "prefixItems": [POSITION, POSITION, KEY],
        "minItems": 3,
        "maxItems": 3,
    },
    "default": [],
}
"""Extras, each with its first position, the position after its last, and its key."""

DIGEST = "5f3c9a1e7b20d468" * 2
NEAR: Sequence[Sequence[str]] = (
    ("x", "y", "xy"),
    ("7", "65543", "4294967303"),
    (DIGEST, "a" + DIGEST[1:], DIGEST[:-1] + "a", DIGEST[:15] + "aa" + DIGEST[17:]),
)
"""Sets of names that are nearly equal: one is the beginning of another, numbers are equal
modulo 2 ** 16, digests differ only at the beginning, in the middle or at the end."""
NAMESPACES = [[Space(name) for name in names] for names in NEAR]
ALIKE = ("ab", "c"), ("a", "bc"), ("abc", None), (None, "abc"), ("c", "ab")
SPACES = [
    *NAMESPACES,
    *([Space(*names) for names in ALIKE] for _ in NEAR),
    *([Space(None, name) for name in names] for names in NEAR),
]
"""Sets of spaces that are nearly equal; the same letters may be divided differently."""
NO_SPACE = Space(None)

ALPHABET = (1, 2, 1, 1, 2, 1, 0, 65_537)
LETTERS = "abcdefgh"

Fields = dict[str, Any] | None
"""The drawn fields of an operation; None if the operation is not legal now."""


def draw_tokens(source: Source, count: int) -> list[int]:
    return [source.pick(ALPHABET) for _ in range(count)]


def draw_near(
    source: Source,
    sets: Sequence[Sequence[T]],
    other: T | None = None,
    also: Sequence[T] = (),
) -> T:
    """Draws an item of `also`, or an item other than `other`.

    The item other than `other` is from a set that contains `other`; if there is no such
    set, from any set.
    """
    near = [items for items in sets if other in items] or sets
    return source.pick([*also, *(x for items in near for x in items if x != other)])


def draw_extras(
    source: Source, inputs: Sequence[Input], shared: int, differs: bool
) -> list[list[Any]]:
    """Draws extras.

    Args:
        source: makes the choices.
        inputs: the inputs of a request.
        shared: the number of first inputs that another request also has.
        differs: whether to change an extra of `inputs` a little, or to add an extra
            anywhere. Otherwise, an extra is only added behind the shared inputs.
    """
    extras = uncover(inputs)
    if extras and differs:
        at = source.below(len(extras))
        first, end, key = extras[at]
        another = [first, end, draw_near(source, NEAR, key)]
        shorter = [first, source.between(first, len(inputs)), key]  # or left out
        moved = [[first + by, end + by, key] for by in (1, -1)]
        extras[at] = source.pick((another, another, shorter, *moved))
        extras = keep_legal(extras, len(inputs))
    begin = max(extras[-1][1] if extras else 0, 0 if differs else shared)
    if begin < len(inputs) and source.below(3):
        first = source.between(begin, len(inputs) - 1)
        end = min(len(inputs), first + source.pick((2, 1, 3, 5, 8)))
        extras.append([first, end, draw_near(source, NEAR)])
    return extras


def keep_legal(extras: Sequence[Sequence[Any]], length: int) -> list[list[Any]]:
    """Cuts extras to the positions [0, length), without overlaps; drops empty extras."""
    kept: list[list[Any]] = []
    for first, end, key in extras:
        begin = max(first, kept[-1][1] if kept else 0)
        if begin < min(end, length):
            kept.append([begin, min(end, length), key])
    return kept


def uncover(inputs: Sequence[Input]) -> list[list[Any]]:
    """Returns the extras that cover the first of these inputs of a request."""
    extras: list[list[Any]] = []
    for position, item in enumerate(inputs):
        if isinstance(item, Covered):
            if not item.offset:
                extras.append([position, position, item.key])
            extras[-1][1] = position + 1
    return extras


def list_tokens(inputs: Sequence[Input]) -> list[int]:
    """Returns inputs without the extras."""
    return [item.token if isinstance(item, Covered) else item for item in inputs]


def leave(values: Sequence[Any]) -> Any:
    """Returns the value if there is a single value; otherwise {"one_of": values}, with
    the most likely value first."""
    return values[0] if len(values) == 1 else {"one_of": list(values)}


def chosen(**fields: Schema) -> Schema:
    """Makes the schema of an answer whose fields the backend chooses, or of a refusal."""
    return any_of(record(**{name: left_open(fields[name]) for name in fields}), USAGE)


def find_free_name(model: PagedModel) -> str:
    return next(name for name in LETTERS if name not in model.cache.requests)


class PagedOperation(Operation):
    """An operation of a scheduler, which calls the method with the operation's name.

    Attributes:
        result: the field of the answer with the value that the method returned.
    """

    has_misuse = True
    result: ClassVar[str] = ""

    def draw(self, source: Source, model: PagedModel) -> Op | None:
        fields = self.draw_fields(source, model)
        return None if fields is None else {"op": self.name, **fields}

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        return {}

    def run_backend(self, op: Op, system: Any, model: PagedModel) -> Answer:
        answer: Answer = system.call(op, self.fields, self.result)
        return answer


class OnRequest(PagedOperation):
    """An operation on one request.

    Attributes:
        filling: the values of the required fields other than `request` in an invalid
            call.
    """

    fields: ClassVar[Mapping[str, Schema]] = {"request": REQUEST}
    filling: ClassVar[Mapping[str, Any]] = {}

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        request = model.cache.requests.get(op["request"])
        if request is None:  # an invalid call, which must be refused
            return None
        return self.why_illegal_here(op, model, request)

    def why_illegal_here(self, op: Op, model: PagedModel, request: Request) -> str | None:
        """Returns why the operation is illegal for an existing request, or None."""
        return None

    def is_misuse(self, model: PagedModel, request: Request) -> bool:
        """Tells whether the backend must refuse the operation for an existing request."""
        return False

    def suits(self, model: PagedModel, name: str, request: Request) -> bool:
        """Tells whether the operation is legal for a request now."""
        op = self.complete({"op": self.name, "request": name})
        illegal = self.why_illegal_here(op, model, request)
        return illegal is None and not self.is_misuse(model, request)

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        requests = model.cache.requests.items()
        names = [name for name, item in requests if self.suits(model, name, item)]
        if not names:
            return None
        name = source.pick(self.prefer(names, model))
        extra = self.draw_more(source, model, model.cache.requests[name])
        return None if extra is None else {"request": name, **extra}

    def prefer(self, names: Sequence[str], model: PagedModel) -> Sequence[str]:
        """Returns the names of the requests that are most likely to reveal bugs."""
        return names

    def draw_more(self, source: Source, model: PagedModel, request: Request) -> Fields:
        return {}

    def draw_misuse(self, source: Source, model: PagedModel) -> Op | None:
        """Draws a call for an unknown request, or for a request that must be refused."""
        requests = model.cache.requests
        if not requests:
            return None
        wrong = [name for name, item in requests.items() if self.is_misuse(model, item)]
        loading = [name for name in wrong if requests[name].awaited]
        name = find_free_name(model)
        if wrong and (loading or source.below(2)):
            name = source.pick(loading or wrong)
        return {"op": self.name, "request": name, **self.filling}


# --- transfers --------------------------------------------------------------------------


TRANSFER: Schema = {**NAME, NAMES: "transfer"}

MOST_TRANSFERS = 3
"""The maximum number of transfers that are drawn at the same time; a program file may
have more."""


def name_transfer(number: int) -> str:
    return f"t{number}"


def find_new(model: PagedModel) -> str:
    """Returns the first name that no transfer uses."""
    names = map(name_transfer, count())
    return next(name for name in names if name not in model.cache.transfers)


def why_none(model: PagedModel, *memories: str) -> str | None:
    """Returns why there are no transfers to any of these memories, or None."""
    has_any = any(model.config[memory] for memory in memories)
    return None if has_any else "there is no memory to copy to"


TRANSFERRED = {"request": str, "transfer": str}


class Begin(OnRequest):
    """Begins a transfer of the blocks of a request.

    Attributes:
        memory: the config field of the other memory.
    """

    weight, memory = 2, "host"
    fields: ClassVar[Mapping[str, Schema]] = {"request": REQUEST, "transfer": TRANSFER}

    def why_illegal(self, op: Op, model: PagedModel) -> str | None:
        return why_none(model, self.memory) or super().why_illegal(op, model)

    def list_preferred(self, model: PagedModel) -> Sequence[str]:
        """Lists the requests that most draws use."""
        raise NotImplementedError

    def draw_fields(self, source: Source, model: PagedModel) -> Fields:
        is_busy = len(model.cache.transfers) >= MOST_TRANSFERS
        if is_busy or why_none(model, self.memory):
            return None
        preferred, fields = self.list_preferred(model), super().draw_fields(source, model)
        if fields is None or not (preferred or source.below(4) == 0):
            return None
        name = source.pick(preferred) if preferred else fields["request"]
        return {"request": name, "transfer": find_new(model)}

    def draw_misuse(self, source: Source, model: PagedModel) -> Op | None:
        """Draws a call for an invalid request, or with a transfer name that is in use."""
        if why_none(model, self.memory):
            return None
        op = super().draw_misuse(source, model)
        legal = self.draw_fields(source, model)
        taken = list(model.cache.transfers)
        if op is None or not (legal and taken and source.below(2)):
            return op and {**op, "transfer": find_new(model)}
        return {"op": self.name, **legal, "transfer": source.pick(taken)}

    def breaks_usage(self, op: Op, model: PagedModel) -> bool:
        request = model.cache.requests.get(op["request"])
        is_known = op["transfer"] in model.cache.transfers
        return request is None or is_known or self.is_misuse(model, request)
