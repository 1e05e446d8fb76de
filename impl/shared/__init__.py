"""The part of our caches that all frameworks share: offsets, snapshots, captures.

No arrays are touched here; each framework brings the memory that holds them.
"""
