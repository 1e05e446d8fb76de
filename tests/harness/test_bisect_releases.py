"""`lockstep bisect` over the releases of a package, from options to report."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.bisect.releases import (
    find_declared,
    parse_range,
    parse_versions,
    select,
)
from tests.harness.bisecting import (
    AGREES,
    FAILS_TO_IMPORT,
    SHOWS,
    make_wheel,
    write_program,
)
from tests.harness.commands import Run

TOY = ("--backend", "toy_cache:make", "--cache", "cache")


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
    """What mended it, what cannot be told, and environments that are used again. A module
    of the same name on the user's PYTHONPATH does not come first."""
    write_program(tmp_path)
    (tmp_path / "toy_cache.py").write_text(FAILS_TO_IMPORT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
    package = (*TOY, "--package", "Toy.Cache", "--versions")
    ended = run_workers("bisect", "p.json", *package, "1.2..", "--json")
    found = json.loads(ended.out)
    assert (ended.status, found["releases"]) == (
        0,
        ["Toy.Cache 1.2", "Toy.Cache 1.10", "Toy.Cache 2.0"],
    )
    assert found["conclusion"].startswith(
        "Toy.Cache 2.0 mended it: Toy.Cache 1.10 shows layer-kv-update-contents,"
        " Toy.Cache 2.0 agrees; 3 of 3 tried"
    )
    made = sorted(path.name for path in (tmp_path / "cache" / "releases").iterdir())
    assert [name.rpartition("-")[0] for name in made] == [
        "toy-cache-1.10",
        "toy-cache-1.2",
        "toy-cache-2.0",
    ]
    for wheel in index.glob("*-1.2-*"):  # its environment is there
        wheel.write_bytes(b"not a wheel any more")
    ended = run_workers("bisect", "p.json", *package, "..1.2")
    assert ended.status == 2
    assert (
        "broke it between Toy.Cache 1.0 and Toy.Cache 1.2: Toy.Cache 1.0" in ended.words
    )
    assert "not testable: Toy.Cache 1.1; 3 of 3 tried" in ended.words
    assert "No module named 'a_module_that_nobody_has'" in ended.words or (
        "needs the package a_module_that_nobody_has" in ended.words
    )


def test_a_release_that_does_not_install_is_skipped(
    run_workers: Run, tmp_path: Path, index: Path
) -> None:
    write_program(tmp_path)
    for wheel in index.glob("*-1.0-*"):
        wheel.write_bytes(b"not a wheel")
    package = (*TOY, "--package", "toy-cache", "--versions", "1.0..1.1")
    ended = run_workers("bisect", "p.json", *package, "--json")
    found = json.loads(ended.out)
    assert (ended.status, found["change"]) == (2, None)
    assert found["conclusion"].startswith("nothing is known: no release could be tested")
    assert (
        "install toy-cache 1.0: the process ended with exit status"
        in (found["tried"][0]["words"])
    )
    assert not list((tmp_path / "cache" / "releases").glob("toy-cache-1.0*"))


@pytest.mark.parametrize(
    ("arguments", "more", "words"),
    [
        (
            "--package no-such-toy",
            {},
            "--package no-such-toy: no release can be installed here; pip: ERROR: No"
            " matching distribution found for no-such-toy",
        ),
        (
            "--package toy-cache",
            {"PIP_NO_INDEX": "0", "PIP_FIND_LINKS": "", "PIP_RETRIES": "0"}
            | {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"},
            "toy-cache: the package index cannot be reached; is there a network",
        ),
        (
            "--package toy-cache --versions 1.0..1.5",
            {},
            "--versions: toy-cache has no release 1.5; did you mean 1.",
        ),
        (
            "--package toy-cache --versions 2.0..",
            {},
            "toy-cache: a search needs two releases; there is 2.0",
        ),
    ],
)
def test_releases_that_are_not_there(
    run: Run,
    tmp_path: Path,
    index: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    more: dict[str, str],
    words: str,
) -> None:
    write_program(tmp_path)
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    ended = run("bisect", "p.json", *TOY, *arguments.split())
    assert (ended.status, ended.out) == (2, "")
    assert words in ended.words
    assert ended.err.count("\n") == 1


VERSIONS = [*map(Version, ("1.0", "1.1", "1.2", "1.9", "1.10", "2.0"))]


@pytest.mark.parametrize(
    ("text", "declared", "wanted"),
    [
        ("1.1..1.9", None, "1.1 1.2 1.9"),
        ("1.9..", None, "1.9 1.10 2.0"),
        ("..1.1", None, "1.0 1.1"),
        ("1.0..2", ">=1.2,<2", "1.2 1.9 1.10"),
    ],
)
def test_the_releases_of_a_range(text: str, declared: str | None, wanted: str) -> None:
    inside = None if declared is None else SpecifierSet(declared)
    chosen = select("toy", VERSIONS, parse_range(text), inside)
    assert " ".join(map(str, chosen)) == wanted


@pytest.mark.parametrize(
    ("text", "declared", "words"),
    [
        ("1.0..", ">=1.10,<2", "of 6 releases the backend is tested with 1.10"),
        ("1.0..1.0", None, "a search needs two releases; there is 1.0"),
        ("2.0..1.0", None, "a search needs two releases; there is none"),
        ("0.1..", None, "toy has no release 0.1"),
    ],
)
def test_a_range_with_too_few(text: str, declared: str | None, words: str) -> None:
    inside = None if declared is None else SpecifierSet(declared)
    with pytest.raises(UsageError, match=words):
        select("toy", VERSIONS, parse_range(text), inside)


@pytest.mark.parametrize("text", ["", "..", "1.0", "a..b", "1...2", "1..2..3"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(UsageError, match="give two versions"):
        parse_range(text)


def test_what_pip_lists_is_read() -> None:
    text = "toy (2.0)\nAvailable versions: 2.0, 1.10, odd-one, 1.9\n  LATEST: 2.0\n"
    assert parse_versions(text) == [*map(Version, ("1.9", "1.10", "2.0"))]
    assert parse_versions("nothing of this kind") == []


def test_the_range_that_a_backend_declares() -> None:
    """Of what its extra asks for, through the extras that this one names."""
    declared = find_declared("mlx-lm", "MLX_lm")
    assert declared is not None and "0.32.1" in declared and "0.31.3" not in declared
    assert find_declared("mlx-lm", "numpy") is None
    assert find_declared("toy_cache:make", "toy-cache") is None
