"""Predictions, metrics and their intervals."""
