"""Common functions for folders and S3 buckets, and leases."""
