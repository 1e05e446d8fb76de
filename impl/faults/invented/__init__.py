"""Mistakes that no real cache is known to have made: for every operation of every
contract at least two, of different natures."""

from lockstep.impl.faults.invented import (
    layer,
    layer_captures,
    layer_reads,
    layer_snapshots,
    prefix,
    unified,
    unified_changes,
    unified_content,
    unified_room,
    unified_rows,
    unified_several,
    unified_states,
    unified_usage,
)

FAULTS = {**layer.FAULTS, **unified.FAULTS, **prefix.FAULTS}

__all__ = [
    "FAULTS",
    "layer_captures",
    "layer_reads",
    "layer_snapshots",
    "unified_changes",
    "unified_content",
    "unified_room",
    "unified_rows",
    "unified_several",
    "unified_states",
    "unified_usage",
]
