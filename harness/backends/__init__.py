"""The declarations that authors of backends import.

The protocols of caches are in `interface`.
"""

from lockstep.harness.backends.backend import (
    Alignment,
    Backend,
    Duty,
    Inputs,
    Kind,
    Lifetime,
    Planted,
)
from lockstep.harness.core.errors import Unavailable

__all__ = [
    "Alignment",
    "Backend",
    "Duty",
    "Inputs",
    "Kind",
    "Lifetime",
    "Planted",
    "Unavailable",
]
