"""All operations of the batched contract, by name."""

from lockstep.harness.contracts.batched import rows, tokens
from lockstep.harness.contracts.operation import index

OPERATIONS = index(
    tokens.Open(),
    tokens.Update(),
    tokens.PadRight(),
    tokens.Finalize(),
    tokens.Trim(),
    tokens.Rollback(),
    rows.Filter(),
    rows.Select(),
    rows.Repeat(),
    rows.Extend(),
    rows.Extract(),
    rows.Stack(),
    rows.Save(),
    rows.Load(),
    tokens.State(),
    tokens.Size(),
    tokens.Clone(),
    tokens.Free(),
)
