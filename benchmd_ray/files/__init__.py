"""Atomic files, hashes, Parquet, arrays, and the machine's cache."""
