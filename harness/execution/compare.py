"""Finds the first difference between an expected and an observed answer, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from numbers import Real
from typing import Any

from lockstep.harness.contracts.naming import PADDING, SENTENCES
from lockstep.harness.contracts.operation import Answer
from lockstep.harness.core.errors import format_plain

Tokens = Sequence[Any]
"""Tags, or (position, tag) pairs; words stand for what is no token."""


@dataclass(frozen=True)
class Difference:
    """The first difference of two answers.

    Attributes:
        what: the name of what differs, as in a signature.
        words: a sentence, or what a row sees.
        tokens: the tags that are missing or too much.
        places: what it is about, from the whole to its part: a cache, a row.
    """

    what: str
    words: str
    tokens: tuple[int, ...] = ()
    places: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """The sentence with its place: "row 1, query 2 sees …"."""
        if not self.places:
            return self.words
        joint = " " if self.words.startswith(SEES) else ": "
        return f"{', '.join(self.places)}{joint}{self.words}"


SEES = "sees "
"""The words about a row begin so."""

NAMED = {
    "offset": "offset",
    "offsets": "offset",
    "size": "size",
    "bytes": "size",
    "error": "error",
}
"""Field of an answer → its name in a signature; any other field is a "result"."""
ROWS, TAGS, COLUMNS = "visible", "tags", "columns"
STORED, STATES, PARTS, LAYERS = "stored", "states", "caches", "layers"
SLOTS, STATE = "slots", "state"
ONE_OF, BETWEEN = "one_of", "between"
"""Keys of an expectation that leaves a choice; see `Operation.resolve`."""


Describe = Callable[[int], str]
"""Describes a row by its number."""


def find_difference(
    expected: Answer, observed: Answer, describe: Describe = "row {}".format
) -> Difference | None:
    """Finds the first difference.

    Rows and tags are compared as multisets: column order is layout, not meaning.
    `columns`, what stands in each column, is not compared; it tells a wrong mask from
    wrong contents.

    Args:
        expected: an answer, or {"one_of": [answers]}; a value in it may be
            {"one_of": [values]} or {"between": [low, high]}.
        observed: the backend's answer. `layers` are more answers, which must be the same;
            `where` says in words what an answer is about.
        describe: puts the number of a row in words.

    Returns:
        The difference, or None. Of several answers that are allowed, the difference from
        the first.
    """
    if "error" in observed and "error" not in expected and ONE_OF not in expected:
        why = f": {observed['why']}" if "why" in observed else ""
        return Difference("error", f"it refused ({observed['error']} error{why})")
    for name, wanted in expected.items():
        got = observed.get(name)
        if name == PARTS and got is not None:
            difference = compare_parts(wanted, got, describe)
        elif is_equal(got, wanted):
            continue
        elif name == ONE_OF:
            return compare_answers(wanted, observed, describe)
        elif is_choice(wanted):
            difference = compare_choice(name, wanted, observed, describe)
        elif name == ROWS:
            columns = observed.get(COLUMNS)
            difference = compare_rows(wanted, got or [], columns, describe)
        elif name == TAGS or (name == STORED and is_list(wanted) and is_list(got)):
            difference = compare_tags(wanted, got or [])
        elif name == SLOTS:
            difference = compare_slots(wanted, got or [], expected["first"])
        elif name == STATE:
            difference = compare_state(wanted, got or [])
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
    """Says whether a backend's value is the expected one, whatever its type."""
    try:
        return bool(got == wanted)
    except Exception:
        return False  # such as an array in the place of a number


def is_choice(wanted: Any) -> bool:
    """Says whether an expectation allows more than one value."""
    return isinstance(wanted, Mapping) and (ONE_OF in wanted or BETWEEN in wanted)


def compare_answers(
    allowed: Sequence[Answer], observed: Answer, describe: Describe
) -> Difference | None:
    """Compares with each answer that is allowed; the difference is from the first."""
    differences = [find_difference(answer, observed, describe) for answer in allowed]
    if differences[0] is None or None in differences:
        return None
    alternatives = " or ".join(dict.fromkeys(map(say_answer, allowed[1:])))
    return replace(
        differences[0], words=f"{differences[0].words}; also allowed: {alternatives}"
    )


def say_answer(answer: Answer) -> str:
    """Puts an answer in a few words."""
    if "error" in answer:
        return say(answer["error"])
    if {ROWS, TAGS, PARTS} & answer.keys():
        return "other tokens"
    return ", ".join(f"{name} {say(value)}" for name, value in answer.items()) or "done"


