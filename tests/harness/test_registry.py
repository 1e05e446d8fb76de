"""Backends by name: what is not there, or not what it says, is told in one line."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.core.errors import Unloadable, UsageError
from lockstep.harness.workers.registry import get_target, load
from tests.harness import misbehaving
from tests.harness.commands import CORRECT, HERE
from tests.harness.misbehaving import OPERATIONS, correct

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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch-cpuu", "did you mean torch-cpu"),
        ("zzz", "`lockstep backends` lists them"),
        (":", "`lockstep backends` lists them"),
        ("a b:make", "package.module:factory"),
        ("a.b:c:d", "package.module:factory"),
        ("os.system('x'):f", "package.module:factory"),
    ],
)
def test_an_unknown_name(name: str, words: str) -> None:
    with pytest.raises(UsageError, match="no backend has this name") as caught:
        get_target(name)
    assert words in str(caught.value)


def test_a_name_may_be_a_module_and_a_factory() -> None:
    assert get_target("a.b:make") == "a.b:make"
    assert load(CORRECT).name == "misbehaving"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{HERE}:corect", "no factory corect; did you mean correct"),
        (f"{HERE}:PID_FILE", ":PID_FILE is a str, not a function"),
        (f"{HERE}.py:correct", f"write {HERE}:FACTORY, without .py"),
        ("tests.harness.misbehavin:correct", "there is no module tests.harness.misbehav"),
        ("nowhere.at.all:make", "there is no module nowhere"),
        (f"{HERE}:", "no factory"),
        (f"{HERE}:factory_raises", "its factory raised OSError: the driver is too old"),
        (f"{HERE}:factory_returns_five", "its factory returned int, not a Backend"),
        (f"{HERE}:lacks_a_method", "has no method size"),
        (f"{HERE}:cannot_open", "opening a kv cache raised OSError: no device"),
    ],
)
def test_what_is_not_there(name: str, words: str) -> None:
    with pytest.raises(Unloadable) as caught:
        load(name)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


KV = Kind(OPERATIONS)


@pytest.mark.parametrize(
    ("contracts", "words"),
    [
        ({"layers": {"kv": KV}}, '"layers", an unknown contract; did you mean layer?'),
        ({"unified": {"causal": KV}}, 'its `errors` has no exception class for "cache-'),
        ({"layer": {"rotation": KV}}, '"rotation", an unknown kind of layer; did you'),
        (
            {"layer": {"kv": Kind(frozenset({"update", "trimm"}))}},
            '"trimm", an unknown operation of layer; did you mean trim',
        ),
        (
            {"layer": {"kv": Kind(OPERATIONS, {"head": (1,)})}},
            '"head", an unknown config field of layer; did you mean head',
        ),
        ({"layer": {"kv": {"update", "trim"}}}, "kv"),
        (
            {"layer": {"kv": Kind(["update"])}},  # type: ignore
            "kv with operations as a list; give a frozenset",
        ),
        ({"layer": {"kv": Kind(frozenset({"updat"}))}}, "did you mean update?"),
        ({"layer": {"kv": Kind(OPERATIONS, {"heads": 1})}}, "heads"),  # type: ignore
    ],
)
def test_what_is_not_what_it_says(
    monkeypatch: pytest.MonkeyPatch, contracts: Any, words: str
) -> None:
    declared = replace(correct(), contracts=contracts)
    monkeypatch.setattr(misbehaving, "correct", lambda: declared)
    with pytest.raises(Unloadable) as caught:
        load(CORRECT)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


class Swapped(misbehaving.Cache):
    def trim(self) -> int:  # type: ignore[override]
        return 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtypes": "float32"}, "dtypes as a str; give a tuple: ('float32',)"),
        ({"arrays": None}, "its `arrays` (NoneType) has no method from_numpy, to_numpy"),
        (
            {"open": lambda config: Swapped()},
            "(Swapped) has trim() -> 'int', which is called as trim(count): too many",
        ),
    ],
)
def test_parts_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, changes: Any, words: str
) -> None:
    """The author is told, and not that the harness failed."""
    declared = replace(correct(), **changes)
    monkeypatch.setattr(misbehaving, "correct", lambda: declared)
    with pytest.raises(Unloadable) as caught:
        load(CORRECT)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("tolerance", "dim", "words"),
    [
        (0.06, 4, None),
        (0.07, 8, None),
        (0.07, 4, "kv with key_dim 4, but needs at least 8"),
        (0.4, 8, "declare, for example, config key_dim: [32]"),
        (0.95, 64, "tolerance 0.95 is too large to distinguish numbers"),
        (-0.1, 64, "declares tolerance=-0.1"),
    ],
)
def test_a_tolerance_at_which_tokens_look_alike(
    monkeypatch: pytest.MonkeyPatch, tolerance: float, dim: int, words: str | None
) -> None:
    kind = Kind(OPERATIONS, {"key_dim": (dim,), "value_dim": (dim,)})
    contracts = {"layer": {"kv": kind}}
    declared = replace(correct(), contracts=contracts, tolerance=tolerance)
    monkeypatch.setattr(misbehaving, "correct", lambda: declared)
    if words is None:
        load(CORRECT)
        return
    with pytest.raises(Unloadable) as caught:
        load(CORRECT)
    assert words in str(caught.value)


BROKEN = [
    # text of the module, words of the message
    ("1 / 0", "importing written raised ZeroDivisionError: division by zero, in <modul"),
    ("1 / 0", "(written.py:1)"),
    ("def make(:", "importing written raised SyntaxError: invalid syntax (written.py, l"),
    ("from math import sinus", "raised ImportError: cannot import name 'sinus' from 'ma"),
    ("import numpy.nowhere", "raised ModuleNotFoundError: No module named 'numpy.nowh"),
    ("import written.more", "ModuleNotFoundError: No module named 'written.more'"),
    ("raise ModuleNotFoundError", "raised ModuleNotFoundError, in <module> (written.p"),
    ("import sys; sys.exit(3)", "raised SystemExit: exit status 3, in <module> (writ"),
    ("import sys; sys.exit('no disk')", "raised SystemExit: no disk"),
    ("raise KeyboardInterrupt", "raised KeyboardInterrupt, in <module> (written.py:1)"),
    ("make = 5", "written:make is a int, not a function"),
    ("def make(): raise OSError('odd')", "its factory raised OSError: odd, in make ("),
    ("def make(): import sys; sys.exit()", "raised SystemExit: exit status 0, in make"),
    ("def make(): import numpy.nowhere", "No module named 'numpy.nowhere'"),
    ("from tests.harness.misbehaving import *\ndef make():\n  return replace(correct(),"
     " contracts=5)", "checking its declaration raised AttributeError: "),
    ("from tests.harness.misbehaving import *\nmake = lambda: declare(lambda: throw("
     "SystemExit(4)))", "opening a kv cache raised SystemExit: exit status 4"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), BROKEN)
def test_a_module_that_is_broken(
    write: Write, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    """As in a worker, which ignores Ctrl-C."""
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN)
    with pytest.raises(Unloadable) as caught:
        load(f"{write(text)}:make")
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        ({"useage": ValueError}, '"useage", an unknown refusal; did you mean usage?'),
        ({"usage": "ValueError"}, 'no exception class for "usage"'),
        ({"usage": Exception}, 'has Exception for "usage", but every failure is'),
    ],
)
def test_errors_that_are_no_refusals(
    monkeypatch: pytest.MonkeyPatch, errors: Any, words: str
) -> None:
    declared = replace(correct(), errors=errors)
    monkeypatch.setattr(misbehaving, "correct", lambda: declared)
    with pytest.raises(Unloadable, match=re.escape(words)):
        load(CORRECT)


def test_ctrl_c_of_the_user_while_a_backend_is_loaded(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process that does not ignore it."""
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        load(f"{write('raise KeyboardInterrupt')}:make")
