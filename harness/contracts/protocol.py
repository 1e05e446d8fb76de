"""The protocol of drivers: the messages of all operations, and those beside them."""

from __future__ import annotations

from lockstep.harness.backends.driver.messages import CONTRACTS as TABLES
from lockstep.harness.backends.driver.messages import (
    Message,
    Messages,
    Protocol,
    derive_message,
)
from lockstep.harness.contracts import CONTRACTS
from lockstep.harness.contracts.operation import Operation


def make_protocol() -> Protocol:
    """Makes the protocol of the operations that the contracts have now."""
    return Protocol({contract: list_messages(contract) for contract in TABLES})


def list_messages(contract: str) -> Messages:
    """Maps the names of all messages of a contract to their fields."""
    table, named = TABLES[contract], dict[str, Message]()
    if contract in CONTRACTS:
        for operation in CONTRACTS[contract].operations.values():
            if operation.get_method() not in table:
                named |= complete_messages(operation)
    return {**named, **table}


def complete_messages(operation: Operation) -> Messages:
    """Returns the messages that an operation declares, with the derived one."""
    method, declared = operation.get_method(), operation.messages
    if method is None or any("." not in name for name in declared):
        return declared
    return {method: derive_message(operation.fields, operation.answer), **declared}
