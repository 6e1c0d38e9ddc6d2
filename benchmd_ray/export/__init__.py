"""Models for other programs: exported programs and model cards."""
