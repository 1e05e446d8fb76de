"""Snippets for SGLang: they show what is in the ledger, and come to what the harness
comes to."""

from __future__ import annotations

from typing import Any

import pytest
from engine_runs import load_peers
from engine_snippets import compare, run_snippet

from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.snippet import write_snippet
from lockstep.harness.programs.ledger import load_ledger
from lockstep.harness.programs.program import parse_program

PROGRAMS = 60


@pytest.fixture(scope="module")
def peers() -> Any:
    """The module that declares the backends."""
    return load_peers("sglang")


@pytest.fixture(scope="module")
def importer(peers: Any) -> Any:
    """Imports SGLang once more: a snippet publishes settings of its own."""
    from lockstep.impl.peers.engines.engine import has_dependencies
    from lockstep.impl.peers.engines.lean import LeanImporter
    from lockstep.impl.peers.engines.sglang import SGLANG

    if has_dependencies(SGLANG):
        pytest.skip("SGLang cannot be imported twice")
    return LeanImporter(SGLANG)


SHOWN = {
    "sglang-radix-default-slid-slots": (
        "slots that are not free, cached or held just once: ['slot 2: 2 times'],"
        " expected [] <- differs"
    )
}


def test_every_entry_has_a_snippet_that_shows_it(peers: Any, importer: Any) -> None:
    backend, shown = peers.sglang_radix_default(), {}
    for entry in load_ledger(backend.ledger, backend.name):
        text = write_snippet(entry.program, backend)
        assert "lockstep.harness" not in text
        assert "lockstep.impl" not in text
        assert len(text.splitlines()) < 270
        code = [line for line in text.splitlines() if not line.startswith("# ")]
        assert max(map(len, code)) <= 90
        status, out = run_snippet(text, importer)
        assert (status, SHOWN[entry.id] in out) == (1, True), out
        shown[entry.id] = out
    assert shown.keys() == SHOWN.keys()


def test_a_model_that_keeps_the_prompt_does_not_show_it(
    peers: Any, importer: Any
) -> None:
    default = peers.sglang_radix_default()
    for entry in load_ledger(default.ledger, default.name):
        text = write_snippet(entry.program, peers.sglang_radix())
        assert run_snippet(text, importer)[0] == 0


def test_what_a_snippet_says_is_what_the_harness_says(peers: Any, importer: Any) -> None:
    backends = peers.sglang_radix(), peers.sglang_radix_default()
    ends, why_not = compare(backends, importer, PROGRAMS)
    assert set(ends) == {0, 1}
    assert len(ends) > PROGRAMS, why_not


def test_only_for_sliding_layers_there_is_a_snippet(peers: Any) -> None:
    ops = [{"op": "open", "request": "a", "tokens": [1, 1]}]
    document = {"contract": "paged", "config": {"kind": "paged-full"}, "ops": ops}
    program = parse_program({"format": "lockstep/1", **document}, "a program")
    with pytest.raises(UsageError, match="has sliding layers alone"):
        write_snippet(program, peers.sglang_radix())
    with pytest.raises(UsageError, match="does not declare how its code"):
        write_snippet(program, peers.sglang_unified())
