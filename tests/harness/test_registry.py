"""Backends by name: what is not there, or not what it says, is told in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.harness.backends.backend import Backend
from lockstep.harness.core.errors import Unavailable, UsageError
from lockstep.harness.workers.registry import get_target, list_names, load

Find = Callable[[str], Backend]
Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes the module `written` and gives its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> str:
        (tmp_path / "written.py").write_text(text)
        return "written"

    yield write
    sys.modules.pop("written", None)


def test_registered_names_are_known_in_order() -> None:
    names = list(list_names())
    assert names == sorted(names)
    assert {"torch-cpu", "torch-cuda", "mlx-cpu", "mlx-lm"} <= {*names}
    assert get_target("torch-cpu") == "lockstep.impl.torch.backend:cpu"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch-cpuu", "did you mean torch-cpu"),
        ("torch_cpu", "did you mean torch-cpu"),
        ("zzz", "known: "),
        ("", "known: "),
        (":", "known: "),
        ("a b:make", "package.module:factory"),
        ("a.b:c:d", "package.module:factory"),
        ("os.system('x'):f", "package.module:factory"),
    ],
)
def test_an_unknown_name(name: str, words: str) -> None:
    with pytest.raises(UsageError, match="no backend has this name") as caught:
        get_target(name)
    assert words in str(caught.value)


def test_a_name_may_be_a_module_and_a_factory(find: Find) -> None:
    assert get_target("a.b:make") == "a.b:make"
    assert find("correct").name == "misbehaving"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tests.harness.misbehaving:corect", "no factory corect; did you mean correct"),
        ("tests.harness.misbehaving:PID_FILE", "has no factory PID_FILE"),
        ("tests.harness.misbehavin:correct", "there is no module tests.harness.misbehav"),
        ("nowhere.at.all:make", "there is no module nowhere"),
        ("misbehaving:", "no factory"),
    ],
)
def test_what_is_not_there(find: Find, name: str, words: str) -> None:
    with pytest.raises(Unavailable) as caught:
        load(name)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("factory_raises", "its factory raised OSError: the driver is too old"),
        (
            "factory_returns_five",
            "its factory returned int, not a Backend",
        ),
        ("lacks_a_method", "has no method size"),
        ("cannot_open", "opening a kv cache raised OSError: no device"),
        ("no_errors", 'unified kinds, but its errors name no exception class for "ca'),
        ("unknown_contract", '"layers", which is no contract; did you mean layer?'),
        ("unknown_kind", '"rotation", which is no kind of layer; did you mean rotating'),
        ("unknown_operation", '"trimm", which is no operation of layer; did you mean tr'),
        ("unknown_field", '"head", which is no config field of layer; did you mean head'),
        ("kind_is_a_set", "kv"),
        ("field_is_a_number", "heads"),
    ],
)
def test_what_is_not_what_it_says(find: Find, name: str, words: str) -> None:
    with pytest.raises(Unavailable) as caught:
        find(name)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import no_such_package", "needs the package no_such_package: pip install no_"),
        ("1 / 0", "importing written raised ZeroDivisionError"),
        ("def make(:", "importing written raised SyntaxError"),
        ("make = 5", "has no factory make"),
    ],
)
def test_a_module_that_cannot_be_imported(write: Write, text: str, words: str) -> None:
    with pytest.raises(Unavailable) as caught:
        load(f"{write(text)}:make")
    assert words in str(caught.value)
