"""Snippets for vLLM: they show what is in the ledger, and come to what the harness comes
to."""

from __future__ import annotations

from typing import Any

import pytest
from engine_runs import load_peers
from engine_snippets import compare, run_snippet

from lockstep.harness.core.errors import UsageError
from lockstep.harness.execution.snippet import write_snippet
from lockstep.harness.programs.ledger import load_ledger
from lockstep.harness.programs.program import parse_program

PROGRAMS = 25


@pytest.fixture(scope="module")
def peers() -> Any:
    """The module that declares the backends."""
    return load_peers("vllm")


def open_importer() -> Any:
    from lockstep.impl.peers.engines.vllm import open_vllm

    return open_vllm()


SHOWN = {
    "vllm-chunk-inside-block": "start: 2, expected 0 <- differs",
    "vllm-chunk-inside-block-match": "hit: 2, expected 0 <- differs",
    "vllm-chunk-inside-block-read": (
        "slots with another content: ['b, group 0, position 0', 'b, group 0, position"
        " 1'], expected [] <- differs"
    ),
    **{
        f"vllm-priority-unwritten-hash-{kind}": (
            "blocks with another content than their hash: ['block 1: tokens [0, 0]'"
        )
        for kind in ("full", "state", "hybrid")
    },
}


def test_every_entry_has_a_snippet_that_shows_it(peers: Any) -> None:
    shown = {}
    for backend in (peers.vllm(), peers.vllm_priority()):
        for entry in load_ledger(backend.ledger, backend.name):
            text = write_snippet(entry.program, backend)
            assert "lockstep.harness" not in text
            assert "lockstep.impl" not in text
            assert len(text.splitlines()) < 230
            code = [line for line in text.splitlines() if not line.startswith("# ")]
            assert max(map(len, code)) <= 90
            status, out = run_snippet(text, open_importer())
            assert (status, SHOWN[entry.id] in out) == (1, True), out
            shown[entry.id] = out
    assert shown.keys() == SHOWN.keys()


def test_what_a_snippet_says_is_what_the_harness_says(peers: Any) -> None:
    backends = peers.vllm(), peers.vllm_priority()
    ends, why_not = compare(backends, open_importer(), PROGRAMS)
    assert set(ends) == {0, 1}
    assert len(ends) > 30, why_not


def test_names_in_a_program_are_none_in_a_snippet(peers: Any) -> None:
    """Nor is a namespace."""
    ops = [
        {"op": "open", "request": "os", "tokens": [1, 1], "namespace": "EVIL"},
        {"op": "match", "request": "os"},
    ]
    document = {"contract": "paged", "config": {"kind": "paged-full"}, "ops": ops}
    program = parse_program({"format": "lockstep/1", **document}, "a program")
    text = write_snippet(program, peers.vllm())
    code = "\n".join(line.partition("#")[0] for line in text.splitlines())
    assert 'cache.open("a", [1, 1], "namespace 0")' in code
    assert "os" not in code.replace("position", "").replace("closed", "").split()
    assert "EVIL" not in code


def test_why_there_is_no_snippet(peers: Any) -> None:
    ops = [{"op": "open", "request": "a", "tokens": [1, 1]}]
    references = {"signature": "paged-paged-full-open-references"}
    for config, meta, backend, words in (
        ({"lookahead": 1}, {}, peers.vllm(), "has no drafts"),
        ({}, references, peers.vllm(), "cannot show how blocks are counted"),
        ({}, {}, peers.vllm_ngram(), "does not declare lookahead 0"),
        ({"lookahead": 1}, {}, peers.vllm_ngram(), "does not declare how its code"),
    ):
        own = {"kind": "paged-full", **config}
        document = {"contract": "paged", "config": own, "ops": ops, "meta": meta}
        program = parse_program({"format": "lockstep/1", **document}, "a program")
        with pytest.raises(UsageError, match=words):
            write_snippet(program, backend)
