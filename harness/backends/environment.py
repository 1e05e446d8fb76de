"""What a failure was found under, and what differs from it where it is replayed.

No names of hosts or users: failures are handed on.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.harness import __version__
from lockstep.harness.core.printable import clean

MOST_VERSIONS = 8
"""Packages that are compared: what a file says is data, and may be too much."""


def get_surroundings(declared: Mapping[str, Any]) -> dict[str, Any]:
    """For `meta`: versions, device and platform. declared: a worker's event that has the
    versions and the device of the backend."""
    own = {"python": platform.python_version(), "kv-lockstep": __version__}
    return {
        "versions": {**declared["versions"], **own},
        "device": declared["device"],
        "platform": f"{platform.system()} {platform.machine()}",
    }


def compare_surroundings(
    meta: Mapping[str, Any], backend: str, here: Mapping[str, Any]
) -> str | None:
    """What differs between where a failure was found and here, in words; None if its file
    does not say where that was.

    meta: of the failure. backend: the one that is run here. here: see `get_surroundings`.
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
    """What differs, on either side, in words; only what the file says is compared."""
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
