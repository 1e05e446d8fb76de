"""Checks the reference by relations between its own answers; see README.md."""
