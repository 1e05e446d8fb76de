"""Prefix caches, which reuse tokens between requests, above the caches of a model."""
