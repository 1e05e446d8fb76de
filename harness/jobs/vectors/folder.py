"""Writes a set to a folder, and replaces nothing but a former set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lockstep.harness.core.errors import UsageError
from lockstep.harness.programs.vectors.manifest import MANIFEST, read_manifest

DRAFT = f"{MANIFEST}.draft"


def list_replaced(folder: Path) -> list[Path]:
    """The files of a former set in the folder, which a new set replaces.

    Raises:
        UsageError: the folder holds anything else.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder}: is not a folder; choose another with -o")
    if not folder.exists():
        return []
    try:
        present = sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read: {error.strerror}") from None
    if not present:
        return []
    try:
        former = {MANIFEST, DRAFT, *read_manifest(folder)}
    except UsageError as error:
        raise UsageError(
            f"{folder}: is not empty, and holds no set of vectors that could be replaced"
            f" ({error}); choose another folder with -o"
        ) from None
    for path in present:
        if path.name not in former or (path.is_dir() and not path.is_symlink()):
            raise UsageError(
                f"{path}: does not belong to the set of vectors in this folder; move it,"
                " or choose another folder with -o"
            )
    return present


def write_set(
    folder: Path, replaced: list[Path], contents: Mapping[str, bytes], manifest: bytes
) -> None:
    """Writes the files. The manifest first: if this breaks off, it names what is there,
    and the next set can take its place."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in replaced:
            if path.name != MANIFEST:
                path.unlink(missing_ok=True)
        draft = folder / DRAFT
        create(draft, manifest)
        draft.replace(folder / MANIFEST)
        for name, content in contents.items():
            create(folder / name, content)
    except OSError as error:
        place = error.filename or folder
        raise UsageError(f"{place}: cannot be written: {error.strerror}") from None


def create(path: Path, content: bytes) -> None:
    """A new file: never through a link, never over one that came in between."""
    with path.open("xb") as file:
        file.write(content)
