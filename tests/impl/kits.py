"""The kits for drivers: how each example is built, and where its compiler comes from."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KITS = ROOT / "impl" / "kits"


@dataclass(frozen=True)
class Kit:
    """One language.

    Attributes:
        files: the kit and its example, in `impl/kits/LANGUAGE/`.
        package: the package of Debian that has the compiler.
        command: builds the example into `driver`; empty if it needs no building.
        start: what runs the program.
        written: what stands in the example for the operation `size` of kv, and
        unwritten: what declares it without a function.
    """

    language: str
    files: tuple[str, ...]
    package: str
    command: str
    written: str
    unwritten: str
    start: str = "{program}"

    def find_compiler(self) -> str:
        """Its path. Skips the test if it is not installed."""
        name = shlex.split(self.command or self.start)[0]
        return shutil.which(name) or pytest.skip(
            f"{name} is not on PATH; Debian's package {self.package} has it"
        )

    def build(self, folder: Path, old: str = "", new: str = "") -> str:
        """Copies the kit and its example, with one thing in the example replaced if so
        asked, and compiles them; returns the command that runs the driver."""
        compiler = self.find_compiler()
        folder.mkdir()
        for name in self.files:
            text = (KITS / self.language / name).read_text()
            if old and name == self.files[-1]:
                assert old in text
                text = text.replace(old, new)
            (folder / name).write_text(text)
        if self.command:
            _, *arguments = shlex.split(self.command)
            caches = {"GOCACHE": str(folder.parent / "go")}
            done = subprocess.run(
                [compiler, *arguments],
                cwd=folder,
                env={**os.environ, **caches},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout + done.stderr
        program = "driver" if self.command else self.files[-1]
        return self.start.format(program=folder / program)


KIT = {
    kit.language: kit
    for kit in (
        Kit(
            "c",
            ("lockstep.h", "example.c"),
            "gcc",
            "gcc -std=c11 -Wall -Wextra -Werror -O1 example.c -o driver -lm",
            '{"size", size}',
            '{"size", 0 ? size : NULL}',  # used, or the compiler warns
        ),
        Kit(
            "cpp",
            ("lockstep.hpp", "example.cpp"),
            "g++",
            "g++ -std=c++17 -Wall -Wextra -Werror example.cpp -o driver",
            '{"size", &Layer::size}',
            '{"size", nullptr}',
        ),
        Kit(
            "rust",
            ("lockstep.rs", "example.rs"),
            "rustc",
            "rustc --edition 2021 -D warnings example.rs -o driver",
            '("size", Some(Layer::size))',
            '("size", false.then(|| Layer::size as fn(&mut Layer, &Message, &mut Answer)'
            " -> Answered<()>))",  # used, too
        ),
        Kit(
            "go",
            ("lockstep.go", "example.go"),
            "golang-go",
            "go build -o driver lockstep.go example.go",
            '{"size", (*layer).size}',
            '{"size", nil}',
        ),
        Kit(
            "swift",
            ("lockstep.swift", "example.swift"),
            "swiftlang",
            "swiftc lockstep.swift example.swift -o driver",
            '("size", Layer.size)',
            '("size", nil)',
        ),
        Kit(
            "javascript",
            ("lockstep.js", "example.js"),
            "nodejs",
            "",
            "state: view, view, size",
            "state: view, view, size: null",
            "node {program}",
        ),
    )
}
