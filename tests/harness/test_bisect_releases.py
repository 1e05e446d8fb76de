"""`lockstep bisect` over the releases of a package, from options to report."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.version import Version

from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.bisect import sources
from lockstep.harness.jobs.bisect.sources import select
from tests.harness.bisecting import (
    AGREES,
    FAILS_TO_IMPORT,
    SHOWS,
    make_wheel,
    write_program,
)
from tests.harness.commands import Run

TOY = ("--backend", "toy_cache:make")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five releases of a package, and no other index."""
    if find_spec("pip") is None:
        pytest.skip("pip is not installed")
    for version, text in {
        "1.0": AGREES,
        "1.1": FAILS_TO_IMPORT,
        "1.2": SHOWS,
        "1.10": SHOWS,
        "2.0": AGREES,
    }.items():
        make_wheel(tmp_path / "wheels", version, text)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return tmp_path / "wheels"


def test_releases_of_a_package(
    run_workers: Run, tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What mended it, and what cannot be told. A module of the same name on the user's
    PYTHONPATH does not come first."""
    write_program(tmp_path)
    (tmp_path / "toy_cache.py").write_text(FAILS_TO_IMPORT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
    package = (*TOY, "--package", "Toy.Cache", "--versions")
    ended = run_workers("bisect", "p.json", *package, "1.2..")
    assert ended.status == 0
    assert ended.out.splitlines()[-1] == (
        "Toy.Cache 2.0 mended it: Toy.Cache 1.10 shows layer-kv-update-contents,"
        " Toy.Cache 2.0 agrees; 3 of 3 tried"
    )
    ended = run_workers("bisect", "p.json", *package, "..1.2")
    assert ended.status == 2
    between = "broke it between Toy.Cache 1.0 and Toy.Cache 1.2: Toy.Cache 1.0 agrees"
    assert between in ended.words
    assert "not testable: Toy.Cache 1.1; 3 of 3 tried" in ended.words
    assert "a_module_that_nobody_has" in ended.words


def test_a_release_that_does_not_install_is_skipped(
    run_workers: Run, tmp_path: Path, index: Path
) -> None:
    write_program(tmp_path)
    for wheel in index.glob("*-1.0-*"):
        wheel.write_bytes(b"not a wheel")
    package = (*TOY, "--package", "toy-cache", "--versions", "1.0..1.1")
    ended = run_workers("bisect", "p.json", *package)
    assert ended.status == 2
    assert "nothing is known: no release could be" in ended.words
    assert "install toy-cache 1.0: the process ended with exit status" in ended.words


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        ("--package no-such-toy", {}, "No matching distribution found for no-such-toy"),
        (
            "--package toy-cache",
            {"PIP_NO_INDEX": "0", "PIP_FIND_LINKS": "", "PIP_RETRIES": "0"}
            | {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"},
            "no release can be installed here; pip: ",
        ),
        (
            "--package toy-cache --versions 1.0..1.5",
            {},
            "--versions: toy-cache has no release 1.5; did you mean 1.",
        ),
    ],
)
def test_releases_that_are_not_there(
    run: Run,
    tmp_path: Path,
    index: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    variables: dict[str, str],
    message: str,
) -> None:
    write_program(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ended = run("bisect", "p.json", *TOY, *arguments.split())
    assert (ended.status, ended.out) == (2, "")
    assert message in ended.words
    assert ended.err.count("\n") == 1


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = [*map(Version, ("1.0", "1.1", "1.2", "1.9", "1.10", "2.0"))]
    monkeypatch.setattr(sources, "list_releases", lambda *arguments: versions)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1.1..1.9", "1.1 1.2 1.9"),
        ("1.9..", "1.9 1.10 2.0"),
        ("..1.1", "1.0 1.1"),
        ("1.0..1.0", "a search needs at least two releases; found: 1.0"),
        ("2.0..1.0", "a search needs at least two releases; found: none"),
        ("0.1..", "toy has no release 0.1"),
        *((text, "give two versions") for text in ("", "..", "1.0", "a..b")),
        *((text, "give two versions") for text in ("1...2", "1..2..3")),
    ],
)
def test_the_releases_of_a_range(listed: None, text: str, wanted: str) -> None:
    try:
        said = " ".join(map(str, select("toy", text)))
    except UsageError as error:
        said = str(error)
    assert wanted in said
