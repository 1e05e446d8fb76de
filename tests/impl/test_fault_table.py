"""The table of the planted faults."""

from lockstep.harness.contracts import CONTRACTS
from lockstep.impl.faults import FAULTS

KINDS = {
    "layer": {"kv", "rotating", "state"},
    "batched": {"batch-kv", "batch-rotating", "batch-state"},
    "paged": {"paged-full", "paged-sliding", "paged-hybrid", "paged-state"},
    "prefix": {"session", "trie", "slots"},
}


def test_all_that_real_caches_made_are_there() -> None:
    assert sum(fault.source != "constructed" for fault in FAULTS.values()) == 65
    assert {fault.contract for fault in FAULTS.values()} == set(CONTRACTS)
    for contract, kinds in KINDS.items():
        own = [fault for fault in FAULTS.values() if fault.contract == contract]
        assert {fault.kind for fault in own} == kinds
