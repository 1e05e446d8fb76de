"""Mistakes of prefix caches that we thought up; every nature occurs among them."""

from __future__ import annotations

from lockstep.impl.faults.invented import (
    prefix_limits,
    prefix_session,
    prefix_slots,
    prefix_store,
    prefix_trie,
    prefix_usage,
)

FAULTS = {
    **prefix_session.FAULTS,
    **prefix_trie.FAULTS,
    **prefix_store.FAULTS,
    **prefix_limits.FAULTS,
    **prefix_slots.FAULTS,
    **prefix_usage.FAULTS,
}
