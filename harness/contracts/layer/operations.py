"""All operations of the layer contract, by name."""

from collections.abc import Mapping

from lockstep.harness.contracts.base import Operation
from lockstep.harness.contracts.layer import snapshots, tokens

OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        tokens.Update(),
        tokens.State(),
        tokens.View(),
        tokens.Size(),
        tokens.Trim(),
        tokens.Clone(),
        tokens.Free(),
        snapshots.TakeSnapshot(),
        snapshots.Restore(),
        snapshots.Split(),
        snapshots.Merge(),
        snapshots.Close(),
        snapshots.Prepare(),
        snapshots.Take(),
    )
}
