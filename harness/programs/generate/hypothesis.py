"""Draws programs from Hypothesis.

Hypothesis makes most examples out of earlier ones: it copies one part of an example over
another that was drawn by the same strategy. Of programs that is a poor use of time: their
configs stay the same. So a program is drawn by strategies of which each is used once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from lockstep.harness.contracts.operation import Source
from lockstep.harness.programs.generate.sources import ChoiceSource, RandomSource
from lockstep.harness.programs.program import Program

T = TypeVar("T")

Draw = Callable[[Source], Program]
"""Makes a program from choices."""

BASE, ROOM = 1 << 100, 1 << 64
"""Seeds are drawn from [BASE, BASE + ROOM). Hypothesis mixes constants from the loaded
source files into its draws. None is that large, so a seed gives the same programs in each
process, whatever it has imported. BASE is also far enough from zero for even choices."""

SEEDS = st.integers(BASE, BASE + ROOM - 1)
CHOICES = st.randoms(use_true_random=False)

UNLIMITED = (
    HealthCheck.too_slow,  # others may share the core
    HealthCheck.data_too_large,  # a long program is allowed
    HealthCheck.large_base_example,
)
"""Health checks that a strategy of programs does not pass, by its nature."""


LEAST = 2
"""Operations of the shortest program that Hypothesis may draw choice by choice. It begins
with the smallest examples that there are, a tenth of all, and passes on to others once
five of these were refused."""


def make_strategy(
    draw: Draw, seeded: bool, least: int = LEAST
) -> st.SearchStrategy[Program]:
    """Makes a strategy of programs.

    Args:
        draw: makes a program from choices.
        seeded: Hypothesis draws the seed of a program, and not each of its choices: that
            is several times as fast, but nothing that its shrinker can work on.
        least: see `LEAST`.
    """

    @st.composite
    def programs(draw_from: Any) -> Program:
        if seeded:
            return draw(RandomSource(draw_from(SEEDS) - BASE))
        program = draw(ChoiceSource(draw_from(CHOICES)))
        assume(len(program.ops) >= least)
        return program

    return programs()


class Ended(BaseException):
    """Ends a run at once. An Exception would not: Hypothesis runs its program again, and
    prints it, which takes longer than to draw and check it."""

    def __init__(self, error: Exception) -> None:
        self.error = error


IS_SOURCE = "is_local_module_file"


@contextmanager
def without_sources() -> Iterator[None]:
    """Keeps Hypothesis from parsing the loaded source files for constants to draw.

    That takes most of a second in a checkout, and what is drawn must not depend on what
    else is loaded. There is no setting for it; should a later Hypothesis not have this
    name, it only takes longer.
    """
    before = getattr(providers, IS_SOURCE, None)
    setattr(providers, IS_SOURCE, lambda path: False)
    try:
        yield
    finally:
        setattr(providers, IS_SOURCE, before)


BLOCK = 25
"""Programs that follow from one seed of Hypothesis, which takes longer to make an example
than most programs take to be drawn."""


def generate(
    count: int, number: int, draw: Draw, consume: Callable[[Program], None]
) -> None:
    """Draws programs from seeds of Hypothesis, each of which gives several.

    The seeds are counted from `number`: Hypothesis likes to begin with its smallest, and
    other numbers are to give other programs.

    Args:
        count: the number of programs.
        number: the seed.
        draw: makes a program from choices.
        consume: is called with each program.
    """
    left = count

    def consume_block(start: int) -> None:
        nonlocal left
        source = RandomSource(number + start - BASE)
        for _ in range(min(BLOCK, left)):
            left -= 1
            consume(draw(source))

    run(-(-count // BLOCK), number, SEEDS, consume_block)


def generate_choices(
    count: int, number: int, draw: Draw, consume: Callable[[Program], None]
) -> None:
    """Draws programs from choices of Hypothesis, which does not shrink them; as
    `generate`."""
    run(count, number, make_strategy(draw, seeded=False), consume)


def run(
    count: int, number: int, strategy: st.SearchStrategy[T], consume: Callable[[T], None]
) -> None:
    """Hands over what a strategy draws.

    Args:
        count: the greatest number of examples.
        number: the seed.
        strategy: of what is drawn.
        consume: is called with each example.
    """

    @seed(number)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=UNLIMITED,
    )
    @given(strategy)
    def check(example: T) -> None:
        try:
            consume(example)
        except Exception as error:
            raise Ended(error) from None

    try:
        with without_sources():
            check()
    except Ended as end:
        raise end.error from None
