"""Defines exceptions, and functions that make untrusted text safe for terminals and JSON.

The message of an exception says what happened, where, and what to do.
"""

from __future__ import annotations

import math
import signal
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any


class UsageError(Exception):
    """The command cannot run with the given arguments or files (exit status 2). The
    message is for the user."""


class Problems:
    """Collects the messages of several UsageErrors, so that a file is refused with all
    its errors at once."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Keeps the message of a UsageError that the `with` body raises."""
        try:
            yield
        except UsageError as error:
            self.messages.append(str(error))

    def check(self, where: str = "") -> None:
        """Raises UsageError if there are messages; `where` begins its message."""
        if self.messages:
            raise UsageError(where + "; ".join(self.messages))


class Unavailable(Exception):
    """A backend needs a package, a device or a setting that this machine does not have.
    A factory may raise this exception. The message says what to do."""


class Excluded(Unavailable):
    """A program breaks a precondition of callers, which the backend declares (`Duty`)."""


class Unloadable(Exception):
    """A backend is broken: its module, its factory or its declaration is wrong (exit
    status 2). The message says where."""


class DeviceLost(BaseException):
    """A device no longer works in this process: after an illegal access, every later CUDA
    call fails. The process ends, so that no later program is blamed."""


class Broken(Exception):
    """The backend returned a malformed result, which cannot be written to a trace.

    Attributes:
        what: the name of the difference, as in a signature.
        operation: the operation that failed, if it is not the running operation.
        is_late: whether the error happened in the step before the running step.
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
    """An exception of a backend in another process, which reported it. The harness raises
    this exception on behalf of the backend."""


class HarnessError(Exception):
    """The harness or the reference failed, not the backend (exit status 2).

    Attributes:
        program: the `Program` that was running.
    """

    def __init__(self, message: str, program: Any) -> None:
        super().__init__(message)
        self.program = program


# --- untrusted text ---------------------------------------------------------------------


MOST = 300

# The folders of the harness and the reference. An exception that is raised in these
# folders does not come from a backend's code, except in `native.py`, the layer between a
# native cache and the harness, which counts as part of the cache.
OWN = (Path(__file__).parents[1], Path(__file__).parents[2] / "reference")
NATIVE = OWN[0] / "backends" / "native.py"

STANDARD_LIBRARY = Path(traceback.__file__).parent
INSTALLED = {"site-packages", "dist-packages"}


def clean(text: str, most: int = MOST) -> str:
    """Returns `text` on one line, without control characters. Cuts out the middle of a
    long text."""
    words = " ".join(text[: 4 * most].split() + text[4 * most :][-4 * most :].split())
    words = make_printable(words)
    if len(words) <= most:
        return words
    return f"{words[: most // 2]} … {words[-most // 2 :]}"


def make_printable(text: str) -> str:
    """Replaces each control character of `text`, line breaks included, by a dot."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "·" for letter in text)


def format_error(error: BaseException) -> str:
    """Returns the type and message of an exception, even if `str` fails on it."""
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        return f"SystemExit: exit status {error.code or 0}"
    try:
        message = clean(str(error))
    except Exception:
        message = "(its message cannot be read)"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def format_raised(error: BaseException) -> str:
    """Describes an exception that a backend raised, with its location in the code."""
    location = find_place(error)
    return f"raised {format_error(error)}" + (f", in {location}" if location else "")


def format_missing(error: NotImplementedError) -> str:
    """Names the unimplemented function, its location and the message of its author."""
    message, location = clean(str(error)), find_place(error)
    if location is None:  # another process reported the error; its message has the name
        return f"{message} is not written yet"
    return f"{location} is not written yet" + (f": {message}" if message else "")


def format_needed(part: str, operation: str) -> str:
    """Adds to `part`, a text from `format_missing`, the name of the operation that needs
    the unimplemented function."""
    is_itself = part.startswith(f"{operation} ")
    return part if is_itself else f"{part}; {operation} needs it"


def find_place(error: BaseException) -> str | None:
    """Returns the function that raised an exception, with file and line.

    Returns None if the harness raised it, and for a SyntaxError, because its message
    contains the file and line.
    """
    frames = traceback.extract_tb(error.__traceback__)
    *_, last = (frame for frame in frames if not frame.filename.startswith("<frozen"))
    if isinstance(error, SyntaxError):
        return None
    return None if is_own(last) or is_native(last) else format_frame(last)


def find_own_place(error: BaseException) -> str | None:
    """Returns the failed function of the harness or the reference, with file and line.

    Returns None if a backend may be the cause: the exception was raised outside the
    harness, in code that a backend called, or on behalf of a backend.
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
    """Returns whether the code of a frame belongs to the harness or to the standard
    library."""
    path = Path(frame.filename)
    is_standard = path.is_relative_to(STANDARD_LIBRARY) or frame.filename.startswith("<")
    return is_own(frame) or (is_standard and INSTALLED.isdisjoint(path.parts))


def format_frame(frame: traceback.FrameSummary) -> str:
    return f"{frame.name} ({clean(Path(frame.filename).name)}:{frame.lineno})"


MOST_ITEMS = 1000
"""The maximum length of a list from a backend; the middle of a longer list is cut out."""


def make_plain(value: Any) -> Any:
    """Converts `value` to a JSON value. Numbers, text, lists and mappings keep their
    type, other values become text, and long lists are cut."""
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
    """Formats the result of a backend for a sentence."""
    return clean(str(make_plain(value)))


def format_exit(code: int) -> str:
    """Describes the end of a process from its `subprocess` return code."""
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"the process was ended by {names.get(-code, f'signal {-code}')}"
    return f"the process ended with exit status {code}"


def shorten(text: str, most: int = 120) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
