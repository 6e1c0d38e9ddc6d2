"""What of a run lies where: history, pruning, stores on S3."""
