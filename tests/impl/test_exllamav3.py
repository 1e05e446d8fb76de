"""ExLlamaV3's page table: mistakes that are made in it are found, and its divergence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockstep.harness.execution.executor import run
from lockstep.impl.peers.engines.exllamav3 import EXLLAMAV3, load_exllamav3
from tests.harness.building import make
from tests.impl.released import find, load

Change = Callable[[Any], Any]


def keep_last(deallocate: Any) -> Any:
    """The last page of a request is never freed."""
    return lambda self, pages: deallocate(self, pages[:-1])


def hash_first(complete: Any) -> Any:
    """Whichever page is full, the first page gets a new hash."""
    return lambda self, sequence, page: complete(self, sequence, 0)


def match_more(count: Any) -> Any:
    """A page matches with one token more than it does."""
    return lambda page, tokens, most: min(count(page, tokens, most) + 1, most)


def iter_targets(name: str) -> Iterator[Any]:
    """Yields what has the attribute, for all sizes of pages."""
    if name == "count_match_tensor":
        yield next(row for row in EXLLAMAV3.stand_ins if row.holds).holds["exllamav3_ext"]
        return
    for page in (4, 6, 8):
        library = load_exllamav3(page)
        yield library.Job if hasattr(library.Job, name) else library.PageTable


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("deallocate_pages", keep_last),
        ("hash_completed_page", hash_first),
        ("count_match_tensor", match_more),
    ],
)
def test_a_mistake_is_found(name: str, change: Change) -> None:
    backend = load("exllamav3")
    with pytest.MonkeyPatch.context() as patch:
        for target in iter_targets(name):
            patch.setattr(target, name, change(getattr(target, name)))
        program = find("exllamav3", "paged-full")
    assert program is not None
    assert run(program, backend).divergence is None


def ask(op: str, request: str, **fields: Any) -> dict[str, Any]:
    return {"op": op, "request": request, **fields}


def test_a_page_that_another_request_has_not_computed_yet() -> None:
    """Request b begins with the same tokens, and reaches page 4 after request a."""
    load("exllamav3")  # skips without it
    chunk = [ask("schedule", "b", count=4), {"op": "run"}]
    step = [ask("schedule", "a"), {"op": "run"}, ask("accept", "a", sampled=1)]
    ops = [
        *(ask("open", "b", tokens=[1] * 22), *chunk),
        *(ask("open", "a", tokens=[1] * 18), *step, *chunk, *step, *chunk, *step),
    ]
    groups = [{"type": "full", "block": 4, "layers": 1}]
    fields = {"groups": groups, "blocks": 16, "max_length": 22, "hash_block": 1}
    kind = "paged-full"
    program = make(*ops, contract="paged", kind=kind, admits="output", **fields)
    backend = load("lockstep.impl.peers.exllamav3:chunks")
    divergence = run(program, backend).divergence
    assert divergence is not None
    assert divergence.step == len(ops) - 1
    assert divergence.get_signature(program) == "paged-paged-full-accept-error"
