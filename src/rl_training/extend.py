"""The import surface for authors of algorithms, of loops and of simulators on the device.

Names in `__all__` are stable when the inside of the package changes. Third-party packages
register an algorithm for all commands as an entry point of the group `rl_training.algorithms`.
"""

from __future__ import annotations

from rl_training.algorithms.base import Act, Algorithm, Networks
from rl_training.algorithms.functional import (
    Loss,
    Metrics,
    bootstrapped_returns,
    capped_exp,
    critic_loss,
    soft_update,
    weight_metrics,
    weighted_likelihood_loss,
)
from rl_training.algorithms.loops import LoopFamily, loop_family, register_loop
from rl_training.algorithms.params import (
    ActorCriticParams,
    CloningParams,
    DiscountedParams,
    NetworkParams,
    OfflineToOnlineParams,
    OffPolicyParams,
    Params,
    ReplayParams,
    TargetNetworkParams,
)
from rl_training.api.algorithms import managed_class
from rl_training.api.managed import ManagedAlgorithm
from rl_training.envs.device.protocol import DeviceEnv, StepTensors
from rl_training.envs.device.register import register_device_env
from rl_training.envs.device.streams import normals, uniforms
from rl_training.envs.spaces import Spaces
from rl_training.execution import between_graphs
from rl_training.experiment.config import (
    Count,
    Finite,
    Fraction,
    HiddenSizes,
    NonNegative,
    Positive,
    Rate,
    Schedule,
    Section,
    TrainConfig,
)
from rl_training.experiment.errors import ConfigError, DataError, RLTrainingError
from rl_training.experiment.registry import register as register_algorithm
from rl_training.experiment.renames import Renamed
from rl_training.models import (
    MLP,
    Critics,
    ImageEncoder,
    MLPIQLModel,
    MLPSACModel,
    NetworkRequest,
    Policy,
    ValueNetwork,
    critics_for,
    frozen_copy,
    policy_for,
)
from rl_training.replay.batch import Batch
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Loop
from rl_training.runtime.loops.data import training_data
from rl_training.runtime.loops.offline import OfflineData, OfflineLoop

__all__ = [
    "MLP",
    "Act",
    "ActorCriticParams",
    "Algorithm",
    "Batch",
    "CloningParams",
    "ConfigError",
    "Count",
    "Critics",
    "DataError",
    "DeviceEnv",
    "DiscountedParams",
    "Engine",
    "Finite",
    "Fraction",
    "HiddenSizes",
    "ImageEncoder",
    "Loop",
    "LoopFamily",
    "Loss",
    "MLPIQLModel",
    "MLPSACModel",
    "ManagedAlgorithm",
    "Metrics",
    "NetworkParams",
    "NetworkRequest",
    "Networks",
    "NonNegative",
    "OffPolicyParams",
    "OfflineData",
    "OfflineLoop",
    "OfflineToOnlineParams",
    "Params",
    "Policy",
    "Positive",
    "RLTrainingError",
    "Rate",
    "Renamed",
    "ReplayParams",
    "Schedule",
    "Section",
    "SingleLearner",
    "Spaces",
    "StepTensors",
    "TargetNetworkParams",
    "TrainConfig",
    "ValueNetwork",
    "between_graphs",
    "bootstrapped_returns",
    "capped_exp",
    "critic_loss",
    "critics_for",
    "frozen_copy",
    "loop_family",
    "managed_class",
    "normals",
    "policy_for",
    "register_algorithm",
    "register_device_env",
    "register_loop",
    "soft_update",
    "training_data",
    "uniforms",
    "weight_metrics",
    "weighted_likelihood_loss",
]
