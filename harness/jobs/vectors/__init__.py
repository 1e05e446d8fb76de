"""Vectors: programs with expected answers, for engines that do not run Python.

`export` makes a set, `folder` writes it, `manual` is its README. `verify` audits a set
and runs its programs on backends. The rest is in `harness.programs.vectors`.
"""
