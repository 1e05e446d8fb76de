"""Draws programs with Hypothesis, which makes every random choice.

Hypothesis derives most examples from earlier examples: it copies a section of an example
over another section that the same strategy drew. For programs, such copies waste time,
because the config stays the same. Therefore, each program is drawn from a single
`random.Random` of Hypothesis, whose draws Hypothesis does not copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from lockstep.harness.contracts.operation import Source
from lockstep.harness.programs.program import Program

Draw = Callable[[Source], Program]
"""A function that makes a program from random choices."""

FEW = 96
"""The largest range from which an integer is drawn.

Hypothesis sometimes replaces a larger integer by a constant (100 or more) from a loaded
source file, and draws large integers less uniformly. With this limit, a seed gives the
same programs in every process, whichever modules the process has imported."""

EVEN = 4
"""A choice uses the rest of an integer if its range is at least EVEN times the limit.

Then no option is less than 3/4 as likely as another option."""


class ChoiceSource(Source):
    """A source whose choices come from Hypothesis.

    An integer may encode several choices, since drawing an integer takes as long as a
    small operation.

    The simplest choice is 0. The shrinker of Hypothesis lowers and deletes integers. Each
    operation begins with a new integer, so that the shrinker can delete the operation.
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
"""Health checks of Hypothesis that a strategy for programs cannot pass."""

LEAST = 2
"""The number of operations in the shortest program.

Hypothesis makes the first tenth of all examples as small as possible. After five of these
small examples were refused, it goes on to examples of every size."""


def make_strategy(draw: Draw, least: int = LEAST) -> st.SearchStrategy[Program]:
    """Makes a strategy of programs.

    Args:
        draw: makes a program from random choices.
        least: the smallest number of operations; see `LEAST`.
    """

    @st.composite
    def programs(draw_from: Any) -> Program:
        random = draw_from(st.randoms(use_true_random=False))
        program = draw(ChoiceSource(random))
        assume(len(program.ops) >= least)
        return program

    return programs()


def find_cache() -> Path | str:
    """Returns the folder where Hypothesis keeps the constants of source files.

    By default, Hypothesis makes a folder in the current folder. Without a folder, each
    worker process parses every imported module outside of site-packages, which takes half
    as long as the import of torch.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return caches / "lockstep" / "hypothesis" if caches.is_absolute() else os.devnull


class Ended(BaseException):
    """Ends a run of Hypothesis immediately.

    After an `Exception`, Hypothesis would run the program again and print it, which takes
    longer than drawing and checking a program.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error


def generate(
    count: int, number: int, draw: Draw, consume: Callable[[Program], None]
) -> None:
    """Draws programs, without shrinking.

    Args:
        count: the number of programs.
        number: the seed.
        draw: makes a program from random choices.
        consume: a function that is called with each program.
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

    set_hypothesis_home_dir(find_cache())
    try:
        check()
    except Ended as end:
        raise end.error from None
    finally:
        set_hypothesis_home_dir(None)  # the tests of this process keep their examples
