"""Storage from which training samples its batches: tables, replay, rollouts and sequences."""
