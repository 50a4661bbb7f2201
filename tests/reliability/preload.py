"""Imported once by the server that all killed processes are forked from."""

from rl_training.experiment.registry import algorithm_class, algorithm_names

for _name in algorithm_names():
    algorithm_class(_name)
