"""Settings of a run: types, ranges, meaning, and which are in use."""
