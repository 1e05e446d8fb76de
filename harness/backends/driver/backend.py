"""A driver as a backend, found by name: "exec:program arguments"."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.backends.driver.client import Driver
from lockstep.harness.backends.driver.declaration import make_backend
from lockstep.harness.backends.driver.fields import Malformed, find_number
from lockstep.harness.backends.driver.layer import KINDS as LAYER
from lockstep.harness.backends.driver.limits import Limits
from lockstep.harness.backends.driver.prefix import PrefixCache, SlotsCache
from lockstep.harness.backends.driver.unified import open_unified
from lockstep.harness.core.errors import UsageError

PREFIX = "exec:"


def is_driver(name: str) -> bool:
    """Whether the name of a backend is that of a driver."""
    return name.startswith(PREFIX)


def split_command(name: str) -> list[str]:
    """The program and its arguments. No shell has a part in it. Raises UsageError."""
    text = name.removeprefix(PREFIX)
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--backend {name}: {str(error).lower()}") from None
    if not command:
        raise UsageError(
            f"--backend {name}: names no program; give one as exec:./my-driver, with its"
            " arguments behind it"
        )
    return [find_program(command[0], name), *command[1:]]


def find_program(program: str, name: str) -> str:
    """Its path: in the current folder, or on PATH. Raises UsageError."""
    here = Path(program)
    if here.is_file():
        if not os.access(here, os.X_OK):
            raise UsageError(
                f"--backend {name}: {program} cannot be executed; chmod +x {program}, or"
                " name what runs it before it, as in exec:python3 driver.py"
            )
        return str(here.absolute())
    found = shutil.which(program)
    if found is None:
        what = "is a folder" if here.is_dir() else "is not there"
        raise UsageError(
            f"--backend {name}: {program} {what}, nor is it a program on PATH; the"
            f" current folder is {Path.cwd()}"
        )
    return found


def list_files(name: str) -> Iterator[Path]:
    """The files that a driver is made of, as far as its command names them."""
    for part in split_command(name):
        if Path(part).is_file():
            yield Path(part)


def load_driver(name: str, limits: Limits) -> Backend:
    """Starts the driver, and takes what it declares. Raises Broken, and UsageError."""
    driver = Driver(split_command(name), limits)
    hello = driver.start()
    try:
        return make_backend(hello, Opener(driver, hello))
    except Malformed as malformed:
        driver.answer_is_wrong("hello", malformed)


class Opener:
    """Opens caches in a driver."""

    def __init__(self, driver: Driver, hello: Mapping[str, Any]) -> None:
        self.driver = driver
        self.causal = hello.get("causal", "lower-right")

    def __call__(self, config: Mapping[str, Any]) -> Any:
        driver, kind = self.driver, config["kind"]
        driver.start()
        driver.post_dropped()
        sent = {name: value for name, value in config.items() if name != "below"}
        answer = driver.ask("session", "open", config=sent)
        try:
            number = find_number(answer, "cache")
        except Malformed as malformed:
            driver.answer_is_wrong("open", malformed)
        if kind in LAYER:
            return LAYER[kind](driver, number, config, self.causal)
        if kind in ("session", "trie"):
            return PrefixCache(driver, number, config, self.causal)
        if kind == "slots":
            return SlotsCache(driver, number, config)
        return open_unified(driver, number, config)
