"""Pretraining, transfer and prediction, and their workers."""
