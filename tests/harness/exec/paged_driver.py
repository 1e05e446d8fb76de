"""A driver of a paged cache that misbehaves, in one way that its first argument names.

    python -m tests.harness.exec.paged_driver WAY

It relays to the correct cache of `tests.harness.paging`, and changes one answer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tests.harness.exec.batch_driver import Change, Misbehaving, drop_last, put
from tests.harness.exec.relay import Answer, serve

ENTRY = {"group": 0, "namespace": None, "tokens": [1, 1], "block": 0}


def leave_out(name: str) -> Change:
    return lambda answer: {field: answer[field] for field in answer if field != name}


def tell_entry(**fields: Any) -> Change:
    return put(entries=[{**ENTRY, **fields}])


def tell_event(event: Any, entry: Any) -> Change:
    return put(events=[{"event": event, "entry": entry}])


def forget_values(answer: Answer) -> Answer:
    pairs = [{**pair, "values": None} for pair in answer["requests"]]
    return answer | {"requests": pairs}


WAYS: Mapping[str, tuple[str, Change]] = {
    "well": ("", put()),
    "hit-is-null": ("match", put(hit=None)),
    "start-in-words": ("schedule", put(start="0")),
    "start-is-late": ("schedule", put(start=2)),
    "no-start": ("schedule", leave_out("start")),
    "no-table": ("tables", drop_last("tables")),
    "two-tables": ("tables", lambda answer: {"tables": 2 * answer["tables"]}),
    "tables-are-null": ("tables", put(tables=None)),
    "table-is-null": ("tables", put(tables=[None])),
    "table-of-nulls": ("tables", put(tables=[[None, None]])),
    "table-of-words": ("tables", put(tables=[["a", "b"]])),
    "half-a-block": ("tables", put(tables=[[0.5]])),
    "copies-of-one": ("copies", put(copies=[[1]])),
    "copies-to-null": ("copies", put(copies=[[1, None]])),
    "references-by-name": ("pool", put(references={"1": 1})),
    "references-twice": ("pool", put(references=[[1, 1], [1, 2]])),
    "pool-without-cached": ("pool", leave_out("cached")),
    "free-is-a-count": ("pool", put(free=12)),
    "entry-of-no-group": ("entries", tell_entry(group=-1)),
    "entry-of-a-far-group": ("entries", tell_entry(group=7)),
    "entry-of-nothing": ("entries", tell_entry(tokens=[])),
    "entry-of-null": ("entries", tell_entry(block=None)),
    "entry-of-numbers": ("entries", put(entries=[[0, None, [1, 1], 0]])),
    "entry-that-lies": ("entries", tell_entry(tokens=[7, 7])),
    "moved": ("events", tell_event("moved", ENTRY)),
    "stored-nothing": ("events", tell_event("stored", None)),
    "cleared-one": ("events", tell_event("cleared", ENTRY)),
    "no-events": ("events", put(events=[])),
    "fork-is-one": ("fork", put(ok=1)),
    "rewind-is-null": ("rewind", put(ok=None)),
    "evicted-a-list": ("evict", put(evicted=[0])),
    "reset-without-ok": ("reset", leave_out("ok")),
    "run-fails": ("run", put(error="failed", message="out of memory")),
    "run-is-missing": ("run", put(error="missing", message="later")),
    "free-is-refused": ("free", put(error="usage", message="not now")),
    "update-of-none": ("update", put(requests=[])),
    "update-of-null": ("update", put(requests=[None])),
    "update-without-values": ("update", forget_values),
}
"""Way → the operation whose answers are wrong, and the change."""


def main() -> None:
    from tests.harness.paging import make

    serve(Misbehaving(make(), WAYS[sys.argv[1]]))


if __name__ == "__main__":
    main()
