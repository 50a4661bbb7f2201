"""Benchmarks: learning gates, comparisons with other libraries, speed.

Run from the project root with `python -m benchmarks.run`; see `benchmarks/README.md`.
"""
