"""Logging of runs and reports to Weights & Biases."""
