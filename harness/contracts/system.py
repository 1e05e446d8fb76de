"""A backend as the caches of one program: what every contract with arrays shares."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.interface import Array
from lockstep.harness.contracts.arrays.reading import SAMPLE, Promises, get_phase
from lockstep.harness.contracts.types import Op
from lockstep.harness.core.errors import Broken


class System:
    """The system under test, for one program.

    The executor calls `settle(op)` before each operation and `finish()` at the end: both
    check that arrays that were handed out still hold what they must. `margin` is the
    largest error so far of what has a tolerance, as a share of that. After
    `tell_layout()` answers name the columns that came back, and those that each row sees.

    Args:
        backend: what is tested.
        config: a complete config.
        tags: how many tags the program has.
        every: watch the arrays of every step and put each through attention.
        writes: the operations after which a view of the cache need not hold.
    """

    margin: float

    def __init__(
        self,
        backend: Backend,
        config: Mapping[str, Any],
        tags: int,
        every: bool,
        writes: Collection[str],
    ) -> None:
        self.backend, self.arrays = backend, backend.arrays
        self.config = {**config, "poison": backend.poison}
        self.every, self.writes = every, writes
        self.limit = max(1, tags)
        self.phase = get_phase(self.limit)
        self.promises = Promises(backend.arrays)
        self.tells_layout = False

    def tell_layout(self) -> None:
        self.tells_layout = True

    def settle(self, op: Op) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.promises.check()

    def is_sampled(self, tag: int) -> bool:
        """Says whether the pass that begins with `tag` gets the costly checks."""
        return self.every or (tag + self.phase) % SAMPLE == 0

    def overwrite(self, arrays: Sequence[Array]) -> None:
        """Writes other numbers into arrays that a cache was given, as a model does."""
        if self.backend.overwrite:
            for array in arrays:
                self.backend.overwrite(array)


def judge_attention(
    got: npt.NDArray[Any], wanted: npt.NDArray[Any], tolerance: float, row: int, name: str
) -> float:
    """Compares one row of attention with the reference's.

    Args:
        got: [heads, value_dim], computed by the backend's framework.
        wanted: the same by the reference, in double precision.
        tolerance: the largest error that is allowed.
        row: its number.
        name: the operation whose arrays were attended to.

    Returns:
        The error as a share of the tolerance.

    Raises:
        Broken: the error is larger.
    """
    error = float(np.abs(got - wanted).max())
    if not error <= tolerance:
        raise Broken(
            "attention",
            f"attention over the arrays of {name} is off by {error:.2g} in row {row},"
            f" allowed {tolerance:.2g}; K, V and the mask are as expected",
        )
    return error / tolerance


def ask(call: Callable[[], Any]) -> Any:
    """Returns what the call answers, or {"error": "usage"} if it raises ValueError."""
    try:
        return call()
    except ValueError:
        return {"error": "usage"}
