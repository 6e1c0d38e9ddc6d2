"""The interface of benchmarks and evaluations, and the registry that finds them."""
