"""Imported once by the server that the processes of all tests are forked from."""

import gc
import os
from contextlib import suppress
from importlib import import_module

from rl_training.experiment.registry import algorithm_class, algorithm_names

for _module in (
    "gymnasium.wrappers",
    "numpy.ma",
    "pytest",
    "torch.func",
    "torch.utils.serialization",
    "rl_training.cli",
    "rl_training.runtime.seeds",
    "tests.contract.test_updates",
    "tests.envs.streams",
):
    with suppress(ImportError):  # older versions of torch have fewer modules
        import_module(_module)
for _name in algorithm_names():
    algorithm_class(_name)
os.fsync = lambda fd: None  # no test cuts the power, and it is a tenth of a small run's time
gc.freeze()  # what is imported is shared by all processes, and none of it is rubbish
