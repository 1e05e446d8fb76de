"""The reference with one mistake each, to see that it is caught by the relations alone.

A mistake is a function that is given a way to replace a method. `reference` makes the
reference with the mistake that an environment variable names, as a backend: what
`lockstep check --backend tests.harness.mistaken:reference` runs in a worker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.execution.metamorphic.reference import REFERENCE
from tests.harness import (
    mistaken_layers,
    mistaken_parts,
    mistaken_prefix,
    mistaken_unified,
)

Replace = Callable[[Any, str, Any], None]
Mistake = Callable[[Replace], None]

MISTAKES: Mapping[str, tuple[str, Mistake]] = {
    **mistaken_layers.MISTAKES,
    **mistaken_unified.MISTAKES,
    **mistaken_parts.MISTAKES,
    **mistaken_prefix.MISTAKES,
}
"""name → (kind, how to plant it)"""

CHOSEN = "LOCKSTEP_TEST_MISTAKE"


def reference() -> Backend:
    _, plant = MISTAKES[os.environ[CHOSEN]]
    plant(setattr)
    return REFERENCE
