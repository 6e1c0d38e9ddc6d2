"""Metrics, their intervals and comparisons: numerics only."""
