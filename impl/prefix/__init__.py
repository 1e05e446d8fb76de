"""Conversations above the caches of a model: which of their tokens need no computing."""
