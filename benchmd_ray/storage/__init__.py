"""Folders and S3 buckets by the same functions, and leases."""
