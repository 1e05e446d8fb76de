"""Generators of programs: random, from Hypothesis, exhaustive."""

from collections.abc import Mapping
from typing import Any

from lockstep.harness.programs.generate import drawer as plain
from lockstep.harness.programs.generate import hypothesis

GENERATORS: Mapping[str, Any] = {
    "hypothesis": hypothesis.generate,
    "plain": plain.generate,
}
