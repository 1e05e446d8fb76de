"""Reads the kits for drivers in other languages, which `lockstep new-backend` copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from lockstep.harness.core.errors import UsageError


@dataclass(frozen=True)
class Language:
    """The files of a kit.

    Attributes:
        kit: the file that implements the protocol.
        example: the file with example caches and their declarations.
        build: the command that builds `{program}` from `{kit}` and `{source}`; empty if
            nothing has to be built.
        start: the command that runs the driver.
        joint: the replacement for - in file names.
        kinds: the kinds that the example declares.
    """

    kit: str
    example: str
    build: str
    start: str = "{program}"
    joint: str = "_"
    kinds: tuple[str, ...] = ("kv", "rotating", "causal")


LANGUAGES: Mapping[str, Language] = {
    "c": Language(
        "lockstep.h", "example.c", "gcc -std=c11 -O2 {source} -o {program} -lm"
    ),
    "rust": Language(
        "lockstep.rs",
        "example.rs",
        "rustc --edition 2021 -O {source} -o {program}",
        kinds=("kv", "rotating"),
    ),
    "go": Language(
        "lockstep.go",
        "example.go",
        "go build -o {program} {kit} {source}",
        joint="",  # Go ignores _x.go, x_windows.go and x_test.go
        kinds=("kv", "rotating"),
    ),
    "javascript": Language("lockstep.js", "example.js", "", "node {source}"),
}


def read_kit(language: str, name: str, kind: str) -> tuple[str, str]:
    """Returns the source of a kit, and its example with the name `name`.

    Raises:
        UsageError: the example has no cache of this kind.
    """
    names = LANGUAGES[language]
    if kind not in names.kinds:
        known = ", ".join(names.kinds)
        raise UsageError(
            f"--kind {kind}: the example in {language} has only {known}; choose one of"
            " these, or leave out --language for a driver in Python, which can have"
            " any kind"
        )
    folder = files("lockstep.impl") / "kits" / language
    kit, example = folder / names.kit, folder / names.example
    text = example.read_text(encoding="utf-8").replace(f"kit-{language}", name)
    return kit.read_text(encoding="utf-8"), text