def compare_choice(
    name: str, wanted: Mapping[str, Any], observed: Answer, describe: Describe
) -> Difference | None:
    """Compares one value with a list of values, or with two bounds."""
    got, kind = observed.get(name), NAMED.get(name, "result")
    if BETWEEN in wanted:
        low, high = wanted[BETWEEN]
        if isinstance(got, Real) and low <= got <= high:
            return None
        return Difference(kind, f"{name} is {say(got)}, allowed: {low} to {high}")
    alone = {key: value for key, value in observed.items() if key != LAYERS}
    answers = [{name: value} for value in wanted[ONE_OF]]
    difference = compare_answers(answers, alone, describe)
    if difference is None:
        return None
    allowed = " or ".join(map(say, wanted[ONE_OF]))
    return Difference(
        difference.what,
        f"{name} is {say(got)}, allowed: {allowed}",
        difference.tokens,
    )


def format_difference(name: str, got: Any, wanted: Any) -> str:
    """Puts a value that differs in words."""
    if name != "error":
        return f"{name} is {say(got)}, not {say(wanted)}"
    if got is None:
        return f"did not refuse; expected {say(wanted)}"
    return f"refused with {say(got)}; expected {say(wanted)}"


def is_list(value: Any) -> bool:
    return isinstance(value, list)


def locate(difference: Difference, observed: Answer) -> Difference:
    """Adds the place that the answer is about to a difference."""
    if "where" not in observed:
        return difference
    return replace(difference, places=(observed["where"], *difference.places))


def compare_parts(
    wanted: Sequence[Answer], got: Sequence[Answer], describe: Describe
) -> Difference | None:
    for number, (right, seen) in enumerate(zip(wanted, got, strict=True)):
        difference = find_difference(right, seen, describe)
        if difference and "where" not in seen:
            difference = locate(difference, {"where": f"cache {number}"})
        if difference:
            return difference
    return None


def compare_states(wanted: Sequence[Tokens], got: Sequence[Tokens]) -> Difference | None:
    """Compares what states have read; the order of tokens counts."""
    for number, (right_row, seen) in enumerate(zip_longest(wanted, got, fillvalue=())):
        if list(right_row) != list(seen):
            return Difference(
                "contents",
                f"state {number} has read {format_tokens(seen)}, but should have read"
                f" {format_tokens(right_row)}",
                get_tags([*subtract(right_row, seen), *subtract(seen, right_row)]),
            )
    return None


def compare_slots(wanted: Tokens, got: Tokens, first: int) -> Difference | None:
    """Compares what the slots of the positions from `first` on hold, one by one."""
    if len(wanted) != len(got):
        words = f"{len(got)} positions came back, not {len(wanted)}"
        return Difference("contents", words)
    for position, (right_token, seen) in enumerate(zip(wanted, got, strict=True), first):
        if right_token != seen:
            words = (
                f"position {position} holds {format_slot(seen)}, not token {right_token}"
            )
            return Difference("contents", words, get_tags([right_token, seen]))
    return None


def format_slot(token: Any) -> str:
    return f"token {token}" if isinstance(token, int) else str(token)


def compare_state(wanted: Tokens, got: Tokens) -> Difference | None:
    """Compares the last token that a state has read; an empty list stands for none."""
    right_words, seen = (
        ", ".join(map(format_slot, tokens)) or "none" for tokens in (wanted, got)
    )
    names = f"the last token of the state is {seen}, not {right_words}"
    return Difference("contents", names, get_tags([*wanted, *got]))


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
    """Words for the difference of a row."""
    if sentence := find_sentence(extra):
        return sentence
    return (
        f"{SEES}{format_tokens(seen)}, but should see {format_tokens(wanted)}"
        f"{format_parts(missing, extra)}"
    )


def find_sentence(tokens: Tokens) -> str | None:
    """Finds a column whose words say in full what is wrong: a key with the value of
    another token, or a number that is off."""
    return next((word for word in tokens if str(word).startswith(SENTENCES)), None)


def compare_tags(wanted: Tokens, got: Tokens) -> Difference | None:
    missing, extra = subtract(wanted, got), subtract(got, wanted)
    if not missing and not extra:
        return None
    message = f"holds {format_tokens(got)}, but should hold {format_tokens(wanted)}"
    message = find_sentence(extra) or message + format_parts(missing, extra)
    return Difference("contents", message, get_tags([*missing, *extra]))


def judge_row(missing: Tokens, extra: Tokens, columns: Tokens | None) -> str:
    """Blames the mask if all missing tokens did come back and all extra ones are padding,
    or tokens, which other rows may see; otherwise the contents."""
    texts = [token for token in extra if isinstance(token, str)]
    if columns is None or not all(word.startswith(f"{PADDING} ") for word in texts):
        return "contents"
    if not subtract(missing, columns):
        return "mask"
    return "contents"


def subtract(tokens: Tokens, removed: Tokens) -> list[Any]:
    """The tokens that are more often in `left` than in `right`, in its order."""
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
    """The tokens in words; of a long list without the middle."""
    if len(tokens) > most:
        tokens = [*tokens[: most // 2], "…", *tokens[-most // 2 :]]
    return ", ".join(format_token(token) for token in tokens)


def format_token(token: Any) -> str:
    return f"{token[1]} at {token[0]}" if isinstance(token, tuple) else str(token)


def say(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else format_plain(value)
