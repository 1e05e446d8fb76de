"""Draws programs from Hypothesis: every choice of a program is a choice of Hypothesis.

Hypothesis makes most examples out of earlier ones: it copies a part of an example over
another part that was drawn by the same strategy. Of programs that is a poor use of time:
their configs stay the same. So a program is drawn from one `random.Random` of Hypothesis,
whose draws it does not copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from lockstep.harness.contracts.operation import Source
from lockstep.harness.programs.program import Program

Draw = Callable[[Source], Program]
"""Makes a program from choices."""

FEW = 96
"""Integers are drawn from [0, FEW] at most. Hypothesis mixes constants from the loaded
source files into larger ones (none below 100), and makes them less even. So a seed gives
the same programs in each process, whatever it has imported."""

EVEN = 4
"""A choice takes what is left of an integer if that is so many times as large: no option
is less than 3/4 as likely as another."""


class ChoiceSource(Source):
    """Choices of Hypothesis. An integer may hold several of them, since drawing it takes
    as long as a small operation.

    The simplest choice is 0. The shrinker of Hypothesis lowers integers and leaves them
    out. Each operation begins with a new integer, so that the shrinker can leave it out.
    """

    def __init__(self, random: Random) -> None:
        self.randrange = random.randrange
        self.value, self.room = 0, 1

    def renew(self) -> None:
        self.room = 1

    def below(self, limit: int) -> int:
        if limit > FEW:
            return (self.below(-(-limit // FEW)) * FEW + self.below(FEW)) % limit
        if limit == 1:
            return 0
        if self.room < EVEN * limit and (self.room < limit or self.room % limit):
            self.room = FEW // limit * limit
            self.value = self.randrange(self.room)
        self.value, choice = divmod(self.value, limit)
        self.room = -(-self.room // limit)
        return choice


UNLIMITED = (
    HealthCheck.too_slow,  # others may share the core
    HealthCheck.data_too_large,  # a long program is allowed
    HealthCheck.large_base_example,
)
"""Health checks that a strategy of programs does not pass, by its nature."""

LEAST = 2
"""Operations of the shortest program. Hypothesis begins with the smallest examples that
there are, a tenth of all, and passes on to others once five of these were refused."""


def make_strategy(draw: Draw, least: int = LEAST) -> st.SearchStrategy[Program]:
    """Makes a strategy of programs.

    Args:
        draw: makes a program from choices.
        least: see `LEAST`.
    """

    @st.composite
    def programs(draw_from: Any) -> Program:
        random = draw_from(st.randoms(use_true_random=False))
        program = draw(ChoiceSource(random))
        assume(len(program.ops) >= least)
        return program

    return programs()


class Ended(BaseException):
    """Ends a run at once. An Exception would not: Hypothesis runs its program again, and
    prints it, which takes longer than to draw and check it."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def generate(
    count: int, number: int, draw: Draw, consume: Callable[[Program], None]
) -> None:
    """Draws programs. Hypothesis does not shrink them.

    Args:
        count: the number of programs.
        number: the seed.
        draw: makes a program from choices.
        consume: is called with each program.
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
    @given(make_strategy(draw))
    def check(program: Program) -> None:
        try:
            consume(program)
        except Exception as error:
            raise Ended(error) from None

    set_hypothesis_home_dir(os.devnull)  # it would make a folder where a user works
    try:
        check()
    except Ended as end:
        raise end.error from None
    finally:
        set_hypothesis_home_dir(None)  # the tests of this process keep their examples
