"""A report into a folder: our files, and no other."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from lockstep.harness.core.errors import UsageError

SIGN = "Lockstep"
"""Stands near the beginning of every file of ours."""

LOOKED_AT = 2000


def save_page(folder: Path, name: str, text: str) -> Path:
    """Writes folder/name, whole or not at all. Raises UsageError for a folder that cannot
    be made or written, and for a file there that is not ours."""
    path = folder / name
    draft = folder / f".{name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if is_foreign(path):
            raise UsageError(
                f"{path}: is there already and is no report of ours; choose another"
                " folder with -o"
            )
        draft.unlink(missing_ok=True)  # of one that was killed
        try:
            with draft.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
            draft.replace(path)
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
    except FileExistsError:
        raise UsageError(f"{folder}: is a file; -o takes a folder") from None
    except NotADirectoryError:
        raise UsageError(f"{folder}: lies below a file; -o takes a folder") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return path


def is_foreign(path: Path) -> bool:
    """Whether something of this name is there that no report has written."""
    if not path.exists() and not path.is_symlink():
        return False
    if not path.is_file() or path.is_symlink():
        return True
    with path.open("rb") as file:
        return SIGN.encode() not in file.read(LOOKED_AT)
