"""The table of the planted faults."""

import pytest

from lockstep.harness.contracts import CONTRACTS
from lockstep.impl.faults import FAULTS, invented, layer, prefix, unified
from lockstep.impl.faults.fault import NATURES, Inventor

OPERATIONS = [
    (contract.name, operation)
    for contract in CONTRACTS.values()
    for operation in contract.operations
]


@pytest.mark.parametrize(("contract", "operation"), OPERATIONS)
def test_every_operation_has_two_invented_faults_of_different_natures(
    contract: str, operation: str
) -> None:
    natures = {
        fault.nature
        for fault in invented.FAULTS.values()
        if (fault.contract, fault.operation) == (contract, operation)
    }
    assert len(natures) >= 2
    assert natures <= set(NATURES)


def test_ids_are_told_apart_and_say_what_is_wrong() -> None:
    tables = (layer, unified, prefix, invented.layer, invented.unified, invented.prefix)
    assert sum(len(table.FAULTS) for table in tables) == len(FAULTS)
    assert all(len(fault.mistake) > 10 for fault in FAULTS.values())


def test_two_mistakes_cannot_have_one_name() -> None:
    invent = Inventor("layer")

    def change(cache: object) -> None:
        """A mistake."""

    invent("update", "bound", "kv", 1)(change)
    with pytest.raises(AssertionError, match="two mistakes are called change"):
        invent("trim", "bound", "kv", 1)(change)
