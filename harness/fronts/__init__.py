"""Ways to make programs. What comes after is the same for all."""
