"""Readers: a file to an array with its unit, nothing else."""
