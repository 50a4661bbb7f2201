"""Networks and nothing else: no losses, no optimisers, no data."""

from rl_training.models.actor_critic import (
    ActionValueCritic,
    ActorCritics,
    ActorValue,
    CategoricalCritic,
    Critics,
    EnsembleCritic,
    MLPIQLModel,
    MLPSACModel,
    ValueNetwork,
    critics_for,
    frozen_copy,
    policy_for,
)
from rl_training.models.architecture import (
    Architecture,
    NetworkFactory,
    NetworkKind,
    NetworkRequest,
    OwnNetwork,
    OwnNetworks,
    Role,
    encoder_of,
)
from rl_training.models.carry import Carry
from rl_training.models.choices import CategoricalPolicy, ChoicePolicy, MultiCategoricalPolicy
from rl_training.models.crossq import absorb_statistics, batch_statistics
from rl_training.models.discriminator import MLPGAILDiscriminator
from rl_training.models.dynamics import Imagined, MLPMOPOEnsembleModel, Prediction
from rl_training.models.encoders import Encoder, ImageEncoder, LastHidden, Observed
from rl_training.models.mlp import (
    MLP,
    Activation,
    EnsembleMLP,
    orthogonal_init_,
    restate_inputs_,
    truncated_normal_init_,
)
from rl_training.models.normalizer import (
    ObservationNormalizer,
    ReturnScale,
    RewardScale,
    Standardizer,
)
from rl_training.models.policies import (
    ActionDistribution,
    BoundedGaussianPolicy,
    BoxPolicy,
    DeterministicPolicy,
    GaussianPolicy,
    MeanPolicy,
    Policy,
    TanhGaussianPolicy,
    UnlikePolicyError,
)
from rl_training.models.recurrent import (
    MemoryKind,
    Past,
    RecurrentMemory,
    RolloutCarry,
    RolloutMemory,
)
from rl_training.models.running import Moments, MovingMoments
from rl_training.models.simba import weights_on_sphere
from rl_training.models.stacked import DeferredForward, stacked_forward
from rl_training.models.value_networks import MLPFQFNetwork, ValueLayers

__all__ = [
    "MLP",
    "ActionDistribution",
    "ActionValueCritic",
    "Activation",
    "ActorCritics",
    "ActorValue",
    "Architecture",
    "BoundedGaussianPolicy",
    "BoxPolicy",
    "Carry",
    "CategoricalCritic",
    "CategoricalPolicy",
    "ChoicePolicy",
    "Critics",
    "DeferredForward",
    "DeterministicPolicy",
    "Encoder",
    "EnsembleCritic",
    "EnsembleMLP",
    "GaussianPolicy",
    "ImageEncoder",
    "Imagined",
    "LastHidden",
    "MLPFQFNetwork",
    "MLPGAILDiscriminator",
    "MLPIQLModel",
    "MLPMOPOEnsembleModel",
    "MLPSACModel",
    "MeanPolicy",
    "MemoryKind",
    "Moments",
    "MovingMoments",
    "MultiCategoricalPolicy",
    "NetworkFactory",
    "NetworkKind",
    "NetworkRequest",
    "ObservationNormalizer",
    "Observed",
    "OwnNetwork",
    "OwnNetworks",
    "Past",
    "Policy",
    "Prediction",
    "RecurrentMemory",
    "ReturnScale",
    "RewardScale",
    "Role",
    "RolloutCarry",
    "RolloutMemory",
    "Standardizer",
    "TanhGaussianPolicy",
    "UnlikePolicyError",
    "ValueLayers",
    "ValueNetwork",
    "absorb_statistics",
    "batch_statistics",
    "critics_for",
    "encoder_of",
    "frozen_copy",
    "orthogonal_init_",
    "policy_for",
    "restate_inputs_",
    "stacked_forward",
    "truncated_normal_init_",
    "weights_on_sphere",
]
