"""A `Runner` with a known answer, for tests and benchmarks."""
