"""Train, evaluate, resume and use policies from data, demonstrations and simulators.

Public names are imported on first use, so that `import rl_training` costs nothing and
PyTorch is loaded only when it is needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rl_training.algorithms import BUILT_IN
from rl_training.experiment.registry import register as register

if TYPE_CHECKING:
    from rl_training.algorithms.loops import LoopFamily as LoopFamily
    from rl_training.algorithms.loops import register_loop as register_loop
    from rl_training.api.algorithms import *  # noqa: F403
    from rl_training.api.managed import ManagedAlgorithm as ManagedAlgorithm
    from rl_training.api.managed import load as load
    from rl_training.api.seeds import learn_seeds as learn_seeds
    from rl_training.api.seeds import resume_seeds as resume_seeds
    from rl_training.api.worth import select as select
    from rl_training.data.dataset import TransitionDataset as TransitionDataset
    from rl_training.data.sources import load_transition_dataset as load_transition_dataset
    from rl_training.experiment.config import TrainConfig as TrainConfig
    from rl_training.experiment.errors import RLTrainingError as RLTrainingError
    from rl_training.experiment.sinks import MetricsEvent as MetricsEvent
    from rl_training.experiment.sinks import MetricsSink as MetricsSink
    from rl_training.experiment.sinks import RunInfo as RunInfo
    from rl_training.experiment.sinks import SinkFailure as SinkFailure
    from rl_training.export.exported import ExportedPolicy as ExportedPolicy
    from rl_training.models.architecture import NetworkRequest as NetworkRequest
    from rl_training.runtime.callbacks import Callback as Callback
    from rl_training.runtime.callbacks import EvalEvent as EvalEvent
    from rl_training.runtime.callbacks import LogEvent as LogEvent
    from rl_training.runtime.callbacks import SaveEvent as SaveEvent
    from rl_training.runtime.callbacks import StartEvent as StartEvent
    from rl_training.runtime.callbacks import StepEvent as StepEvent
    from rl_training.runtime.callbacks import TrainResult as TrainResult
    from rl_training.runtime.evaluation import EvalResult as EvalResult
    from rl_training.runtime.seeds import SeedsResult as SeedsResult
    from rl_training.search.evaluations import Evaluation as Evaluation
    from rl_training.search.evaluations import evaluate_runs as evaluate_runs

__version__ = "0.9.0"

# the only place where the lower layers get the list of algorithms
for _name, _public in BUILT_IN.items():
    register(_name, f"rl_training.algorithms.{_name}:{_public}Algorithm")

_EXPORTS = {
    "algorithms.loops": ("LoopFamily", "register_loop"),
    "api.algorithms": tuple(BUILT_IN.values()),
    "api.managed": ("ManagedAlgorithm", "load"),
    "api.seeds": ("learn_seeds", "resume_seeds"),
    "api.worth": ("select",),
    "data.dataset": ("TransitionDataset",),
    "data.sources": ("load_transition_dataset",),
    "experiment.config": ("TrainConfig",),
    "experiment.errors": ("RLTrainingError",),
    "export.exported": ("ExportedPolicy",),
    "experiment.sinks": ("MetricsEvent", "MetricsSink", "RunInfo", "SinkFailure"),
    "models.architecture": ("NetworkRequest",),
    "runtime.callbacks": (
        "Callback",
        "EvalEvent",
        "LogEvent",
        "SaveEvent",
        "StartEvent",
        "StepEvent",
        "TrainResult",
    ),
    "runtime.evaluation": ("EvalResult",),
    "runtime.seeds": ("SeedsResult",),
    "search.evaluations": ("Evaluation", "evaluate_runs"),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = sorted([*_MODULE_OF, "__version__", "register"])


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
