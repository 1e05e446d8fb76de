"""Vectors: programs with expected answers, for engines that do not run Python.

`export.py` makes a set and writes it, `verify.py` checks one and runs it on backends.
`manual.md` is the template of its README. The rest is in `harness.programs.vectors`.
"""
