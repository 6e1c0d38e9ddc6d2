"""Metrics, intervals and comparisons: numbers only, nothing of training."""
