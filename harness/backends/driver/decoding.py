"""Parses the lines and arrays that a driver writes, and describes errors in them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar, get_args

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from lockstep.harness.backends.backend import Alignment
from lockstep.harness.backends.driver.messages import (
    PROTOCOL,
    Array,
    ArrayDtype,
    Dtype,
    ErrorName,
)
from lockstep.harness.backends.paged import EVENTS, TELLS
from lockstep.harness.core.document import suggest
from lockstep.harness.core.errors import clean

# --- lines as structs -------------------------------------------------------------------


T = TypeVar("T", bound=msgspec.Struct)


# Names of types in msgspec → names that authors of drivers know.
TYPES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
    "bool | int | float | str | null": "a number or null",
}

# Field → a description of the allowed values.
CHOICES = {
    "op": "the name of the operation",
    "protocol": f"{PROTOCOL}, the version that the harness speaks",
    "dtype": f"one of {', '.join(get_args(ArrayDtype))}",
    "dtypes": f"one of {', '.join(get_args(Dtype))}",
    "causal": f"one of {', '.join(get_args(Alignment))}",
    "error": f"one of {', '.join(get_args(ErrorName))}",
    "event": f"one of {', '.join(EVENTS)}",
    "tells": f"one of {', '.join(TELLS)}",
    "mask": 'null, "causal" or an array',
    "data": 'a number, null, "inf", "-inf" or "nan"',
}


class Malformed(Exception):
    """An answer does not have the form that the protocol requires for its message."""


def say(value: Any) -> str:
    """Formats a JSON value for an error message."""
    if isinstance(value, list) and len(value) > 8:
        return f"a list of {len(value)}"
    return clean(json.dumps(value, ensure_ascii=False), 80)


def refuse(constant: str) -> NoReturn:
    raise Malformed(
        f"it holds {constant}, which JSON does not have: write null for NaN,"
        ' "inf" and "-inf" for infinity'
    )


def parse_int(digits: str) -> int | float:
    """Parses an integer; "-0" becomes the float -0.0, because many libraries write -0.0
    as -0."""
    return -0.0 if digits == "-0" else int(digits)


DECODER = json.JSONDecoder(parse_constant=refuse, parse_int=parse_int)
"""Replaces msgspec's decoder, which refuses 1e999."""


def decode(line: bytes) -> dict[str, Any]:
    """Parses a line, which must be a JSON object. Raises Malformed."""
    try:
        answer = DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise Malformed(f"byte {error.start} of the line is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        shown = clean(line[:400].decode(errors="replace"), 60)
        raise Malformed(f"the line is not JSON ({clean(str(error))}): {shown}") from None
    if not isinstance(answer, dict):
        raise Malformed(f"the line is {say(answer)}, not an object")
    return answer


def parse(
    document: Any, kind: type[T], location: str = "the answer", *, strict: bool
) -> T:
    """Converts a document to a struct. Raises Malformed.

    Args:
        document: the decoded JSON.
        kind: the type of the struct.
        place: the name of the document in messages.
        strict: whether to refuse unknown fields.
    """
    try:
        parsed = msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise Malformed(explain(str(error), document, location)) from None
    if strict:
        require_no_more(document, parsed, location)
    return parsed


def explain(text: str, document: Any, location: str) -> str:
    """Rewrites an error message of msgspec, with the location and the invalid value."""
    match = re.fullmatch(r"(.*?)(?: - at `(?:key` in `)?\$([^`]*)`)?", text, re.DOTALL)
    message, path = (match[1], match[2] or "") if match else (text, "")
    fields = re.findall(r"\.(\w+)", path)
    value = document
    for name, at in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        value = value[name or int(at)]
    location = path.removeprefix(".") or location
    missing = re.fullmatch(r"Object missing required field `(\w+)`", message)
    if missing:
        return f"{location} has no {missing[1]}"
    if message.startswith("Invalid enum value"):
        return f"{location} is {say(value)}; expected {CHOICES[fields[-1]]}"
    expected = re.fullmatch(r"Expected `([^`]*)`(.*?)(, got .*)?", message)
    if expected:
        kinds = TYPES.get(expected[1]) or " or ".join(
            TYPES[kind_name] for kind_name in expected[1].split(" | ")
        )
        return f"{location} is {say(value)}; expected {kinds}{expected[2]}"
    return f"{location} {message}"


def require_no_more(document: Any, parsed: Any, location: str) -> None:
    """Raises Malformed for unknown fields at any depth, and for duplicates in a set."""
    if isinstance(parsed, frozenset) and len(parsed) != len(document):
        raise Malformed(f"{location} has an item twice")
    if isinstance(parsed, list | tuple) and location != "data":
        for value, item in zip(document, parsed, strict=True):
            require_no_more(value, item, location)
    if isinstance(parsed, msgspec.Struct):
        fields = dict.fromkeys(parsed.__struct_fields__)
        for name, value in document.items():
            if name not in fields:
                hint = suggest(name, fields)
                raise Malformed(f"{location} has the unknown field {say(name)}{hint}")
            require_no_more(value, getattr(parsed, name), name)


# --- arrays: a shape and plain numbers --------------------------------------------------


# Output of printf → the text that every parser reads: for numbers that JSON lacks, and
# for -0, which many parsers read as the integer 0.
SPECIAL = {"nan": "null", "inf": '"inf"', "-inf": '"-inf"', "-0": "-0.0"}


class Tensor:
    """An array of any dtype. Its content is stored as float32 or bool.

    Attributes:
        names_dtype: whether a message with this array must state the dtype, because it
            is not the expected dtype.
    """

    def __init__(self, content: npt.NDArray[Any], dtype: str) -> None:
        self.content, self.dtype = content, dtype
        self.names_dtype = False

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.content[index], self.dtype)

    def __repr__(self) -> str:
        return f"{self.dtype} array of shape {list(self.content.shape)}"

    def to_json(self) -> str:
        """Formats numbers with nine digits, which distinguish all float32 numbers."""
        numbers = self.content.ravel().tolist()
        printed = ("%.9g " * len(numbers) % tuple(numbers)).split()
        data = ",".join(SPECIAL.get(text, text) for text in printed)
        shape = ",".join(map(str, self.content.shape))
        dtype = f',"dtype":"{self.dtype}"' if self.names_dtype else ""
        return f'{{"shape":[{shape}],"data":[{data}]{dtype}}}'


