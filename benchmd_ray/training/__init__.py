"""Pretraining and transfer, their engines, and where they run."""
