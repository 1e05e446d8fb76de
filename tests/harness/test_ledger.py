"""The ledger of known divergences: what an entry covers, and files that are none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.backend import Kind
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.core.errors import UsageError
from lockstep.harness.jobs.outcome import Outcome, Pair
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.jobs.shards import Shards
from lockstep.harness.programs.condition import parse_condition
from lockstep.harness.programs.ledger import find_known, load_ledger
from lockstep.harness.programs.program import load_programs, walk
from lockstep.harness.workers.messages import Agreed, Found, RandomTask
from tests.harness.building import draw_some, forward, make, trim, update
from tests.harness.commands import Run, run_slice
from tests.harness.misbehaving import Cache, correct

PROGRAM = make(update(2), trim(1)).to_json()
ENTRY: dict[str, Any] = {
    "id": "one",
    "backend": "mine",
    "kind": "kv",
    "operation": "trim",
    "verdict": "bug",
    "reason": "It forgets to.",
    "link": None,
    "signature": "layer-kv-trim-result",
    "versions": {},
    "when": {"op": "trim", "count": [1, None]},
    "program": PROGRAM,
    "expected": "1",
    "got": "0",
}


def write(folder: Path, name: str, entry: Any) -> None:
    text = entry if isinstance(entry, str) else json.dumps(entry)
    (folder / f"{name}.json").write_text(text)


def test_the_entries_of_one_backend_are_loaded(tmp_path: Path) -> None:
    write(tmp_path, "b", {**ENTRY, "id": "two", "verdict": "misuse"})
    write(tmp_path, "a", ENTRY)
    write(tmp_path, "c", {**ENTRY, "backend": "other"})
    entries = load_ledger(tmp_path, "mine")
    assert [entry.id for entry in entries] == ["one", "two"]
    assert entries[0].program.count_tags() == 2
    assert load_ledger(None, "mine") == []


def leave_out(name: str) -> dict[str, Any]:
    return {field: value for field, value in ENTRY.items() if field != name}


def when(**more: Any) -> dict[str, Any]:
    """The entry for other trims."""
    return {**ENTRY, "when": {"op": "trim", **more}}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{", "is not JSON"),
        ("null", "one.json"),
        ("{}", "one.json"),
        (leave_out("reason"), "reason"),
        (leave_out("when"), "when"),
        (leave_out("link"), "is not a ledger entry: link is missing"),
        ({**ENTRY, "verdict": "maybe"}, "verdict: Invalid enum value 'maybe'"),
        ({**ENTRY, "program": {**PROGRAM, "contract": "layers"}}, "did you mean layer"),
        ({**ENTRY, "program": None}, "program: Expected `object`, got `null`"),
        ({**ENTRY, "when": {}}, "when"),
        ({**ENTRY, "when": []}, "when"),
        ({**ENTRY, "when": {"op": "trimm"}}, "when"),
        (when(cuont=[1, 2]), "cuont"),
        (when(count=3), "count"),
        (when(count=[1, 2, 3]), "count"),
        (when(count=["a", None]), "count"),
        (when(config={"windwo": [1, 2]}), "windwo"),
        (when(states=["warped"]), "warped"),
        (when(config=5), "Expected `object`, got `int`"),
        (when(states=5), "Expected `array`, got `int`"),
        ({**ENTRY, "signature": 3}, "signature"),
        ({**ENTRY, "surplus": 3}, 'unknown field "surplus"'),
        (
            {**ENTRY, "kind": "rotating"},
            'kind is "rotating", but the program has the kind "kv"',
        ),
        ({**ENTRY, "operation": "update"}, "signature"),
        ({**ENTRY, "signature": "layer-kv-trim-"}, "signature"),
        (when(states=["wrapped"]), "a kv cache of this config has no state"),
        (when(cache=[0, 0]), "cache is not a number"),
        (when(count=[2, 1]), "2, is greater than the upper bound, 1"),
        (when(count=[0, 10**6]), "1000000 is greater than the maximum"),
        (when(config={"step": [0, 4]}), "0 is less than the minimum of 1"),
        (when(config={"dtype": [0, 4]}), "dtype is not a number"),
        (
            when(config={"step": [None, 4]}),
            "no operation of the entry's own program",
        ),  # 256
        (when(offset=[3, None]), "no operation of the entry's own program"),
        (when(**{"offset - cuont": [0, 0]}), "did you mean count"),
        (when(**{"offset * count": [0, 0]}), "is not a number"),
        (when(**{"offset - 1": [0, 0]}), "is not a number"),
        (when(**{"(" * 99 + "offset": [0, 0]}), "is not a number"),
        (when(**{"": [0, 0]}), "is not a number"),
        ({**ENTRY, "when": {"op": "forward"}}, "did you mean"),
    ],
)
def test_a_broken_entry_is_refused(tmp_path: Path, entry: Any, words: str) -> None:
    """When it is loaded, not when the first operation happens to meet it."""
    write(tmp_path, "one", entry)
    with pytest.raises(UsageError) as caught:
        load_ledger(tmp_path, "mine")
    assert "one.json" in str(caught.value)
    assert words in str(caught.value)


def test_a_broken_entry_is_refused_with_all_its_errors(tmp_path: Path) -> None:
    entry = {**leave_out("reason"), "verdict": "maybe", "versions": {"mlx": 3}, "id": 1}
    ranges = {"count": [1.5, None], "cuont": [1, 2], "config": {"windwo": [1, 2]}}
    entry |= {"surplus": 3, "kind": "rotating", "when": {"op": "trim", **ranges}}
    write(tmp_path, "one", entry)
    with pytest.raises(UsageError) as caught:
        load_ledger(tmp_path, "mine")
    for words in (
        'is not a ledger entry: unknown field "surplus"; id: Expected `str`, got `int`',
        "; verdict: Invalid enum value 'maybe'; reason is missing; versions: Expected `s",
        '; kind is "rotating", but the program has the kind "kv"; signature is "layer-kv',
        "; when: count must be [low, high] (null: no bound), not [1.5, null]; when: unkn",
        '; when: config: unknown "windwo"; did you mean window',
    ):
        assert words in str(caught.value)


TRIM = trim(3, cache="a")


def test_a_range_over_a_list_is_refused(tmp_path: Path) -> None:
    program = make(forward([0], [0]), contract="unified", kind="causal").to_json()
    names = {"kind": "causal", "operation": "forward"}
    signature = "unified-causal-forward-mask"
    when = {"op": "forward", "positions": [0, 0]}
    entry = {**ENTRY, **names, "signature": signature, "program": program, "when": when}
    write(tmp_path, "one", entry)
    with pytest.raises(UsageError, match=r"positions is not a number.*rows"):
        load_ledger(tmp_path, "mine")
    write(tmp_path, "one", {**entry, "when": {"op": "forward", "rows": [1, 1]}})
    assert len(load_ledger(tmp_path, "mine")) == 1


def test_a_folder_may_be_text_and_must_be_there(tmp_path: Path) -> None:
    write(tmp_path, "one", ENTRY)
    assert len(load_ledger(str(tmp_path), "mine")) == 1
    with pytest.raises(UsageError, match="is not a folder"):
        load_ledger(str(tmp_path / "lost"), "mine")


def test_an_entry_is_about_its_kind_only(tmp_path: Path) -> None:
    write(tmp_path, "one", ENTRY)
    assert len(load_ledger(tmp_path, "mine", "kv")) == 1
    assert load_ledger(tmp_path, "mine", "rotating") == []
    (entry,) = load_ledger(tmp_path, "mine")
    assert find_known(make(update(1), trim(1)), [entry])
    assert not find_known(make(update(1), trim(1), kind="rotating", window=2), [entry])


@pytest.mark.parametrize(
    ("when", "covered"),
    [
        ({"op": "trim"}, True),
        ({"op": "update"}, False),
        ({"op": "trim", "count": [3, 3]}, True),
        ({"op": "trim", "count": [4, None]}, False),
        ({"op": "trim", "count": [None, 2]}, False),
        ({"op": "trim", "count": [None, None]}, True),
        ({"op": "trim", "offset": [5, 5]}, True),
        ({"op": "trim", "offset": [0, 4]}, False),
        ({"op": "trim", "config": {"window": [4, 4]}}, True),
        ({"op": "trim", "config": {"window": [5, None]}}, False),
        ({"op": "trim", "config": {"chunk": [None, None]}}, False),  # it has none
        ({"op": "trim", "states": ["wrapped"]}, True),
        ({"op": "trim", "states": ["wrapped", "mid-ring"]}, True),
        ({"op": "trim", "states": ["wrapped", "rewind"]}, False),
        ({"op": "trim", "states": ["wrapped"], "offset": [6, None]}, False),
        ({"op": "trim", "offset - count": [2, 2]}, True),
        ({"op": "trim", "offset - (count + window)": [-2, -2]}, True),
        ({"op": "trim", "offset - count + window": [6, 6]}, True),
        ({"op": "trim", "offset % window": [1, 1]}, True),
        ({"op": "trim", "offset % window": [0, 0]}, False),
        ({"op": "trim", "offset % chunk": [None, None]}, False),  # there is none
        ({"op": "trim", "offset % begun": [None, None]}, False),  # it is 0
        ({"op": "trim", "begun": [0, 0], "pending": [0, 0]}, True),
    ],
)
def test_when_an_operation_is_covered(when: Mapping[str, Any], covered: bool) -> None:
    """trim 3 in a window of 4 at offset 5."""
    program = make(update(5), TRIM, kind="rotating", window=4)
    model = program.rules.open_model(program.config)
    program.rules.operations["update"].run_reference(program.ops[0], model)
    condition = parse_condition(when, program.rules, program.config, "when")
    assert condition.holds(TRIM, model) is covered


def test_a_number_that_an_operation_does_not_have_is_not_within() -> None:
    program = make()
    model = program.rules.open_model(program.config)
    op = {"op": "snapshot", "from": 1, "into": "s", "cache": "a"}
    for name, covered in (("from", True), ("from - offset", True), ("chunk", False)):
        when = {"op": "snapshot", name: [1, 1]}
        condition = parse_condition(when, program.rules, program.config, "when")
        assert condition.holds(op, model) is covered


@pytest.mark.parametrize(
    ("ops", "facts"),
    [
        ([], (0, 0, 0, 0)),
        ([update(2)], (2, 0, 0, 2)),
        ([update(2), update(3)], (5, 2, 3, 5)),
        ([update(2), update(3), update(1)], (6, 5, 0, 6)),
        ([update(5), update(1)], (6, 5, 1, 6)),
        ([update(2), update(3), trim(4)], (1, 2, 3, 0)),
        ([update(2), trim(1), update(3)], (4, 1, 3, 3)),
        ([update(2), update(1), {"op": "free"}], (0, 0, 0, 0)),
        ([update(2), {"op": "clone", "into": "b"}, {"op": "free"}], (0, 0, 0, 0)),
    ],
)
def test_facts_about_a_layer_cache(ops: Any, facts: tuple[int, ...]) -> None:
    """Offset, where updates have begun, tokens behind the last block of four, and those
    since the last trim."""
    program = make(*ops, {"op": "size"}, step=4)
    *_, last = walk(program)
    names = dict(zip(("offset", "begun", "pending", "written"), facts, strict=True))
    assert last.model.get_facts(last.op) == names
    assert names.keys() == program.rules.facts.keys()


def test_a_cache_that_no_operation_has_named_has_facts() -> None:
    program = make()
    model = program.rules.open_model(program.config)
    assert set(model.get_facts(trim(0, cache="b")).values()) == {0}


def test_the_facts_are_documented() -> None:
    text = Path("harness/programs/README.md").read_text()
    for rules in CONTRACTS.values():
        for fact in rules.facts:
            assert f"`{fact}`" in text


def test_generation_keeps_clear_of_what_is_known(tmp_path: Path) -> None:
    write(tmp_path, "one", {**ENTRY, "when": {"op": "trim", "offset": [1, None]}})
    known = load_ledger(tmp_path, "mine")
    declared = Kind(frozenset({"update", "trim"}))
    most = []
    for avoid in ([], known):
        programs = draw_some(20, "layer", "kv", declared, 1, avoid=avoid)
        steps = (step for program in programs for step in walk(program, rows=False))
        offsets = [s.model.get("a").offset for s in steps if s.op["op"] == "trim"]
        most.append(max(offsets))
    assert most[0] > most[1] == 0


# --- programs that run on behind an operation that is known -----------------------------


def test_a_known_program_ends_where_the_divergence_shows(tmp_path: Path) -> None:
    """Behind the operation come those of the entry's program, about the same cache."""
    shows = {"operation": "update", "signature": "layer-kv-update-offset"}
    entry = {**ENTRY, **shows, "program": make(update(1), trim(1), update(1)).to_json()}
    write(tmp_path, "one", entry)
    known = load_ledger(tmp_path, "mine")
    clone = {"op": "clone", "into": "b"}
    program = make(update(5), clone, trim(2, cache="b"), update(9), update(9, cache="b"))
    found = find_known(program, known)
    assert found is not None
    assert (found.step, found.entry) == (2, known[0])
    wanted = make(update(5), clone, trim(2, cache="b"), update(1, cache="b"))
    assert found.program == wanted
    assert find_known(make(update(5), trim(0)), known) is None