class PromisedMask:
    """The promise of a mask; the message of the update requests the mask itself."""

    def __init__(self, length: int, rows: int) -> None:
        self.length, self.rows = length, rows
        self.tensor: Tensor | None = None

    def get(self) -> Tensor:
        if self.tensor is None:
            raise ValueError(
                "the mask belongs to an update that was not made; update first"
            )
        return self.tensor

    def __getitem__(self, index: Any) -> Tensor:
        return self.get()[index]


class WireArrays:
    """Implements `harness.backends.interface.Arrays` with numpy.

    Args:
        causal: the alignment of a mask "causal".
    """

    def __init__(self, causal: Alignment = "lower-right") -> None:
        self.causal = causal

    def from_numpy(self, array: npt.NDArray[np.float32], dtype: str) -> Tensor:
        return Tensor(array, dtype)

    def to_numpy(self, array: Tensor | PromisedMask) -> npt.NDArray[Any]:
        return get_tensor(array).content

    def dtype(self, array: Tensor | PromisedMask) -> str:
        return get_tensor(array).dtype

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Any) -> Tensor:
        """Computes attention in float32, because a driver stores K and V but computes no
        attention."""
        scale = 1 / math.sqrt(keys.content.shape[3])
        scores = queries.content @ keys.content.swapaxes(2, 3) * np.float32(scale)
        length, columns = scores.shape[2:]
        is_word = mask is None or isinstance(mask, str)
        seen = (
            spread_mask(mask, length, length, columns, self.causal)
            if is_word
            else get_tensor(mask).content
        )
        if seen.dtype != np.bool_:
            seen = seen == 0
        scores = np.where(seen, scores, np.float32(-np.inf))
        content = np.where(np.isfinite(values.content), values.content, 0)
        with np.errstate(invalid="ignore"):  # for a row that sees nothing
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
        return Tensor(weights @ content, queries.dtype)


def get_tensor(array: Tensor | PromisedMask) -> Tensor:
    if isinstance(array, PromisedMask):
        return array.get()
    if not isinstance(array, Tensor):
        raise TypeError(f"{type(array).__name__} is not an array of a driver")
    return array


def make_tensor(array: Array | None, name: str, dtype: str) -> Tensor:
    """Converts an array of an answer to a tensor. Raises Malformed.

    Args:
        array: the array of the answer.
        name: the field that has the array.
        dtype: the dtype if the array does not state its dtype.
    """
    if array is None:
        raise Malformed(f"{name} is null; expected an array")
    dtype = dtype if array.dtype is UNSET else array.dtype
    require_numbers(array.data, name, dtype == "bool")
    try:
        numbers = np.array(array.data, np.float64)
    except OverflowError:
        raise Malformed(f"{name} has an integer of over 300 digits") from None
    with np.errstate(over="ignore"):  # too large for float32: infinite
        content = numbers.astype(np.bool_ if dtype == "bool" else np.float32)
    return Tensor(content.reshape(array.shape), dtype)


def require_numbers(data: Sequence[Any], name: str, is_bool: bool) -> None:
    """Raises Malformed for a boolean among numbers, or a flag that is not 0 or 1."""
    types = set(map(type, data))
    if not is_bool and bool not in types:
        return
    if is_bool and types <= {bool, int} and set(data) <= {0, 1}:
        return
    expected = "0 or 1" if is_bool else "a number or null"
    for index, number in enumerate(data):
        is_flag = type(number) is bool or (type(number) is int and number in (0, 1))
        if is_flag != is_bool:
            raise Malformed(f"{name}.data[{index}] is {say(number)}; expected {expected}")


def make_mask(
    mask: Array | str | None,
    promised: PromisedMask,
    columns: int,
    dtype: str,
    causal: Alignment,
) -> Tensor:
    """Makes the mask of an update from null (all columns), "causal" or an array."""
    if mask is None or isinstance(mask, str):
        sizes = promised.length, promised.rows, columns
        return Tensor(spread_mask(mask, *sizes, causal), dtype)
    return make_tensor(mask, "mask", dtype)


def spread_mask(
    mask: str | None, length: int, rows: int, columns: int, causal: Alignment
) -> npt.NDArray[np.bool_]:
    """Makes an array [rows, columns] from the mask None or "causal"."""
    if mask is None:
        return np.ones((rows, columns), np.bool_)
    first = columns - length if causal == "lower-right" else 0
    return np.tri(rows, columns, first, dtype=np.bool_)
