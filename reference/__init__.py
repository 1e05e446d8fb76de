"""Specifies every cache in plain Python, as lists of tokens and rules about them."""
