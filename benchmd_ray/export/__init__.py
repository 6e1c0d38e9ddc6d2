"""Models that travel: programs and model cards."""
