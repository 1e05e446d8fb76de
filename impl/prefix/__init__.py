"""Prefix caches above the caches of a model: reuse of tokens between requests."""
