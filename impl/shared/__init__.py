"""The part of our caches that is the same on every framework: offsets, snapshots, captures.

No arrays are touched here; each framework brings the memory that holds them.
"""
