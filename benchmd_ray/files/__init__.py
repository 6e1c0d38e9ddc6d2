"""Files that are whole or not there, hashes, Parquet, arrays, the cache of this machine."""
