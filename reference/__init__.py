"""What every cache means, in plain Python: lists of tokens and rules about them."""
