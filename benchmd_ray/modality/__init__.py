"""Signals, tasks, modalities and the folders of cards."""
