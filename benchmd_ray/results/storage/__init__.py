"""What becomes of runs on disk and on S3: history, pruning, and what is behind a store."""
