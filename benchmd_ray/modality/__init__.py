"""Signals, tasks, modalities, and folders of cards."""