OWN = """
from dataclasses import replace
from tests.harness.misbehaving import correct

def make():
    return replace(correct(), ledger={folder!r})
"""


def test_an_entry_that_nothing_runs_is_reported(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "ledger"
    folder.mkdir()
    ring = make(update(2), trim(1), kind="rotating", window=2).to_json()
    about_ring = {"kind": "rotating", "signature": "layer-rotating-trim-result"}
    write(folder, "typo", {**ENTRY, "id": "typo", "backend": "misbehaved"})
    write(folder, "peer", {**ENTRY, "id": "peer", "backend": "torch-cpu"})
    ring_entry = {**ENTRY, **about_ring, "program": ring, "id": "ring"}
    write(folder, "ring", {**ring_entry, "backend": "misbehaving"})
    (tmp_path / "own_ledger.py").write_text(OWN.format(folder=str(folder)))
    monkeypatch.syspath_prepend(tmp_path)
    ended = run("check", "--backend", "own_ledger:make", "--programs", 5)
    assert ended.status == 0, ended.text
    assert 'ledger entry typo, as there is no backend "misbehaved"' in ended.words
    why = "as misbehaving declares no kind rotating"
    assert f"ledger entry ring, {why}" in ended.words
    assert "peer" not in ended.words


class Forgetful(Cache):
    """Refuses to trim an even number of tokens."""

    def trim(self, count: int) -> Any:
        return super().trim(count) if count % 2 else 0


class Mixed(Cache):
    """The same, and fails for every third number."""

    def trim(self, count: int) -> Any:
        if count % 3 == 0 and self.offset:
            raise RuntimeError("three")
        return super().trim(count) if count % 2 else 0


def check(tmp_path: Path, cache: type[Cache], entry: dict[str, Any]) -> Any:
    """Runs a slice of 200 programs of a backend with this entry."""
    folder = tmp_path / "ledger"
    folder.mkdir()
    write(folder, "one", {**entry, "backend": "misbehaving"})
    backend = replace(correct(), open=lambda _: cache(), ledger=str(folder))
    return run_slice(tmp_path, backend, 200)


TWO = make(update(2), trim(2)).to_json()
EVEN = {**ENTRY, "program": TWO, "when": {"op": "trim", "count": [2, 2]}}
OFFSET = {**EVEN, "when": {**EVEN["when"], "offset": [1, None]}}
THREE = make(update(3), trim(3)).to_json()


def get_found(events: Any) -> set[str]:
    return {e.divergence.get_signature(e.parsed) for e in events if type(e) is Found}


def test_known_programs_show_the_signature_of_their_entry(tmp_path: Path) -> None:
    """One in twenty of the programs that an exact entry describes."""

    class Two(Cache):
        def trim(self, count: int) -> Any:
            return super().trim(count) if count != 2 else 0

    done, events = check(tmp_path, Two, OFFSET)
    assert not any(isinstance(event, Found | Agreed) for event in events)
    assert 2 < done.counts.entered["one"] < 15
    assert done.counts.programs == 200


def test_an_entry_that_describes_too_much_is_found(tmp_path: Path) -> None:
    """On an empty cache there is nothing to trim."""
    done, events = check(tmp_path, Forgetful, {**EVEN, "when": {"op": "trim"}})
    agreed = [event for event in events if isinstance(event, Agreed)]
    assert agreed
    assert {event.entry for event in agreed} == {"one"}
    assert done.counts.signatures == {}


def test_another_divergence_behind_a_known_operation_is_found(tmp_path: Path) -> None:
    crash = {**ENTRY, "program": THREE, "when": {"op": "trim", "offset": [1, None]}}
    done, events = check(tmp_path, Mixed, crash)
    assert "layer-kv-trim-error" in get_found(events)
    assert done.counts.signatures["layer-kv-trim-error"]


def test_what_an_outdated_entry_describes_is_saved(tmp_path: Path) -> None:
    pair = Pair("mine", "layer", "kv", Kind(frozenset({"update"})))
    outcome = Outcome(Settings(failures=tmp_path), [pair])
    shards = Shards(outcome, [[pair]], lambda _: None)
    task = RandomTask(*pair.key, 0, seed=0, programs=1)
    for program in (PROGRAM, TWO):
        shards.take(task, Agreed("one", program))
    (words,) = pair.outdated
    path = tmp_path / "outdated" / "one-mine.json"
    assert words.startswith("one: describes an operation that agrees: its `when` is too")
    assert str(path) in words
    assert load_programs(path)[0].ops == make(update(2), trim(1)).ops
    assert pair.is_diverging
