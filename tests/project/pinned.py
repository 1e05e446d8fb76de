"""Tests that hold only with the versions of `ci/constraints.txt`."""

from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]


def has_pinned(*packages: str) -> pytest.MarkDecorator:
    """Skips a test unless these packages are installed as they are pinned: numbers of
    generated programs, layout and types differ between versions."""
    lines = (ROOT / "ci" / "constraints.txt").read_text().splitlines()
    pins = {one.name: one for one in map(Requirement, filter(is_pin, lines))}
    others = [name for name in packages if not pins[name].specifier.contains(get(name))]
    reason = f"ci/constraints.txt has another version of {', '.join(others)}"
    return pytest.mark.skipif(bool(others), reason=reason)


def is_pin(line: str) -> bool:
    return bool(line) and not line.startswith("#")


def get(package: str) -> Version:
    return Version(version(package))
