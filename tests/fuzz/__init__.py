"""Fuzzing: mutated configs, damaged checkpoints, malformed data and misbehaving environments.

    python -m tests.fuzz                          the long form: 2,000, 500, 300 and 60
    python -m tests.fuzz configs --count 200 --seed 3

One module per kind. It has

- `LONG` and `SHORT`: how many attempts the command and the test make,
- `prepare(folder)`: makes what all attempts need, once (may do nothing),
- `attempt(random, prepared, folder)`: makes one bad thing, drawn from `random`, uses it in the
  empty `folder`, which is the working folder, and returns a `Verdict`.

A module that has a list `CASES` gets case i instead of `random` in attempt i.

`runner.py` runs attempts in worker processes, stops those that train for long, and calls what lives
longer than 120 seconds a hang.
"""
