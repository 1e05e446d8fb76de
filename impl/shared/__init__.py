"""The code of our caches that all frameworks share: offsets, snapshots, captures.

This code does not access arrays. For each framework, a memory class holds the arrays.
"""
