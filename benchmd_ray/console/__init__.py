"""Terminal output, stop signals, and polling."""
