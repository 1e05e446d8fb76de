"""Vectors: programs with what the reference expects, for engines that run no Python.

`levels`: what is drawn, for engines with few operations and with many. `selection`: which
of the drawn programs are kept. `coverage`: what they reach, and what not. `answers`,
`schema`, `manual`: what stands in a line, for machines and for people. `manifest`: what
stands in a set of files. `folder`: where it may be written. `export`: makes a set.
`audit`: whether it says what the reference here expects. `batch`, `verification`: its
programs on a backend.
"""
