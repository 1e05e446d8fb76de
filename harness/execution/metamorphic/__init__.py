"""Checks the reference: compares its answers to related programs; see README.md."""
