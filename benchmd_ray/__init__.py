"""BenchMD, a benchmark of modality-agnostic learning on medical data, as a service on Ray."""

__version__ = "0.1.0"
