"""The parts of a run on disk: configuration, registry, checkpoints and records."""
