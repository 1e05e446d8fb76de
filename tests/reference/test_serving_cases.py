"""What a probe model finds and generates: cases computed by hand."""

from __future__ import annotations

import pytest

from lockstep.reference.serving import Ask, Head, Shift, Token, find, generate

USUAL = Ask(0, 2)

# The head, the argument of the ask, the tokens before it, the position that is found.
FOUND: list[tuple[Head, int, list[Token], int | None]] = [
    (Head(), 0, [7, 8, 9], 3),
    (Head(), 1, [7, 8, 9], 2),
    (Head(), 3, [7, 8, 9], 0),
    (Head(), 4, [7, 8, 9], 0),  # one position too far: the nearest visible token
    (Head(), 5, [7, 8, 9], None),
    (Head(window=2), 1, [7, 8, 9], 2),
    (Head(window=2), 2, [7, 8, 9], 2),
    (Head(window=2), 3, [7, 8, 9], None),
    (Head(window=2, echoes=True), 2, [7, 8, 9], 3),
    (Head(window=2, echoes=True), 9, [7, 8, 9], 3),
    (Head(chunk=2), 1, [7, 8, 9], 2),  # chunks: 7 8 | 9 ask
    (Head(chunk=2), 2, [7, 8, 9], 2),
    (Head(chunk=2), 0, [7, 8], 2),  # chunks: 7 8 | ask
    (Head(chunk=2), 2, [7, 8], None),
    (Head(finds="content"), 8, [7, 8, 9], 1),
    (Head(finds="content"), 8, [8, 7, 8], 2),  # equal tokens: the last of them
    (Head(finds="content"), 6, [7, 8, 9], None),
    (Head(finds="content", window=2), 8, [7, 8, 9], None),
    (Head(finds="follower"), 7, [7, 8, 9], 1),
    (Head(finds="follower"), 9, [7, 8, 9], 3),  # the ask itself follows 9
    (Head(finds="follower"), 7, [7, 8, 7, 8], 3),
    (Head(finds="follower"), 7, [7, 8, 7, 9], None),  # two tokens follow 7
    (Head(finds="follower", echoes=True), 6, [7, 8, 9], 3),
]


@pytest.mark.parametrize(("head", "argument", "tokens", "position"), FOUND, ids=str)
def test_what_a_head_finds(
    head: Head, argument: int, tokens: list[Token], position: int | None
) -> None:
    heads = [Head(), head]
    assert find(heads, USUAL, [*tokens, Ask(1, argument)]) == position


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ([1, 2, 3], [1, 2, 3, 1]),  # each tag asks for the token 2 before it
        ([1, 2, 3, Ask(0, 1)], [3, 3, Ask(0, 1), 3]),  # an ask is found, and asks again
        ([1, 2], [1, 1, 2, 1]),  # the first ask goes one position too far
        ([1], None),  # two positions too far
    ],
    ids=str,
)
def test_what_a_model_generates(prompt: list[Token], tokens: list[Token] | None) -> None:
    assert generate([Head()], USUAL, prompt, 4) == tokens


@pytest.mark.parametrize(
    ("keep", "tokens", "held"),
    [
        (0, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]),  # room for one more
        (0, [1, 2, 3, 4, 5, 6], [3, 4, 5, 6]),  # 2 of 5
        (1, [1, 2, 3, 4, 5, 6], [1, 4, 5, 6]),  # 2 of 4
        (3, [1, 2, 3, 4, 5, 6], [1, 2, 3, 5, 6]),  # 1 of 2
    ],
)
def test_what_a_full_context_drops(
    keep: int, tokens: list[Token], held: list[Token]
) -> None:
    assert Shift(6, keep).drop(tokens) == held


def test_a_model_goes_on_behind_its_context() -> None:
    """Each token asks for the token 4 before it, or one position less. The model holds
    1 2 3 4 5, then 1 fills the context; it holds 3 4 5 1, then 3 4 5 1 3; 3 fills it."""
    prompt: list[Token] = [1, 2, 3, 4, 5]
    assert generate([Head()], Ask(0, 4), prompt, 4) == [1, 2, 3, 4]
    assert generate([Head()], Ask(0, 4), prompt, 4, Shift(6, 0)) == [1, 3, 3, 5]
