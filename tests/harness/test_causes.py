"""Failures are grouped by their likely cause, on evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.execution.causes import (
    Evidence,
    gather_evidence,
    get_evidence,
    join_causes,
    probably_have_one_cause,
    tell_cause,
)
from lockstep.harness.execution.executor import run
from lockstep.harness.jobs.check import check
from lockstep.harness.jobs.failures import Failure
from lockstep.harness.jobs.outcome import Outcome
from lockstep.harness.jobs.settings import Settings
from lockstep.harness.programs.program import Program
from lockstep.harness.reports.causes import count_causes, group_failures
from lockstep.harness.reports.console import PlainConsole, print_causes
from tests.harness.buggy import BUGS, declare
from tests.harness.building import make, trim, update
from tests.harness.paging import RUN, ask, open_request
from tests.harness.paging import make as make_paged

PLACE = "tests.harness.buggy:"


def clone(**more: Any) -> dict[str, Any]:
    return {"op": "clone", "into": "b", **more}


def tell(*ops: Mapping[str, Any], what: str = "contents", kind: str = "kv") -> Evidence:
    config = {} if kind == "kv" else {"window": 4}
    message = "row 0 sees token 1, but should see token 0 (0 is missing; 1 is too much)"
    return gather_evidence(make(*ops, kind=kind, **config), None, what, message)


COPIED = tell(update(1), clone(), update(1), update(1, cache="b"))
ELSEWHERE = tell(update(1), clone(), update(1), {"op": "state", "cache": "b"})
TRIMMED = tell(update(2), trim(1), update(1))


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        (COPIED, ELSEWHERE, True),  # seen by two operations
        (COPIED, TRIMMED, False),
        (COPIED, tell(clone(), update(1), update(1), kind="rotating"), True),
        (COPIED, tell(clone(), update(1), what="error", kind="rotating"), False),
        (TRIMMED, tell(update(2), trim(1), what="offset"), True),  # fails itself
        (tell(update(1)), TRIMMED, False),
        # Only of arrays that change a longer way is the same one.
        (tell(clone(), update(1), what="alias"), tell(clone(), trim(1), update(1),
         what="alias"), True),
        (COPIED, tell(update(1), clone(), trim(1), update(1)), False),
    ],
)  # fmt: skip
def test_evidence(first: Evidence, second: Evidence, is_one: bool) -> None:
    assert (join_causes([first, second]) == [0, 0]) == is_one


def test_one_place_that_raises_is_one_cause() -> None:
    raised = "raised KeyError: {}, in hold (pool.py:{})"
    one, same, other = (
        gather_evidence(make(update(1), *ops), None, "error", raised.format(key, line))
        for ops, key, line in [
            ([trim(1)], 3, 69),
            ([clone(), update(1)], 4, 69),
            ([{"op": "free"}, update(1)], 3, 70),
        ]
    )
    assert join_causes([one, same, other]) == [0, 0, 2]
    assert tell_cause([one, same]).startswith("each raises KeyError in hold (pool.py:69)")


SEEN = "row 0 sees {}, but should see token 0 (0 is missing; {} is too much)"


def gather(program: Program, what: str, message: str) -> Evidence:
    return gather_evidence(program, None, what, message)


@pytest.mark.parametrize(
    ("what", "messages", "head"),
    [
        ("contents", [SEEN.format(1, 1)] * 2, "2 failures probably have one cause: "),
        ("contents", [SEEN.format(1, 1), SEEN.format(2, 2)], "2 failures may have one"),
        ("alias", ["an array has changed"] * 2, "2 failures may have one cause: "),
        ("error", ["raised E: x, in hold (p.py:69)"] * 2, "2 failures probably have"),
        ("error", [f"raised E: x, in hold (p.py:{n})" for n in (1, 2)], "2 failures may"),
    ],
)
def test_a_cause_is_probable_by_the_same_line_or_content(
    what: str, messages: list[str], head: str
) -> None:
    program = make(update(1), clone(), update(1))
    evidence = [gather(program, what, message) for message in messages]
    (group,) = group_failures(messages, evidence, ["a", "a"], [None, None])
    assert group.sentence.startswith(head)
    count = "1 likely cause" if "probably" in head else "1 to 2 likely causes"
    assert count_causes([group]) == count


def test_failures_of_the_same_steps_may_have_one_cause() -> None:
    """A namespace that is ignored, and a hit that is too long: many mistakes of a block
    manager show behind the same steps, and the check has run them."""
    kind = "paged-full"
    steps = [open_request("a", 1, 1), ask("schedule", "a"), RUN]
    long = make_paged(*steps, open_request("b", 1, 1), ask("match", "b"), kind=kind)
    ignored = make_paged(
        *steps,
        open_request("b", 1, 1, 0, namespace="x"),
        ask("schedule", "b"),
        kind=kind,
    )
    evidence = [
        gather(long, "result", "hit is 2, not 0"),
        gather(ignored, "result", "start is 2, not 0"),
    ]
    apart = group_failures("ab", evidence, "aa", [None, None])
    assert [group.sentence for group in apart] == ["", ""]
    (group,) = group_failures("ab", evidence, "aa", [1, 1])
    words = "2 failures may have one cause: the same steps lead to each"
    assert group.sentence.startswith(words)
    assert count_causes([group, *apart]) == "3 to 4 likely causes"


def test_what_failures_share_is_told() -> None:
    words = "each needs clone; shows at state and update (contents)"
    assert tell_cause([COPIED, ELSEWHERE]) == words
    assert tell_cause([COPIED, TRIMMED]).startswith("the same steps lead to each")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A check of a backend with five mistakes and of one with the first of them."""
    folder: Path = tmp_path_factory.mktemp("failures")
    names = f"{PLACE}all_bugs", f"{PLACE}clone"
    settings = Settings(names, programs=250, jobs=2, failures=folder, seed=1)
    return check(Outcome(settings), (), lambda _: None)


