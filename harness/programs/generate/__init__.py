"""How programs are made: drawn from Hypothesis, or all over a small domain."""
