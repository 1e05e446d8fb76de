"""`lockstep known`: from a failure to an entry of the ledger, or to a duty."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.programs.inference import Example, infer
from tests.harness import paging
from tests.harness.building import make, trim, update
from tests.harness.commands import Run

CACHES = """
from dataclasses import replace
from lockstep.harness.backends.backend import Duty
from tests.harness import paging
from tests.harness.misbehaving import Cache, correct
from tests.harness.paging import Manager

class Short(Cache):
    def trim(self, count):
        is_wrong = self.offset >= 4 and count >= 2
        return super().trim(count - 1) if is_wrong else super().trim(count)

class Late(Cache):
    def trim(self, count):
        trimmed = super().trim(count)
        if trimmed >= 2 and self.offset:
            self.keys = self.keys.copy()
            self.keys[:, :, -1] = 0
        return trimmed

class Third(Cache):
    trims = 0

    def trim(self, count):
        self.trims += 1
        return super().trim(count) + (self.trims % 3 == 0)

class Evicts(Manager):
    def evict(self, count):
        return super().evict(count) + 1

def evicts():
    config = {"host": (0, 4)}
    duty = Duty({"op": "free", "states": ["loading"]}, "free during a load")
    declared = paging.declare(Evicts, config=config, duties=(duty,))
    return replace(declared, ledger=FOLDER)

def declare(cache):
    return replace(correct(), name=cache.__name__, open=lambda _: cache(), ledger=FOLDER)

short, late, third = [lambda c=c: declare(c) for c in (Short, Late, Third)]
"""

WHEN = {
    "op": "trim",
    "count": [2, None],
    "count - offset": [None, 0],
    "offset": [4, None],
}
"""The condition of `Short`: a trim of more tokens than there are empties the cache."""

PROGRAMS = {
    "short": make(update(4), trim(2)),
    "late": make(update(3), trim(2), {"op": "state"}),
    "third": make(update(4), trim(1), trim(1), trim(1)),
    "evicts": paging.make({"op": "evict", "count": 1}),
}


@pytest.fixture
def known(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`lockstep known` of a failure of a cache; checks its entry if it printed one."""
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    text = CACHES.replace("FOLDER", repr(str(ledger)))
    Path("caches_with_conditions.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "caches_with_conditions", raising=False)

    def call(name: str, *options: object) -> Any:
        Path("x.json").write_text(json.dumps(PROGRAMS[name].to_json()))
        backend = "--backend", f"caches_with_conditions:{name}"
        options = "--reason", "It is wrong.", "--programs", 60, *options
        return run("known", "x.json", *backend, *options)

    return call


def test_an_entry_has_the_exact_condition(known: Run, run: Run) -> None:
    ended = known("short", "--link", "https://example.org/7")
    assert (ended.status, "`when` is exact" in ended.err) == (0, True), ended.text
    entry = json.loads(ended.out)
    assert entry["when"] == WHEN
    assert entry["signature"] == "layer-kv-trim-result"
    assert entry["link"] == "https://example.org/7"
    check = "check", "--backend", "caches_with_conditions:short", "--programs", 80
    assert run(*check).status == 1
    Path("ledger", "short.json").write_text(json.dumps(entry))
    checked = run(*check)
    assert (checked.status, "1 known divergence" in checked.words) == (0, True)
    again = known("short")
    assert (again.status, "is a known divergence" in again.err) == (2, True)


def test_an_earlier_operation_may_lead_to_the_divergence(known: Run) -> None:
    ended = known("late")
    assert ended.status == 0, ended.text
    entry = json.loads(ended.out)
    when = {"op": "trim", "count": [2, None], "count - offset": [None, -1]}
    assert entry["when"] == when
    assert entry["operation"] == "state"


def test_a_duty_may_need_states_that_the_config_of_the_failure_lacks(known: Run) -> None:
    ended = known("evicts")
    assert ended.status == 0, ended.text
    assert json.loads(ended.out)["when"] == {"op": "evict"}


def test_a_duty_is_printed_as_python(known: Run) -> None:
    ended = known("short", "--duty")
    assert ended.out.strip() == f"Duty({WHEN!r}, 'It is wrong.'),"


def test_a_condition_that_nothing_decides_is_not_exact(known: Run) -> None:
    ended = known("third")
    assert (ended.status, "complete `when`" in ended.err) == (2, True), ended.text


def test_a_program_that_agrees_is_not_described(known: Run, run: Run) -> None:
    known("short")
    backend = "--backend", "tests.harness.misbehaving:correct"
    ended = run("known", "x.json", *backend, "--reason", "none")
    assert (ended.status, "agrees with the reference" in ended.err) == (2, True)


def list_examples(text: str) -> list[Example]:
    """ "+a3,s" diverges: the number a is 3, and the state is s; "-a2" agrees."""
    examples = []
    for word in text.split():
        sign, parts = word[0], word[1:].split(",")
        numbers = {part[0]: int(part[1:]) for part in parts if part[1:]}
        states = frozenset(part for part in parts if not part[1:])
        examples.append(Example(numbers, states, sign == "+"))
    return examples


@pytest.mark.parametrize(
    ("examples", "when"),
    [
        ("+a3", {}),
        ("+a3 +a5 -a2", {"a": [3, None]}),
        ("+a3 -a2 -a4", {"a": [3, 3]}),
        ("+a3 -b1", {"a": [3, None]}),  # a is null
        ("+a3 -a3", {}),  # nothing tells them apart
        ("+a3 +a3 -a3 -a4", {"a": [None, 3]}),
        ("+a1,s +a4,s,t -a2", {"states": ["s"]}),
        ("+a5,b5 +a12,b12 -a7,b8 -a10,b5 -a5,b10", {"a - b": [0, 0]}),
        ("+a2,b6 +a7,b1 -a3,b4 -a5,b2 -a2,b5 -a6,b1", {"a + b": [8, None]}),
        ("+a6,b3 +a9,b3 -a6,b4 -a8,b3 -a7,b3 -a9,b4", {"a % b": [None, 0]}),
    ],
)
def test_a_condition_is_inferred(examples: str, when: Mapping[str, Any]) -> None:
    assert infer("trim", list_examples(examples)) == {"op": "trim", **when}
