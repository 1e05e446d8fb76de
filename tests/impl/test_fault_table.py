"""The table of the planted faults."""

import pytest

from lockstep.harness.contracts import CONTRACTS
from lockstep.impl.faults import FAULTS
from lockstep.impl.faults.fault import mistake

KINDS = {
    "layer": {"kv", "rotating", "state", "pooled"},
    "batched": {"batch-kv", "batch-rotating", "batch-state"},
    "paged": {"paged-full", "paged-sliding", "paged-hybrid", "paged-state"},
    "prefix": {"session", "trie", "slots"},
}


def test_all_that_real_caches_made_are_there() -> None:
    assert sum(fault.source != "constructed" for fault in FAULTS.values()) == 94
    contracts = {name for name, rules in CONTRACTS.items() if rules.has_arrays}
    assert {fault.contract for fault in FAULTS.values()} == contracts
    for contract, kinds in KINDS.items():
        own = [fault for fault in FAULTS.values() if fault.contract == contract]
        assert {fault.kind for fault in own} == kinds


def test_every_fault_says_what_is_wrong() -> None:
    for id, fault in FAULTS.items():
        assert fault.id == id
        assert len(fault.mistake) > 10
        assert fault.shortest > 0


def test_two_faults_cannot_have_one_name() -> None:
    def clone_shares(cache: object) -> None:
        """A mistake."""

    with pytest.raises(AssertionError, match="two faults are called clone-shares"):
        mistake("kv", 1)(clone_shares)
