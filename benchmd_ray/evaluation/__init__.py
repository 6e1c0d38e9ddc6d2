"""What a benchmark and an evaluation are, and the registry that finds them."""
