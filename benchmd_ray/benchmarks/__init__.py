"""The four benchmarks that ship: plug-ins, found by their entry points."""
