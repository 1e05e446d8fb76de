"""Text from outside, made fit for a line on a terminal and for a JSON file."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

MOST = 300


def clean(text: str, most: int = MOST) -> str:
    """`text` on one line, without what a terminal would act on, its middle left out if it
    is long."""
    words = " ".join(text[: 4 * most].split() + text[4 * most :][-4 * most :].split())
    words = "".join(letter if letter.isprintable() else "·" for letter in words)
    if len(words) <= most:
        return words
    return f"{words[: most // 2]} … {words[-most // 2 :]}"


def say_error(error: BaseException) -> str:
    """An exception's type and message, whatever its author made of the latter."""
    try:
        message = clean(str(error))
    except Exception:
        message = "(its message cannot be read)"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def make_plain(value: Any) -> Any:
    """`value` as JSON can hold it: what is no plain number, text, list or mapping of such
    becomes words."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    if isinstance(value, list | tuple):
        return [make_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): make_plain(item) for name, item in value.items()}
    try:
        return clean(repr(value))
    except Exception:
        return f"a {type(value).__name__}"

def say_exit(code: int) -> str:
    """How a process ended. code: as `subprocess` has it."""
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"the process was ended by {names.get(-code, f'signal {-code}')}"
    return f"the process ended with exit status {code}"
