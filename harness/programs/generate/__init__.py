"""Makes programs: drawn with Hypothesis, or all programs of a small domain."""
