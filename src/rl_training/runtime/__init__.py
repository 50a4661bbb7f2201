"""How a run proceeds: controls, engine, evaluation, loops and the trainer."""
