"""Networks and nothing else: no losses, no optimisers, no data."""

from rl_training.models.actor_critic import (
    ActionValueCritic,
    Critics,
    EnsembleCritic,
    MLPIQLModel,
    MLPSACModel,
    ValueNetwork,
    critics_for,
    frozen_copy,
    policy_for,
)
from rl_training.models.carry import Carry
from rl_training.models.discriminator import MLPGAILDiscriminator
from rl_training.models.dynamics import Imagined, MLPMOPOEnsembleModel, Prediction
from rl_training.models.encoders import ImageEncoder, Observed
from rl_training.models.mlp import (
    MLP,
    EnsembleMLP,
    orthogonal_init_,
    restate_inputs_,
    truncated_normal_init_,
)
from rl_training.models.normalizer import ObservationNormalizer, RewardScale, Standardizer
from rl_training.models.policies import (
    ActionDistribution,
    BoundedGaussianPolicy,
    BoxPolicy,
    CategoricalPolicy,
    DeterministicPolicy,
    GaussianPolicy,
    MeanPolicy,
    Policy,
    TanhGaussianPolicy,
    UnlikePolicyError,
)
from rl_training.models.questions import Question, together
from rl_training.models.running import Moments, MovingMoments
from rl_training.models.value_networks import MLPFQFNetwork

__all__ = [
    "MLP",
    "ActionDistribution",
    "ActionValueCritic",
    "BoundedGaussianPolicy",
    "BoxPolicy",
    "Carry",
    "CategoricalPolicy",
    "Critics",
    "DeterministicPolicy",
    "EnsembleCritic",
    "EnsembleMLP",
    "GaussianPolicy",
    "ImageEncoder",
    "Imagined",
    "MLPFQFNetwork",
    "MLPGAILDiscriminator",
    "MLPIQLModel",
    "MLPMOPOEnsembleModel",
    "MLPSACModel",
    "MeanPolicy",
    "Moments",
    "MovingMoments",
    "ObservationNormalizer",
    "Observed",
    "Policy",
    "Prediction",
    "Question",
    "RewardScale",
    "Standardizer",
    "TanhGaussianPolicy",
    "UnlikePolicyError",
    "ValueNetwork",
    "critics_for",
    "frozen_copy",
    "orthogonal_init_",
    "policy_for",
    "restate_inputs_",
    "together",
    "truncated_normal_init_",
]
