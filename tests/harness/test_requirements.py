"""A registered backend runs only with versions that its distribution is tested with."""

from __future__ import annotations

import json
from importlib.metadata import distributions, entry_points, version
from pathlib import Path

import numpy as np
import pytest

from lockstep.harness.backends.driver.client import Limits
from lockstep.harness.core.errors import Unavailable
from lockstep.harness.workers.registry import GROUP, load
from lockstep.harness.workers.requirements import list_extras, list_requirements
from tests.harness.building import make, update
from tests.harness.commands import CORRECT, Run

HERE = {one.name for one in distributions()}


def register(folder: Path, *requirements: str, extra: str = "engine") -> None:
    """Makes a distribution that registers a correct backend as "mine"."""
    info = folder / "mine-1.dist-info"
    info.mkdir()
    needed = [f"Requires-Dist: {text}" for text in requirements]
    header = ["Metadata-Version: 2.1", "Name: mine", "Version: 1", *needed]
    (info / "METADATA").write_text("\n".join(header) + "\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nmine = {CORRECT} [{extra}]\n")


@pytest.mark.parametrize(
    ("requirements", "why"),
    [
        (
            ["numpy<1; extra == 'engine'"],
            f"unsupported version: numpy {np.__version__} is installed; tested with numpy"
            " <1: pip install 'mine[engine]' --upgrade",
        ),
        (
            ["mine[base]; extra == 'engine'", "numpy<1; extra == 'base'"],
            f"unsupported version: numpy {np.__version__} is installed",
        ),
        (
            ["no-such-engine>=2; extra == 'engine'"],
            "needs the package no-such-engine: pip install 'mine[engine]'",
        ),
    ],
)
def test_what_is_not_tested_is_not_run(
    requirements: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path, *requirements)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Unavailable) as caught:
        load("mine")
    assert str(caught.value).startswith(why)


def test_the_range_of_an_extra_with_a_hyphen_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """importlib.metadata makes two extras of it."""
    register(tmp_path, "numpy<1; extra == 'engine-two'", extra="engine-two")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Unavailable, match=r"pip install 'mine\[engine-two\]'"):
        load("mine")


def test_a_version_that_is_not_tested_runs_where_it_is_asked_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path, "numpy<1; extra == 'engine'")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "p.json").write_text(json.dumps(make(update(3)).to_json()))
    assert run("replay", "p.json", "--backend", "mine").status == 2
    ended = run("replay", "p.json", "--backend", "mine", "--unsupported", "--json")
    (replayed,) = json.loads(ended.out)["replayed"]
    assert (ended.status, replayed["status"]) == (0, "AGREES")
    assert replayed["signature"] is None


def test_what_is_not_installed_is_asked_for_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path, "no-such-engine; extra == 'engine'")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Unavailable, match="needs the package no-such-engine"):
        load("mine", Limits(unsupported=True))


def test_every_backend_of_a_framework_says_what_it_needs() -> None:
    for entry in entry_points(group=GROUP):
        if entry.module.startswith("lockstep.impl"):
            assert entry.dist is not None
            needed = list(list_requirements(entry.dist, list_extras(entry)))
            assert needed, entry.name
            for one in needed:
                # vllm-mlx needs an earlier mlx-lm, in an environment of its own.
                if one.name in HERE and "vllm-mlx" not in str(one.marker):
                    assert one.specifier.contains(version(one.name)), (entry.name, one)
                assert {">=", "<"} <= {
                    each.operator
                    for other in needed
                    if other.name == one.name
                    for each in other.specifier
                }, f"{entry.name} has no range of versions of {one.name}"
