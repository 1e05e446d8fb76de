"""The operations of the prefix contract, by name."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.harness.contracts.base import Operation
from lockstep.harness.contracts.prefix.requests import Begin, Break, Cancel, Close, Feed
from lockstep.harness.contracts.prefix.store import Checkpoint, Count, Free, Limit, Refuse
from lockstep.harness.contracts.prefix.wrong import Commit, Open, Reserve

OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        Begin(),
        Feed(),
        Close(),
        Cancel(),
        Break(),
        Refuse(),
        Checkpoint(),
        Count(),
        Limit(),
        Free(),
        Open(),
        Reserve(),
        Commit(),
    )
}
