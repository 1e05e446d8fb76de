"""The code of our caches that all frameworks share: offsets, snapshots, captures.

This code does not access arrays; each framework provides a memory that holds them.
"""
