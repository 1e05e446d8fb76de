"""All operations of the layer contract, by name."""

from lockstep.harness.contracts.layer import snapshots, tokens
from lockstep.harness.contracts.operation import index

OPERATIONS = index(
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
