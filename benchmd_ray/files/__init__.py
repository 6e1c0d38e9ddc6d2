"""Files that are written whole or not at all, hashes, Parquet, arrays, the machine's cache."""
