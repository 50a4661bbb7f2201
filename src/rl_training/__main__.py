"""The program `rl-training`, also as `python -m rl_training`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is imported ends it with a word, not a traceback."""
    try:
        from rl_training.cli import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
