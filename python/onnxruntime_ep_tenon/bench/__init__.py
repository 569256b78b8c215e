"""Benchmarks: the suites of `tenon bench --suite`, and what they time and compare with."""
