"""Interfaces of benchmarks and evaluations, and their registry."""
