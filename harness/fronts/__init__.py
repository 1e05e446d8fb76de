"""Ways to make programs. What comes after is the same for all."""

from collections.abc import Mapping
from typing import Any

from lockstep.harness.fronts import hypothesis, plain

FRONTS: Mapping[str, Any] = {
    "hypothesis": hypothesis.generate,
    "plain": plain.generate,
}
