"""Duties of callers: calls that a backend declares no program may make."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.backends.backend import Backend, Duty, Kind, list_unchecked
from lockstep.harness.core.errors import Unloadable
from lockstep.harness.execution.executor import run as execute
from lockstep.harness.programs.ledger import why_unsupported
from lockstep.harness.programs.program import walk
from lockstep.harness.workers.messages import Found
from lockstep.harness.workers.registry import check_declaration
from tests.harness import paging
from tests.harness.building import draw_some, make, trim, update
from tests.harness.commands import Run, run_slice
from tests.harness.misbehaving import Cache, correct

NO_TRIM = Duty({"op": "trim", "offset": [3, None]}, "trim of three tokens or more")


class Fragile(Cache):
    """Fails where its callers must not trim."""

    def trim(self, count: int) -> Any:
        if self.offset >= 3:
            raise RuntimeError("the caller must not do that")
        return super().trim(count)


def declare(*duties: Duty) -> Backend:
    backend = replace(correct(), open=lambda _: Fragile())
    kind = replace(backend.contracts["layer"]["kv"], duties=duties)
    return replace(backend, contracts={"layer": {"kv": kind}})


def get_signatures(backend: Backend, tmp_path: Path) -> set[str]:
    """What a slice of 100 programs finds."""
    _, events = run_slice(tmp_path, backend, 100)
    found = [event for event in events if type(event) is Found]
    return {each.divergence.get_signature(each.parsed) for each in found}


def test_no_program_breaks_a_duty(tmp_path: Path) -> None:
    """Neither those that are drawn, nor those that are derived from them."""
    assert get_signatures(declare(), tmp_path) == {"layer-kv-trim-error"}
    assert get_signatures(declare(NO_TRIM), tmp_path) == set()


def test_generation_keeps_clear_of_it() -> None:
    operations = frozenset({"update", "trim"})
    most = []
    for duties in ((), (NO_TRIM,)):
        declared = Kind(operations, duties=duties)
        programs = draw_some(20, "layer", "kv", declared)
        steps = (step for program in programs for step in walk(program, rows=False))
        offsets = [s.model.get("a").offset for s in steps if s.op["op"] == "trim"]
        most.append(max(offsets))
    assert most[0] > most[1] == 2


def test_a_program_that_breaks_a_duty_is_not_run_and_told_why() -> None:
    backend = declare(NO_TRIM)
    program = make(update(2), trim(1), update(2), trim(1), step=1)
    assert why_unsupported(program, backend) == (
        "callers of misbehaving must not make the call of step 3: trim of three"
        " tokens or more"
    )
    assert why_unsupported(make(update(2), trim(1), step=1), backend) is None


def test_a_report_lists_it() -> None:
    backend = declare(NO_TRIM)
    kind = backend.contracts["layer"]["kv"]
    assert "trim of three tokens or more" in list_unchecked(backend, kind)


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ({"op": "trimm"}, "declares duties of kv: when: op"),
        ({"op": "trim", "states": ["wrapped"]}, "has no state"),
        ({"op": "trim", "cuont": [1, 1]}, "did you mean count"),
    ],
)
def test_a_duty_without_a_meaning_is_refused(when: Any, words: str) -> None:
    with pytest.raises(Unloadable, match=words):
        check_declaration(declare(Duty(when, "nothing")), "tests.harness.misbehaving")


OPENS_TWO = Duty({"op": "open", "requests": [2, None]}, "more than two requests")


def opens_two() -> Backend:
    return paging.declare(paging.Manager, duties=(OPENS_TWO,))


def test_a_run_shows_what_is_excluded_where_a_backend_decides_the_state(run: Run) -> None:
    """Not that a failure is mended whose steps callers must not make any more."""
    declared = paging.declare().contracts["paged"]["paged-full"]
    statuses = set()
    for number, drawn in enumerate(draw_some(4, "paged", "paged-full", declared)):
        program = replace(drawn, ops=drawn.ops[: 40 * number + 1])
        excluded = execute(program, opens_two()).excluded
        saved = replace(program, meta={"signature": "paged-paged-full-open-error"})
        path = Path(f"{number}.json")
        path.write_text(json.dumps(saved.to_json()))
        ended = run("replay", path, "--backend", f"{__name__}:opens_two")
        status = "EXCLUDED" if excluded else "FIXED"
        assert (ended.status, ended.out.split()[0]) == (0, status)
        assert (f"{excluded}" in ended.words) == bool(excluded)
        statuses.add(status)
    assert statuses == {"EXCLUDED", "FIXED"}
