"""Tells whether code has changed since something was measured with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def hash_folders(root: Path, folders: Iterable[str]) -> str:
    """A digest of the Python code in folders. root: may be a copy without a
    repository."""
    digest = hashlib.sha256()
    files = [file for folder in folders for file in (root / folder).rglob("*.py")]
    for file in sorted(files):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
