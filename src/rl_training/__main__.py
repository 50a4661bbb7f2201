"""`python -m rl_training`: the command line, if its script is not on the path."""

from rl_training.cli import main

if __name__ == "__main__":
    main()
