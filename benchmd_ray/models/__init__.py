"""The encoder, its patches and heads."""