def list_bugs(failure: Failure) -> set[str]:
    """The mistakes that show this failure alone."""
    signature = failure.signature

    def shows(bug: str) -> bool:
        for every in (True, False):
            seen = run(failure.program, declare(bug), every=every).divergence
            if seen is not None and seen.get_signature(failure.program) == signature:
                return True
        return False

    return {bug for bug in BUGS if shows(bug)}


def test_a_page_of_failures_has_few_groups_and_joins_no_two_causes(
    found: Outcome,
) -> None:
    groups: dict[int, list[Failure]] = {}
    for failure in found.failures:
        groups.setdefault(failure.cause, []).append(failure)
    assert 0 not in groups
    assert len(found.failures) >= 28
    assert len(groups) <= 7
    shown = set[str]()
    for failures in groups.values():
        bugs = [list_bugs(failure) for failure in failures]
        evidence = [get_evidence(one.program, one.divergence) for one in failures]
        for first, second in combinations(range(len(failures)), 2):
            if probably_have_one_cause(evidence[first], evidence[second]):
                assert bugs[first] & bugs[second], (failures[first], failures[second])
        shown |= set.union(*bugs)
    assert shown == set(BUGS)


def test_one_mistake_that_shows_in_many_ways_is_one_cause(found: Outcome) -> None:
    own = [one for one in found.failures if one.backend == f"{PLACE}clone"]
    whats = Counter(failure.divergence.what for failure in own)
    assert whats["alias"] >= 3 and whats["contents"] >= 3
    assert len({failure.cause for failure in own}) == 1


def test_each_group_has_a_sentence_and_each_failure_a_line(found: Outcome) -> None:
    console = PlainConsole(width=400, record=True, quiet=False, file=None)
    with console.capture() as capture:
        print_causes(console, found.failures)
    head, *lines = capture.get().strip().splitlines()
    assert head.startswith(f"{len(found.failures)} failures, ")
    sentences = [line for line in lines if "may have one cause: each needs" in line]
    assert any("each needs clone; shows at" in line for line in sentences)
    told = [line for line in lines if line.lstrip().startswith(("kv: ", "rotating: "))]
    assert len(told) == len(found.failures)
    assert any(": after clone into cache b: update with 1 token" in line for line in told)
