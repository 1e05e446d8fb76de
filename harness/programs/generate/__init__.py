"""Generators of programs: a source of choices, and a drawer that makes programs of them.

"hypothesis" takes a seed for every 25 programs from Hypothesis, "choices" each choice of
it, as tests of other projects do. One more makes all programs: `exhaustive`.
"""

from collections.abc import Mapping
from typing import Any

from lockstep.harness.programs.generate import drawer as plain


def generate(*arguments: Any) -> None:
    """Calls `hypothesis.generate`; only the process that draws imports Hypothesis."""
    from lockstep.harness.programs.generate import hypothesis

    hypothesis.generate(*arguments)


def generate_choices(*arguments: Any) -> None:
    """Calls `hypothesis.generate_choices`."""
    from lockstep.harness.programs.generate import hypothesis

    hypothesis.generate_choices(*arguments)


GENERATORS: Mapping[str, Any] = {
    "choices": generate_choices,
    "hypothesis": generate,
    "plain": plain.generate,
}
"""Name → the function that makes choices, and hands over programs."""
