"""What a terminal shows: progress, signals, work that is repeated."""
