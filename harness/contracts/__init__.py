"""Collects the contracts. Each family of caches has one package with its contract."""

from collections.abc import Mapping

from lockstep.harness.contracts.batched import BATCHED
from lockstep.harness.contracts.contract import Contract
from lockstep.harness.contracts.layer import LAYER
from lockstep.harness.contracts.paged import PAGED
from lockstep.harness.contracts.prefix import PREFIX
from lockstep.harness.contracts.serving import SERVING
from lockstep.harness.contracts.unified import UNIFIED

CONTRACTS: Mapping[str, Contract] = {
    contract.name: contract
    for contract in (LAYER, BATCHED, UNIFIED, PREFIX, PAGED, SERVING)
}

KINDS = list(dict.fromkeys(kind for rules in CONTRACTS.values() for kind in rules.kinds))
