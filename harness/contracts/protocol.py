"""Builds the driver protocol: the messages of all operations, and other messages."""

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
    """Makes the protocol for the operations that are currently in the contracts."""
    return Protocol({contract: list_messages(contract) for contract in TABLES})


def list_messages(contract: str) -> Messages:
    """Returns all messages of a contract: name → fields."""
    table, named = TABLES[contract], dict[str, Message]()
    if contract in CONTRACTS:
        for operation in CONTRACTS[contract].operations.values():
            if operation.get_method() not in table:
                named |= complete_messages(operation)
    return {**named, **table}


def complete_messages(operation: Operation) -> Messages:
    """Returns an operation's declared messages and the message derived from it."""
    method, declared = operation.get_method(), operation.messages
    if method is None or any("." not in name for name in declared):
        return declared
    return {method: derive_message(operation.fields, operation.answer), **declared}
