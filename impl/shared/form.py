"""The form that all K and V in one cache have."""

from __future__ import annotations

from typing import Any

from lockstep.impl.shared.errors import MisuseError

Arrays = tuple[Any, Any]
"""A pair of arrays: K and V, or the two parts of a recurrent state."""


class Form:
    """Checks the K and V that go into a cache.

    Attributes:
        form: batch, heads, dimensions and dtypes of the arrays; None before the first
            write.
        accepted: shapes and dtypes of the last arrays that `accept` checked.
    """

    def __init__(self) -> None:
        self.form: tuple[Any, ...] | None = None
        self.accepted: tuple[Any, ...] | None = None

    def accept(self, arrays: Arrays) -> None:
        """Checks the form of K and V before a write, which would broadcast a wrong one
        silently.

        Arrays of the same shapes and dtypes as the last ones are not checked again.

        Raises:
            MisuseError: K and V do not belong together, or differ from what is held.
        """
        keys, values = arrays
        looks = keys.shape, values.shape, keys.dtype, values.dtype
        if self.form is not None and looks == self.accepted:
            return
        if len(keys.shape) != 4 or len(values.shape) != 4:
            raise MisuseError(
                f"K {list(keys.shape)} and V {list(values.shape)} are not [batch, heads,"
                " tokens, dim]"
            )
        if keys.shape[:3] != values.shape[:3]:
            raise MisuseError(
                f"K {list(keys.shape)} and V {list(values.shape)} differ in batch, heads"
                " or length"
            )
        form = (*keys.shape[:2], keys.shape[3], values.shape[3], keys.dtype, values.dtype)
        if self.form is None:
            self.form = form
        elif form != self.form:
            raise MisuseError(
                f"batch, heads, key_dim, value_dim, dtypes are {list(form)}; this cache"
                f" holds {list(self.form)}"
            )
        self.accepted = looks
