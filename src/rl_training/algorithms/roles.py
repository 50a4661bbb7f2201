"""What each loop asks of an algorithm and of its knobs, beyond what every `Algorithm` is.

Structural: an algorithm plays a role by having its members, whatever it derives from. Members
that a role declares as methods or properties are looked for on the class, when a configuration
names the algorithm; the others on the object, when its loop is built (`LoopFamily.refuse_unfit`).
A loop then casts: from Python 3.12 on `isinstance` with a protocol overlooks the submodules of an
`nn.Module`, so no role is checkable at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from rl_training.algorithms.base import Algorithm
    from rl_training.algorithms.params import PriorityExponents
    from rl_training.algorithms.world_model_agent import DreamerCarry, OpenLoop
    from rl_training.models import Carry, MLPMOPOEnsembleModel
    from rl_training.models.dreamer.rssm import RSSM
    from rl_training.models.dynamics import Uncertainty
    from rl_training.replay.sequences import Context, SequenceBatch


class BatchKnobs(Protocol):
    """Knobs of any loop."""

    batch_size: int


class ReplayKnobs(BatchKnobs, Protocol):
    """Knobs of a loop that learns from a replay of its own experience."""

    buffer_capacity: int
    learning_starts: int
    train_frequency: int
    gradient_updates_per_step: float

    @property
    def updates_at_once(self) -> int: ...
    @property
    def return_steps(self) -> int: ...
    @property
    def priority_exponents(self) -> PriorityExponents | None: ...
    @property
    def discount(self) -> float: ...


class PriorDataKnobs(ReplayKnobs, Protocol):
    """Knobs of a loop that continues from data in the environment."""

    offline_pretrain_updates: int
    offline_batch_ratio: float

    @property
    def offline_rows(self) -> int: ...
    def refuse_missing_part(self) -> None: ...


class RolloutKnobs(BatchKnobs, Protocol):
    """Knobs of a loop that learns from rollouts of the current policy."""

    rollout_length: int
    epochs: int
    gae_lambda: float
    gamma: float
    normalize_advantages: bool
    normalize_rewards: bool
    target_kl: float | None


class ModelKnobs(BatchKnobs, Protocol):
    """Knobs of a loop that imagines in a learned model."""

    gamma: float
    termination: str
    rollout_batch_size: int
    epoch_length: int
    retain_epochs: int
    model_buffer_capacity: int | None

    @property
    def real_rows(self) -> int: ...
    @property
    def longest(self) -> int: ...
    def length_at(self, epoch: int) -> int: ...
    def refuse_small_data(self, rows: int, key: str) -> None: ...


class OnlineModelKnobs(ReplayKnobs, ModelKnobs, Protocol):
    model_interval: int


class OfflineModelKnobs(ModelKnobs, Protocol):
    rollout_interval: int


class SequenceKnobs(ReplayKnobs, Protocol):
    """Knobs of a loop that learns from sequences of its own experience."""

    batch_length: int


class ImitationKnobs(BatchKnobs, Protocol):
    """Knobs of a loop that imitates demonstrations."""

    generator: Any
    demo_episodes: int | None
    demo_subsample: int
    reward_form: Any

    @property
    def discriminator_steps(self) -> int: ...


class Role(Protocol):
    """The interface that any loop needs."""

    update_count: Tensor

    def update(self, batch: Any) -> dict[str, Tensor]: ...


class RolloutLearner(Role, Protocol):
    """Learns from rollouts of its own policy."""

    actor: Any
    """The network of the policy; its exponential is checked where drawing an action fails."""
    value: Any
    """(B,) values of (B, ...) observations as the networks see them."""

    def collect(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, ...) actions for such observations, their log-probabilities and the values."""

    def follow_schedules(self, step: int, horizon: int) -> None:
        """Set what changes over the run."""


class RecurrentRolloutLearner(RolloutLearner, Protocol):
    """One whose policy and value remember earlier observations."""

    def rollout_carry(self, rows: int) -> Carry:
        """What is remembered at a reset."""

    def recall(self, obs: Tensor, carry: Any) -> tuple[Tensor, Any]:
        """What `collect` and `value` take of (B, ...) observations, and the carry after them."""


class ModelLearner(Role, Protocol):
    """Learns from what its model of the environment imagines; the loop fits the model."""

    dynamics: MLPMOPOEnsembleModel

    @property
    def uncertainty(self) -> Uncertainty | None:
        """How sure the model is of an imagined step, where the reward depends on it."""

    def imagined_reward(self, reward: Tensor, uncertain: Tensor | None) -> Tensor:
        """(B,) rewards of imagined steps."""


class SequenceLearner(Role, Protocol):
    """Learns from sequences, and acts with a latent state that the replay keeps, too."""

    rssm: RSSM
    last_deter: Tensor
    last_stoch: Tensor

    def initial_carry(self, rows: int) -> DreamerCarry: ...
    def context(self, carry: DreamerCarry) -> Context: ...
    def seen(self, obs: Tensor) -> Tensor: ...
    def images(self, seen: Tensor) -> Tensor: ...
    def open_loop(self, batch: SequenceBatch, shown: int) -> OpenLoop: ...


class Imitator(Role, Protocol):
    """Rewards an inner algorithm, the generator, for what looks like demonstrations."""

    generator: Algorithm

    def reward(self, obs: Tensor, action: Tensor) -> Tensor:
        """(B,) rewards of raw observations and actions, as the discriminator is now."""
