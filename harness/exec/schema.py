"""The schemas of all messages, and whether one keeps to its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_request(contract: str, operation: str, request: Mapping[str, Any]) -> None:
    pass


def check_answer(contract: str, operation: str, answer: Mapping[str, Any]) -> None:
    pass
