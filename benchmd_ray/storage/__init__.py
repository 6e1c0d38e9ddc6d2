"""Storage that all machines see: S3, and paths and addresses alike."""
