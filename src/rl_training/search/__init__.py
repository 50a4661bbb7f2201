"""Many runs as one study: grids over any key, in parallel, resumable."""
