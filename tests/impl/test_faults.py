"""The table of the planted faults."""

import pytest

from harness.contracts import CONTRACTS
from impl.faults import FAULTS, invented
from impl.faults.fault import INVENTED, NATURES

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
    tables = [fault.id for fault in FAULTS.values() if fault.source != INVENTED]
    assert len(set(tables)) + len(invented.FAULTS) == len(FAULTS)
    assert all(len(fault.mistake) > 10 for fault in FAULTS.values())
