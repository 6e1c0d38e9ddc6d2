"""Common functions for folders and buckets, and leases."""
