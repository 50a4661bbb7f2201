"""Imported once by the server that all killed processes are forked from."""

from importlib import import_module

from rl_training.experiment.registry import algorithm_class, algorithm_names

for _module in ("gymnasium", "torch.func", "rl_training.cli", "rl_training.runtime.seeds"):
    import_module(_module)
for _name in algorithm_names():
    algorithm_class(_name)
