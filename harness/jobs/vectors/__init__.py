"""Vectors: programs with what the reference expects, for engines that run no Python.

`levels`: what is drawn, for engines with few operations and with many. `selection`: which
of the drawn programs are kept. `coverage`: what they reach, and what not. `lines`: one as
it stands in a file. `answers`, `schema`, `manual`: what a line may hold, for machines and
for people. `manifest`: what a set of files holds. `folder`: where it may be written.
`export`: makes a set.
`audit`: whether it says what the reference here expects. `batch`, `verification`: its
programs on a backend.
"""
