"""Vectors: programs with expected answers, for engines that do not run Python.

`export` makes a set and writes it, or audits a set and runs its programs on backends.
`manual.md` is the template of its README. The rest is in `harness.programs.vectors`.
"""
