"""Harnesses that kill, damage and wear out runs; each is a command and a short test."""
