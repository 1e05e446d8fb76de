"""Finds and describes the first difference between an expected and an observed answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from lockstep.harness.contracts.answers import read_index
from lockstep.harness.contracts.naming import PADDING, SENTENCES, format_tag
from lockstep.harness.contracts.operation import Answer
from lockstep.harness.core.errors import format_plain

Tokens = Sequence[Any]
"""Tags, or (position, tag) pairs; a string describes a column that is not a token."""


@dataclass(frozen=True)
class Difference:
    """The first difference of two answers.

    Attributes:
        what: the name of the difference, as in a signature.
        words: a sentence that describes the difference.
        tokens: the missing and the extra tags.
        places: the location of the difference, outermost first, such as a cache and a
            row.
    """

    what: str
    words: str
    tokens: tuple[int, ...] = ()
    places: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """The sentence with its location: "row 1, query 2 sees …"."""
        if not self.places:
            return self.words
        joint = " " if self.words.startswith(SEES) else ": "
        return f"{', '.join(self.places)}{joint}{self.words}"


SEES = "sees "
"""The first word of a sentence about a row."""

NAMED = {
    "offset": "offset",
    "offsets": "offset",
    "size": "size",
    "bytes": "size",
    "error": "error",
}
"""Field of an answer → its name in a signature; other fields are named "result"."""
ROWS, TAGS, COLUMNS = "visible", "tags", "columns"
STORED, STATES, PARTS, LAYERS = "stored", "states", "caches", "layers"
SLOTS, STATE, GENERATED = "slots", "state", "generated"
READ = frozenset({ROWS, TAGS, COLUMNS, STATES, SLOTS, STATE, GENERATED})
"""Fields whose values the harness makes from the arrays and tables of a backend."""
ONE_OF, BETWEEN = "one_of", "between"
"""Keys of an expected value that allows several values; see `Operation.resolve`."""


Describe = Callable[[int], str]
"""Describes a row by its number."""


def find_difference(
    expected: Answer, observed: Answer, describe: Describe = "row {}".format
) -> Difference | None:
    """Finds the first difference between two answers.

    Rows and tags are compared as multisets, because the order of columns is not part of
    the contract. `columns`, the contents of all columns, is not compared; it serves to
    distinguish a wrong mask from wrong contents.

    Args:
        expected: an answer, or {"one_of": [answers]}; a value in an answer may be
            {"one_of": [values]} or {"between": [low, high]}.
        observed: the backend's answer. Its `layers` are further answers, which must be
            equal; `where` describes the subject of an answer.
        describe: describes a row by its number.

    Returns:
        The difference, or None. If several answers are allowed, the difference from the
        first allowed answer.
    """
    if "error" in observed and "error" not in expected and ONE_OF not in expected:
        reason = f": {observed['why']}" if "why" in observed else ""
        return Difference("error", f"it refused ({observed['error']} error{reason})")
    for name, wanted in expected.items():
        got = observed.get(name)
        if name == PARTS and got is not None:
            difference = compare_parts(wanted, got, describe)
        elif got == wanted if name in READ else is_equal(got, wanted):
            continue
        elif name == ONE_OF:
            return compare_answers(wanted, observed, describe)
        elif is_choice(wanted):
            difference = compare_choice(name, wanted, observed, describe)
        elif name == ROWS:
            columns = observed.get(COLUMNS)
            difference = compare_rows(wanted, got or [], columns, describe)
        elif name == TAGS or (name == STORED and list is type(wanted) is type(got)):
            difference = compare_tags(wanted, got or [])
        elif name == SLOTS:
            difference = compare_slots(wanted, got or [], expected["first"])
        elif name == STATE:
            difference = compare_state(wanted, got or [])
        elif name == GENERATED:
            difference = compare_generated(wanted, got or [])
        elif name == STATES:
            difference = compare_states(wanted, got or [])
        else:
            kind = NAMED.get(name, "result")
            difference = Difference(kind, format_difference(name, got, wanted))
        if difference:
            return locate(difference, observed)
    for layer in observed.get(LAYERS, ()):
        difference = find_difference(expected, layer, describe)
        if difference:
            return difference
    return None


def is_equal(got: Any, wanted: Any) -> bool:
    """Returns whether a backend's value, of any type, equals the expected value.

    The types must be equal, too, but integers may have any type that `read_index` reads.
    """
    if isinstance(wanted, list | tuple):
        same = type(got) is type(wanted) and len(got) == len(wanted)
        return same and all(map(is_equal, got, wanted))
    if type(wanted) is int:
        return read_index(got) == wanted
    if isinstance(got, np.bool_):
        got = bool(got)
    return type(got) is type(wanted) and bool(got == wanted)


def is_choice(wanted: Any) -> bool:
    """Returns whether an expected value allows more than one value."""
    return isinstance(wanted, Mapping) and (ONE_OF in wanted or BETWEEN in wanted)


def compare_answers(
    allowed: Sequence[Answer], observed: Answer, describe: Describe
) -> Difference | None:
    """Compares an answer with all allowed answers. Returns None if one of them is equal,
    else the difference from the first."""
    differences = [find_difference(answer, observed, describe) for answer in allowed]
    if differences[0] is None or None in differences:
        return None
    alternatives = " or ".join(dict.fromkeys(map(say_answer, allowed[1:])))
    return replace(
        differences[0], words=f"{differences[0].words}; also allowed: {alternatives}"
    )


def say_answer(answer: Answer) -> str:
    """Describes an answer briefly."""
    if "error" in answer:
        return say(answer["error"])
    if {ROWS, TAGS, PARTS} & answer.keys():
        return "other tokens"
    return ", ".join(f"{name} {say(value)}" for name, value in answer.items()) or "done"


def compare_choice(
    name: str, wanted: Mapping[str, Any], observed: Answer, describe: Describe
) -> Difference | None:
    """Compares a value with several allowed values, or with a lower and an upper
    bound."""
    got, kind = observed.get(name), NAMED.get(name, "result")
    if BETWEEN in wanted:
        low, high = wanted[BETWEEN]
        number = read_index(got)
        if number is not None and low <= number <= high:
            return None
        shown = say(got) + say_type(got, low)
        return Difference(kind, f"{name} is {shown}, allowed: {low} to {high}")
    alone = {key: value for key, value in observed.items() if key != LAYERS}
    answers = [{name: value} for value in wanted[ONE_OF]]
    difference = compare_answers(answers, alone, describe)
    if difference is None:
        return None
    allowed = " or ".join(map(say, wanted[ONE_OF]))
    number = next((value for value in wanted[ONE_OF] if type(value) is int), None)
    message = f"{name} is {say(got)}{say_type(got, number)}, allowed: {allowed}"
    return Difference(difference.what, message, difference.tokens)


def format_difference(name: str, got: Any, wanted: Any) -> str:
    """Describes a difference between two values."""
    if name != "error":
        return f"{name} is {say(got)}{say_type(got, wanted)}, not {say(wanted)}"
    if got is None:
        return f"did not refuse; expected {say(wanted)}"
    return f"refused with {say(got)}; expected {say(wanted)}"


def say_type(got: Any, wanted: Any) -> str:
    """Names the type of a value that should be an integer but is not. In a list, names
    the type of the first such item. Returns "" if all types are correct."""
    pairs = [(got, wanted)]
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        pairs = list(zip(got, wanted, strict=True))
    for value, expected in pairs:
        if type(expected) is int and value is not None and read_index(value) is None:
            return f" ({type(value).__name__}, not an integer)"
    return ""


def locate(difference: Difference, observed: Answer) -> Difference:
    """Adds to a difference the location that the field `where` of the answer names."""
    if "where" not in observed:
        return difference
    return replace(difference, places=(observed["where"], *difference.places))


def compare_parts(
    wanted: Sequence[Answer], got: Sequence[Answer], describe: Describe
) -> Difference | None:
    for number, (expected, seen) in enumerate(zip(wanted, got, strict=True)):
        difference = find_difference(expected, seen, describe)
        if difference and "where" not in seen:
            difference = locate(difference, {"where": f"cache {number}"})
        if difference:
            return difference
    return None


def compare_states(wanted: Sequence[Tokens], got: Sequence[Tokens]) -> Difference | None:
    """Compares the tokens that states have read, in order."""
    for number, (tokens, seen) in enumerate(zip_longest(wanted, got, fillvalue=())):
        if list(tokens) != list(seen):
            return Difference(
                "contents",
                f"state {number} has read {format_tokens(seen)}, but should have read"
                f" {format_tokens(tokens)}",
                get_tags([*subtract(tokens, seen), *subtract(seen, tokens)]),
            )
    return None


def compare_slots(wanted: Tokens, got: Tokens, first: int) -> Difference | None:
    """Compares the contents of the slots at consecutive positions, from the position
    `first` on."""
    if len(wanted) != len(got):
        text = f"{len(got)} positions came back, not {len(wanted)}"
        return Difference("contents", text)
    for position, (token, seen) in enumerate(zip(wanted, got, strict=True), first):
        if token != seen:
            text = f"position {position} holds {format_tag(seen)}, not token {token}"
            return Difference("contents", text, get_tags([token, seen]))
    return None


def compare_generated(wanted: Tokens, got: Tokens) -> Difference | None:
    """Compares the tokens that an engine generated."""
    for index, (token, seen) in enumerate(zip_longest(wanted, got)):
        if token != seen:
            text = (
                f"generated token {index} is {format_tag(seen)}, not {format_tag(token)}"
            )
            return Difference("contents", text, get_tags([token, seen]))
    return None


def compare_state(wanted: Tokens, got: Tokens) -> Difference | None:
    """Compares the last token that a state has read; an empty list means no token."""
    expected, seen = (
        ", ".join(map(format_tag, tokens)) or "none" for tokens in (wanted, got)
    )
    text = f"the last token of the state is {seen}, not {expected}"
    return Difference("contents", text, get_tags([*wanted, *got]))


def compare_rows(
    wanted: Sequence[Tokens],
    got: Sequence[Tokens],
    columns: Tokens | None,
    describe: Describe,
) -> Difference | None:
    if len(wanted) != len(got):
        return Difference("mask", f"{len(got)} rows came back, not {len(wanted)}")
    for row, (wanted_row, seen) in enumerate(zip(wanted, got, strict=True)):
        missing, extra = subtract(wanted_row, seen), subtract(seen, wanted_row)
        if missing or extra:
            return Difference(
                judge_row(missing, extra, columns),
                format_row(seen, wanted_row, missing, extra),
                get_tags([*missing, *extra]),
                (describe(row),),
            )
    return None


def format_row(seen: Tokens, wanted: Tokens, missing: Tokens, extra: Tokens) -> str:
    """Describes the difference of a row."""
    if sentence := find_sentence(extra):
        return sentence
    return (
        f"{SEES}{format_tokens(seen)}, but should see {format_tokens(wanted)}"
        f"{format_parts(missing, extra)}"
    )


def find_sentence(tokens: Tokens) -> str | None:
    """Returns the first item of a row that describes a difference completely, such as a
    key with the value of another token, or an inexact number."""
    return next((word for word in tokens if str(word).startswith(SENTENCES)), None)


def compare_tags(wanted: Tokens, got: Tokens) -> Difference | None:
    missing, extra = subtract(wanted, got), subtract(got, wanted)
    if not missing and not extra:
        return None
    message = f"holds {format_tokens(got)}, but should hold {format_tokens(wanted)}"
    message = find_sentence(extra) or message + format_parts(missing, extra)
    return Difference("contents", message, get_tags([*missing, *extra]))


def judge_row(missing: Tokens, extra: Tokens, columns: Tokens | None) -> str:
    """Returns the name of a row's difference.

    Returns "mask" if the backend returned all missing tokens in some column and every
    extra column is a token or padding; otherwise "contents".
    """
    texts = [token for token in extra if isinstance(token, str)]
    if columns is None or not all(text.startswith(f"{PADDING} ") for text in texts):
        return "contents"
    return "contents" if subtract(missing, columns) else "mask"


def subtract(tokens: Tokens, removed: Tokens) -> list[Any]:
    """Returns the multiset difference of `tokens` and `removed`."""
    return list((Counter(tokens) - Counter(removed)).elements())


def get_tags(tokens: Tokens) -> tuple[int, ...]:
    tags = [token[1] if isinstance(token, tuple) else token for token in tokens]
    return tuple(tag for tag in tags if isinstance(tag, int))


def format_tokens(tokens: Tokens) -> str:
    if not tokens:
        return "nothing"
    if any(isinstance(token, str) for token in tokens):
        return join(tokens)
    return f"{'token' if len(tokens) == 1 else 'tokens'} {join(tokens)}"


def format_parts(missing: Tokens, extra: Tokens) -> str:
    phrases = []
    if missing:
        phrases.append(f"{join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    if extra:
        phrases.append(f"{join(extra)} {'is' if len(extra) == 1 else 'are'} too much")
    return f" ({'; '.join(phrases)})"


def join(tokens: Tokens, most: int = 12) -> str:
    """Joins the tokens with commas. Cuts out the middle of a long list."""
    if len(tokens) > most:
        tokens = [*tokens[: most // 2], "…", *tokens[-most // 2 :]]
    return ", ".join(format_token(token) for token in tokens)


def format_token(token: Any) -> str:
    return f"{token[1]} at {token[0]}" if isinstance(token, tuple) else str(token)


def say(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else format_plain(value)
