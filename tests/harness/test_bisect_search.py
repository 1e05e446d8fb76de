"""The search for a change: over random histories it says what is known, and no more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.harness.jobs.bisect.job import AGREES, Change, choose_next, find_change

Shows = Sequence[str | None]

LETTERS = {"a": AGREES, "x": "layer-kv-update-mask", "o": "another", "-": None}
"""What a release shows, in tables: o is a failure that neither end shows."""


def search(history: Shows) -> tuple[Change | None, list[int]]:
    """What the search finds, and what it tried for that."""
    shown: dict[int, str | None] = {}
    tried: list[int] = []
    while (number := choose_next(len(history), shown)) is not None:
        assert number not in shown and 0 <= number < len(history)
        shown[number] = history[number]
        tried.append(number)
    return find_change(shown), tried


@st.composite
def histories(draw: st.DrawFn) -> list[str | None]:
    """One change, and releases that cannot be tested or show something else."""
    size = draw(st.integers(2, 40))
    at = draw(st.integers(1, size - 1))
    old, new = draw(st.sampled_from([(AGREES, "x"), ("x", AGREES), ("x", "y")]))
    history: list[str | None] = [old] * at + [new] * (size - at)
    for number in draw(st.sets(st.integers(1, max(1, size - 2)), max_size=size)):
        if 0 < number < size - 1:
            history[number] = draw(st.sampled_from([None, "z"]))
    return history


@settings(deadline=None)
@given(histories())
def test_nothing_is_said_of_what_could_not_be_told(history: list[str | None]) -> None:
    change, tried = search(history)
    old, new = history[0], history[-1]
    known = [number for number, shown in enumerate(history) if shown in (old, new)]
    after = next(number for number in known if history[number] == new)
    before = max(number for number in known if history[number] == old)
    assert change == Change(before, after)
    assert set(range(before + 1, after)) <= set(tried)


@settings(deadline=None)
@given(st.integers(2, 500), st.data())
def test_it_takes_few_releases(size: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, size - 1))
    change, tried = search([AGREES] * at + ["x"] * (size - at))
    assert change == Change(at - 1, at)
    assert len(tried) <= 2 + (size - 2).bit_length()


@settings(deadline=None)
@given(st.lists(st.sampled_from([None, AGREES, "x", "y"]), min_size=2, max_size=30))
def test_it_ends_whatever_the_history_is(history: list[str | None]) -> None:
    """And what it says was seen."""
    change, tried = search(history)
    assert len(tried) == len(set(tried))
    if change is not None:
        assert change.before < change.after
        assert {change.before, change.after} <= set(tried)
        assert None not in (history[change.before], history[change.after])
        assert history[change.before] != history[change.after]


@pytest.mark.parametrize(
    ("history", "wanted", "most"),
    [
        ("aaa-x", (2, 4), 5),  # the one between them cannot be told
        ("aaoox", (1, 4), 5),  # another failure hides whether this one is there
        ("------------aaaaxxxx", (15, 16), 9),  # too old to run
        ("aaaaxxxx------------", (3, 4), 9),  # too new
        ("---ax---", (3, 4), 8),
        ("aaaaaaaa", None, 2),
        ("----aaaa", None, 5),
        ("aax-aa", None, 2),  # both ends agree: no search would find the middle for sure
        ("--------", None, 8),
        ("---a----", None, 8),
    ],
)
def test_histories(history: str, wanted: tuple[int, int] | None, most: int) -> None:
    change, tried = search([LETTERS[letter] for letter in history])
    assert change == (None if wanted is None else Change(*wanted))
    assert len(tried) <= most
    assert tried[:2] == [len(history) - 1, 0]
