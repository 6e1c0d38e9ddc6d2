"""Text written by people: restricted YAML, typed values, ranges."""
