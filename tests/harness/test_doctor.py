"""`lockstep doctor` says which engines are missing, and how they are installed."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError

import pytest

from lockstep.harness.cli import doctor
from lockstep.harness.workers.messages import Declared, Refused
from tests.harness.commands import ROOT, Run

INSTALL = "pip install --no-deps -r ci/engines/vllm.txt"


@pytest.mark.parametrize(
    ("installed", "words"),
    [
        (None, f"– vllm 0.33.0 is not installed: {INSTALL}"),
        ("0.32.1", f"– vllm 0.32.1 is installed; tested with 0.33.0: {INSTALL}"),
        ("0.33.0", "✓ vllm 0.33.0"),
        ("0.33.0+cpu", "✓ vllm 0.33.0+cpu"),
    ],
)
def test_an_engine(
    run: Run, monkeypatch: pytest.MonkeyPatch, installed: str | None, words: str
) -> None:
    def version(package: str) -> str:
        if package == "vllm" and installed is not None:
            return installed
        raise PackageNotFoundError(package)

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(doctor, "list_names", lambda: {"reference": ""})
    ended = run("doctor")
    assert ended.status == 0
    assert words in ended.out.splitlines()


def test_a_package_that_is_missing_and_backends_that_are(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line for each reason, with the extra that installs what is missing."""

    def version(package: str) -> str:
        raise PackageNotFoundError(package)

    absent = {name: Refused("needs snow") for name in ("b", "c", "d", "e")}
    found = {"a": Declared({}, "cpu", {}, [], 1), **absent}
    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(doctor, "declare_all", lambda names, settings: found)
    lines = run("doctor").out.splitlines()
    assert "– torch is not installed: pip install 'kv-lockstep[torch]'" in lines
    assert "– pytest-xdist is not installed: pip install 'kv-lockstep[test]'" in lines
    assert lines[-2:] == ["✓ can be checked: a", "– needs snow, for b, c, d, 1 more"]


def test_the_extras_are_those_of_the_package() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = table["optional-dependencies"]
    for package, install in doctor.PACKAGES.items():
        extra = install.removeprefix("kv-lockstep").strip("[]")
        listed = extras[extra] if extra else table["dependencies"]
        assert package in {re.split(r"[<>=;\[]", one)[0] for one in listed}


@pytest.mark.parametrize(("package", "tested"), doctor.ENGINES.items())
def test_the_file_it_names_pins_that_version(package: str, tested: str) -> None:
    pins = (ROOT / "ci" / "engines" / f"{package}.txt").read_text()
    assert re.findall(rf"^{package}==(.*)$", pins, re.M) == [tested]
