"""What a run is: its configuration, its registry, its checkpoints and its record."""
