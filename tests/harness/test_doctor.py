"""`lockstep doctor` says which engines are missing, and how they are installed."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError

import pytest

from lockstep.harness.cli import doctor
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


@pytest.mark.parametrize(("package", "tested"), doctor.ENGINES.items())
def test_the_file_it_names_pins_that_version(package: str, tested: str) -> None:
    pins = (ROOT / "ci" / "engines" / f"{package}.txt").read_text()
    assert re.findall(rf"^{package}==(.*)$", pins, re.M) == [tested]
