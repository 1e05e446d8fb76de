"""The specification of every cache in plain Python: lists of tokens and rules."""
