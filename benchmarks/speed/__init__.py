"""Suites that ask how fast things are."""
