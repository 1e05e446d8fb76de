"""Dynamo's index of prefixes (ai-dynamo-runtime 1.6.1) reads the events of SGLang's
prefix cache, and then claims exactly the prefixes that the cache has.

SGLang reports the removal of a page before the removal of the pages behind it. The index
has then dropped these pages already, and raises an exception.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest

from lockstep.harness.backends.paged import Entry
from lockstep.harness.execution.executor import run
from tests.impl.released import draw, load

PROGRAMS = 40


def get_key(entry: Entry, tokens: Sequence[int]) -> int:
    """Returns the hash of a prefix."""
    return crc32(repr((entry.namespace, list(tokens))).encode()) + 1


class Indexed:
    """A block manager whose events a `RadixTree` reads, too."""

    def __init__(self, cache: Any, block: int, tree: Any) -> None:
        self.cache, self.block, self.tree = cache, block, tree
        self.compared = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    def events(self) -> Sequence[tuple[str, Entry | None]]:
        events: Sequence[tuple[str, Entry | None]] = self.cache.events()
        for event, entry in events:
            data = {"event_id": 0, "data": self.translate(event, entry), "dp_rank": 0}
            is_gone = event == "removed" and not self.is_claimed(entry)
            with pytest.raises(RuntimeError) if is_gone else nullcontext():
                self.tree.apply_event(0, json.dumps(data).encode())
        held = {get_key(entry, entry.tokens) for entry in self.cache.entries()}
        assert set(self.iter_claimed()) == held
        self.compared += len(held)
        return events

    def translate(self, event: str, entry: Entry | None) -> str | Mapping[str, Any]:
        if entry is None:
            return "cleared"
        key, before = get_key(entry, entry.tokens), entry.tokens[: -self.block]
        if event == "removed":
            return {"removed": {"block_hashes": [key]}}
        parent = get_key(entry, before) if before else None
        block = {"block_hash": key, "tokens_hash": key}
        return {"stored": {"parent_hash": parent, "blocks": [block]}}

    def is_claimed(self, entry: Entry | None) -> bool:
        return entry is not None and get_key(entry, entry.tokens) in self.iter_claimed()

    def iter_claimed(self) -> Iterator[int]:
        for text in self.tree.dump_tree_as_events():
            for block in json.loads(text)["event"]["data"]["stored"]["blocks"]:
                yield block["block_hash"]


@pytest.mark.parametrize("name", ["sglang-radix"])
def test_an_index_follows_the_events(name: str) -> None:
    core = pytest.importorskip("dynamo._core", reason="ai-dynamo-runtime is missing")
    backend, opened = load(name), list[Indexed]()

    def open_indexed(config: Mapping[str, Any]) -> Indexed:
        (group,) = config["groups"]
        opened.append(Indexed(backend.open(config), group["block"], core.RadixTree()))
        return opened[-1]

    watched = replace(backend, open=open_indexed)
    for _, program in zip(range(PROGRAMS), draw(name, "paged-full"), strict=False):
        assert run(program, watched).divergence is None
    assert sum(index.compared for index in opened) > 1000
