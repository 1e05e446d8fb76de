"""The contracts: what is checked, one package for each family of caches."""

from collections.abc import Mapping

from harness.contracts.base import Contract
from harness.contracts.layer import LAYER
from harness.contracts.prefix import PREFIX
from harness.contracts.unified import UNIFIED

CONTRACTS: Mapping[str, Contract] = {
    contract.name: contract for contract in (LAYER, UNIFIED, PREFIX)
}
