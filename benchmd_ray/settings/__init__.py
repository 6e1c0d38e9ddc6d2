"""Settings of a run: what each means and which are in use."""
