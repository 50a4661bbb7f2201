"""Suites that ask whether the algorithms learn, and for the right reason."""
