"""Ways to make programs. What comes after is the same for all."""

from collections.abc import Mapping
from typing import Any

from lockstep.harness.programs.generate import hypothesis
from lockstep.harness.programs.generate import random as plain

GENERATORS: Mapping[str, Any] = {
    "hypothesis": hypothesis.generate,
    "plain": plain.generate,
}
