"""Defines a third-party engine: its pinned version, and the modules not to load."""

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
    """A module that a stand-in replaces, together with all its submodules.

    Attributes:
        name: the dotted name. A module of another package is not replaced if that package
            is installed.
        reason: why the block manager does not need the module, or for what it uses the
            module.
        holds: the names that the block manager uses.
    """

    name: str
    reason: str
    holds: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Engine:
    """A third-party engine.

    Attributes:
        package: the name of its import package.
        version: the supported version. No other version is supported, because the list of
            modules fits one version. The local part of a version ("+cpu") is ignored.
        pins: the requirements file to install with `--no-deps`.
        needs: other distributions that the block manager uses.
        bare: packages that are loaded without their `__init__`.
        stand_ins: modules that are not loaded.
        distribution: the name of its distribution; None if it is that of the package.
    """

    package: str
    version: str
    pins: str
    needs: Sequence[str]
    bare: Sequence[str]
    stand_ins: Sequence[StandIn]
    distribution: str | None = None

    @property
    def name(self) -> str:
        return self.distribution or self.package

    @property
    def install(self) -> str:
        return f"pip install --no-deps -r {self.pins}"


def require_installed(engine: Engine) -> None:
    """Requires the pinned version of an engine and the packages of its block manager.

    Raises:
        Unavailable: a distribution is missing, or has another version. The message names
            the distribution and the command that installs it.
    """
    name = f"{engine.name} {engine.version}"
    try:
        installed = version(engine.name)
    except PackageNotFoundError:
        raise Unavailable(f"{name} is not installed: {engine.install}") from None
    if Version(installed).public != engine.version:
        raise Unavailable(
            f"unsupported version: {engine.name} {installed} is installed; only"
            f" {engine.version} is tested: {engine.install}"
        )
    for needed in engine.needs:
        if not is_installed(Requirement(needed)):
            raise Unavailable(f"{name} needs the package {needed}: pip install {needed}")


def has_dependencies(engine: Engine) -> bool:
    """Returns whether every package that an engine requires is installed in a version
    that the engine accepts."""
    return all(
        is_installed(needed)
        for needed in map(Requirement, distribution(engine.name).requires or ())
        if needed.marker is None or needed.marker.evaluate({"extra": ""})
    )


def is_installed(needed: Requirement) -> bool:
    try:
        return needed.specifier.contains(version(needed.name), prereleases=True)
    except PackageNotFoundError:
        return False
