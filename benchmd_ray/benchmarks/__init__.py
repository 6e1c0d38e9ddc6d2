"""Benchmarks: each declares what to run, how to begin and what was published before."""
