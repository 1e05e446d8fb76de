"""A released engine: its pinned version, and the modules that are not loaded of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from lockstep.harness.backends import Unavailable


@dataclass(frozen=True)
class StandIn:
    """A module that is not loaded, with all that is in it.

    Attributes:
        name: dotted. Of another package than the engine's, it stands in only where that
            package is not installed.
        reason: why the block manager does without the module, or what it is for.
        holds: the names that the block manager does use.
    """

    name: str
    reason: str
    holds: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Engine:
    """A released engine.

    Attributes:
        package: its distribution and import package.
        version: the only one that is loaded, since modules are chosen by name. Its local
            part ("+cpu") does not matter.
        pins: the requirements file to install with `--no-deps`.
        needs: distributions beside it that its block manager really uses.
        bare: packages that are loaded without their `__init__`.
        stand_ins: modules that are not loaded.
    """

    package: str
    version: str
    pins: str
    needs: Sequence[str]
    bare: Sequence[str]
    stand_ins: Sequence[StandIn]

    @property
    def install(self) -> str:
        return f"pip install --no-deps -r {self.pins}"


def require_installed(engine: Engine) -> None:
    """Requires the pinned version of an engine and what its block manager uses.

    Raises:
        Unavailable: the message says what is missing, and what to do.
    """
    name = f"{engine.package} {engine.version}"
    try:
        installed = version(engine.package)
    except PackageNotFoundError:
        raise Unavailable(f"{name} is not installed: {engine.install}") from None
    if Version(installed).public != engine.version:
        raise Unavailable(
            f"unsupported version: {engine.package} {installed} is installed; tested with"
            f" {engine.version}, whose modules are loaded one by one: {engine.install}"
        )
    for needed in engine.needs:
        if not is_installed(Requirement(needed)):
            raise Unavailable(f"{name} needs the package {needed}: pip install {needed}")


def has_dependencies(engine: Engine) -> bool:
    """Whether all packages that an engine requires are installed, as it requires them."""
    return all(
        is_installed(needed)
        for needed in map(Requirement, distribution(engine.package).requires or ())
        if needed.marker is None or needed.marker.evaluate({"extra": ""})
    )


def is_installed(needed: Requirement) -> bool:
    try:
        return needed.specifier.contains(version(needed.name), prereleases=True)
    except PackageNotFoundError:
        return False
