"""The code of our caches that all frameworks share: offsets, snapshots, captures.

It touches no arrays; each framework provides the memory that holds them.
"""
