"""Transitions: batches, data sets and their loaders, rewards, returns-to-go."""
