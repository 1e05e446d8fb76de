"""Exceptions, and functions that make foreign text safe for terminals and JSON.

Each exception says what, where and what to do.
"""

from __future__ import annotations

import math
import signal
import traceback
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any


class UsageError(Exception):
    """The command cannot run as it was asked to (exit status 2). The message is for the
    user."""


class Unavailable(Exception):
    """A backend is not here: it needs a package, a device or a setting that this machine
    does not have. A factory may raise it. The message says what to do."""


class Unloadable(Exception):
    """A backend is broken: its module, its factory or its declaration is wrong (exit
    status 2). The message says where."""


class DeviceLost(BaseException):
    """A device answers no more in this process: an illegal access on CUDA makes every
    later call fail. The process ends, so that no later program is blamed."""


class Broken(Exception):
    """The backend's answer is malformed: no trace could contain it.

    Attributes:
        what: the name of the difference, as in a signature.
        operation: the operation to blame, if it is not the one that was running.
        is_late: whether it happened before the running step, so that the step before is
            to blame.
    """

    def __init__(
        self,
        what: str,
        message: str,
        operation: str | None = None,
        is_late: bool = False,
    ) -> None:
        super().__init__(message)
        self.what = what
        self.operation = operation
        self.is_late = is_late


class Reported(Exception):
    """An exception that the harness raises in the name of a backend: its process has told
    of it."""


class HarnessError(Exception):
    """The harness or the reference failed, not the backend (exit status 2).

    Attributes:
        program: was running; a `Program`.
    """

    def __init__(self, message: str, program: Any) -> None:
        super().__init__(message)
        self.program = program


# --- text from outside ------------------------------------------------------------------


MOST = 300

# The harness and the reference: an exception that is raised there does not come from a
# backend's code. What stands between a native cache and the harness counts as the cache.
OWN = (Path(__file__).parents[1], Path(__file__).parents[2] / "reference")
NATIVE = OWN[0] / "backends" / "native.py"

STANDARD_LIBRARY = Path(traceback.__file__).parent
INSTALLED = {"site-packages", "dist-packages"}


def clean(text: str, most: int = MOST) -> str:
    """`text` on one line, without control characters; the middle of a long text is left
    out."""
    words = " ".join(text[: 4 * most].split() + text[4 * most :][-4 * most :].split())
    words = make_printable(words)
    if len(words) <= most:
        return words
    return f"{words[: most // 2]} … {words[-most // 2 :]}"


def make_printable(text: str) -> str:
    """`text` with a dot in place of each control character, line breaks included."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "·" for letter in text)


def format_error(error: BaseException) -> str:
    """An exception's type and message, even if the message cannot be read."""
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        return f"SystemExit: exit status {error.code or 0}"
    try:
        message = clean(str(error))
    except Exception:
        message = "(its message cannot be read)"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def format_raised(error: BaseException) -> str:
    """The exception that a backend raised, and where in its code."""
    place = find_place(error)
    return f"raised {format_error(error)}" + (f", in {place}" if place else "")


def format_missing(error: NotImplementedError) -> str:
    """The part that is not written yet, its place, and its author's words."""
    message, place = clean(str(error)), find_place(error)
    if place is None:  # it was told by a process, which names the part
        return f"{message} is not written yet"
    return f"{place} is not written yet" + (f": {message}" if message else "")


def format_needed(part: str, operation: str) -> str:
    """A part that is not written yet, from `format_missing`, and the operation that needs
    it."""
    is_itself = part.startswith(f"{operation} ")
    return part if is_itself else f"{part}; {operation} needs it"


def find_place(error: BaseException) -> str | None:
    """The function that raised, with file and line; None if the harness itself did, or if
    the exception is of a file that was not run."""
    frames = traceback.extract_tb(error.__traceback__)
    *_, last = (frame for frame in frames if not frame.filename.startswith("<frozen"))
    if isinstance(error, SyntaxError):  # its message names the file and the line
        return None
    return None if is_own(last) or is_native(last) else format_frame(last)


def find_own_place(error: BaseException) -> str | None:
    """The function of the harness or the reference that failed, with file and line.

    None if a backend took part: if the exception was raised elsewhere, in code that a
    backend has called, or in the name of a backend.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, Reported) or not is_own(frames[-1]):
        return None
    return format_frame(frames[-1]) if all(map(is_harmless, frames)) else None


def is_own(frame: traceback.FrameSummary) -> bool:
    path = Path(frame.filename)
    return any(map(path.is_relative_to, OWN)) and not is_native(frame)


def is_native(frame: traceback.FrameSummary) -> bool:
    return Path(frame.filename) == NATIVE


def is_harmless(frame: traceback.FrameSummary) -> bool:
    """Whether no code of a backend runs in a frame."""
    path = Path(frame.filename)
    is_standard = path.is_relative_to(STANDARD_LIBRARY) or frame.filename.startswith("<")
    return is_own(frame) or (is_standard and INSTALLED.isdisjoint(path.parts))


def format_frame(frame: traceback.FrameSummary) -> str:
    return f"{frame.name} ({clean(Path(frame.filename).name)}:{frame.lineno})"


MOST_ITEMS = 1000
"""Of a list that a backend answered; the middle of a longer one is left out."""


def make_plain(value: Any) -> Any:
    """`value` as JSON can hold it: anything but numbers, text, lists and mappings becomes
    text, and long lists are cut."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    if isinstance(value, list | tuple):
        if len(value) > MOST_ITEMS:
            half = MOST_ITEMS // 2
            value = [*value[:half], f"… {len(value)} items …", *value[-half:]]
        return [make_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): make_plain(item) for name, item in value.items()}
    try:
        return clean(repr(value))
    except Exception:
        return f"a {type(value).__name__}"


def format_plain(value: Any) -> str:
    """What a backend answered, for a sentence."""
    return clean(str(make_plain(value)))


def format_exit(code: int) -> str:
    """Words for the end of a process; `code` is its return code in `subprocess`."""
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"the process was ended by {names.get(-code, f'signal {-code}')}"
    return f"the process ended with exit status {code}"


def shorten(text: str, most: int = 120) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
