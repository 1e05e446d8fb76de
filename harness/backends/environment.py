"""Versions, device and platform: where a failure was found, and where it is replayed.

Names of hosts and users are left out, because failures are handed on.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.harness import __version__
from lockstep.harness.core.errors import clean

# Packages that are compared: a file is other people's data, and may name too many.
MOST_VERSIONS = 8


def get_environment(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Versions, device and platform, for the `meta` of a failure.

    Args:
        declared: a worker's event with the versions and the device of the backend.
    """
    own = {"python": platform.python_version(), "kv-lockstep": __version__}
    return {
        "versions": {**declared["versions"], **own},
        "device": declared["device"],
        "platform": f"{platform.system()} {platform.machine()}",
    }


def compare_environments(
    meta: Mapping[str, Any], backend: str, here: Mapping[str, Any]
) -> str | None:
    """Words for the differences between this place and the one of a failure.

    Args:
        meta: of the failure.
        backend: the backend that runs here.
        here: see `get_environment`.

    Returns:
        None if the failure's file does not say where it was found.
    """
    if not isinstance(meta.get("versions"), Mapping):
        return None
    pairs = list(list_pairs(meta, {"backend": backend, **here}))
    found, now = ([words[side] for words in pairs] for side in (0, 1))
    if not pairs:
        return "found with the same versions on the same device"
    return f"found with {', '.join(found)}; here with {', '.join(now)}"


def list_pairs(
    found: Mapping[str, Any], here: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Differences, in words for either side. Only what the file names is compared."""
    versions = [
        (clean(name), clean(version))
        for name, version in found["versions"].items()
        if isinstance(version, str)
    ]
    for name, version in versions[:MOST_VERSIONS]:
        now = here["versions"].get(name)
        if now != version:
            yield f"{name} {version}", f"{name} {now}" if now else f"no {name}"
    for name in ("device", "platform", "backend"):
        said = found.get(name)
        if isinstance(said, str) and said != here[name]:
            yield f"{name} {clean(said)}", f"{name} {here[name]}"
