"""Checks that the packages of a registered backend are installed in tested versions.

An entry point names the extra of its distribution that the backend needs, such as
``mlx-lm = "lockstep.impl.peers.mlx_lm:mlx_lm [peers]"``. In a version that this extra
excludes, the library's interface may differ, and a divergence would not prove a bug in
its caches. Therefore, the backend does not run with such a version.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lockstep.harness.core.errors import Unavailable


def require_packages(entry: EntryPoint, unsupported: bool = False) -> None:
    """Checks that the packages in the extras of an entry point are installed.

    Args:
        entry: the entry point of a backend.
        unsupported: accept untested versions.

    Raises:
        Unavailable: a package is not installed, or its version is not tested.
    """
    if entry.dist is None:
        return
    extras = list_extras(entry)
    install = f"pip install '{entry.dist.name}[{','.join(extras)}]'"
    for needed in list_requirements(entry.dist, extras):
        try:
            installed = version(needed.name)
        except PackageNotFoundError:
            raise Unavailable(f"needs the package {needed.name}: {install}") from None
        if unsupported:
            continue
        if not needed.specifier.contains(installed, prereleases=True):
            raise Unavailable(
                f"unsupported version: {needed.name} {installed} is installed; tested"
                f" with {needed.name} {needed.specifier}: {install} --upgrade"
            )


def list_extras(entry: EntryPoint) -> list[str]:
    """Lists the extras that an entry point names. `EntryPoint.extras` would cut the
    names at hyphens."""
    _, _, named = entry.value.partition("[")
    return [name.strip() for name in named.rstrip("] ").split(",") if name.strip()]


def list_requirements(
    distribution: Distribution, extras: list[str]
) -> Iterator[Requirement]:
    """Lists the requirements of a distribution's extras on this platform. An extra may
    name other extras of the distribution."""
    distribution_name = canonicalize_name(distribution.name)
    for needed in map(Requirement, distribution.requires or ()):
        if needed.marker is None or not any(
            needed.marker.evaluate({"extra": extra}) for extra in extras
        ):
            continue
        if canonicalize_name(needed.name) == distribution_name:
            yield from list_requirements(distribution, sorted(needed.extras))
        else:
            yield needed
