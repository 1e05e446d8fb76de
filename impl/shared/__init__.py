"""What our caches share whatever the framework: offsets, snapshots, captures. No arrays
are touched here; each framework brings the memory that holds them."""
