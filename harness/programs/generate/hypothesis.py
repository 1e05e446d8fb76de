"""Draws programs from Hypothesis, which also mutates earlier choices.

Hypothesis does not shrink here. It would take hundreds of runs on its choices; the domain
passes of `harness.execution.shrink` take tens on the program itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from lockstep.harness.contracts.operation import Source
from lockstep.harness.programs.program import Program

BASE, ROOM = 1 << 100, 1 << 24
"""Integers are drawn from [BASE, BASE + ROOM). Hypothesis mixes constants from the loaded
source files into its draws. None is that large, so a seed gives the same programs in each
process, whatever it has imported. BASE is also far enough from zero for even choices."""

CHUNKS = st.integers(BASE, BASE + ROOM - 1)


class HypothesisSource(Source):
    """Choices from Hypothesis, several from each integer that it draws.

    A draw costs twenty times as much as a choice.
    """

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self.draw = draw
        self.value, self.room = 0, 1

    def below(self, limit: int) -> int:
        if self.room < limit:
            self.value, self.room = self.draw(CHUNKS) - BASE, ROOM
        self.value, choice = divmod(self.value, limit)
        self.room //= limit
        return choice


def generate(
    count: int,
    number: int,
    draw: Callable[[Source], Program],
    consume: Callable[[Program], None],
) -> None:
    """Draws programs from Hypothesis.

    Args:
        count: the greatest number of programs.
        number: the seed.
        draw: makes a program from choices.
        consume: is called with each program.
    """
    raised: list[Exception] = []

    @st.composite
    def programs(draw_from: Any) -> Program:
        return draw(HypothesisSource(draw_from))

    @seed(number)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=[
            HealthCheck.too_slow,  # a shard may share its core
            HealthCheck.data_too_large,  # a long program is allowed
            HealthCheck.large_base_example,
        ],
    )
    @given(programs())
    def check(program: Program) -> None:
        # Hypothesis repeats a program that raised, and calls it flaky if it then passes.
        if raised:
            raise raised[0]
        try:
            consume(program)
        except Exception as error:
            raised.append(error)
            raise

    check()
