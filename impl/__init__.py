"""What is held against the reference: caches, and how they declare themselves."""
