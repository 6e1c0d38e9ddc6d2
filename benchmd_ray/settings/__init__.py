"""Settings of a run: their types and ranges, their meaning, and which are in use."""
