"""Reads finished and running runs: what they did, how they compare."""
