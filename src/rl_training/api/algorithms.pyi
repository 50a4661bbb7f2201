"""Written by `make generated` from the registry: change Params instead."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import torch

from rl_training.api.managed import ManagedAlgorithm
from rl_training.data.dataset import TransitionDataset
from rl_training.data.table_files import Frame
from rl_training.envs.named import Environment
from rl_training.models import NetworkFactory
from rl_training.algorithms.fqe import EvaluatedPolicy
from rl_training.algorithms.ppo import PPOParams
from rl_training.algorithms.sac import SACParams
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.data_config import DatasetConfig
from rl_training.experiment.run_sections import EarlyStoppingConfig
from rl_training.experiment.run_sections import LoggerConfig
from rl_training.experiment.run_sections import Schedule
from rl_training.experiment.run_sections import WrapperConfig

__all__ = ['BC', 'AWR', 'MARWIL', 'CRR', 'IQL', 'AWAC', 'CQL', 'TD3BC', 'ReBRAC', 'SAC', 'TD3', 'RLPD', 'MBPO', 'MOPO', 'DQN', 'C51', 'QRDQN', 'IQN', 'FQF', 'PPO', 'Dreamer', 'GAIL', 'FQE', 'managed_class']

def managed_class(algo: str) -> type[ManagedAlgorithm]: ...
def described(learner: Any) -> str: ...
def public_name(algo: str) -> str: ...

class RunKeys(TypedDict, total=False):
    env_id: str | None
    """Gymnasium environment of the policy; learning from data alone needs none."""
    env_kwargs: Mapping[str, Any]
    """Keyword arguments for gymnasium.make."""
    wrappers: Sequence[WrapperConfig | Mapping[str, Any]]
    """Wrappers of every environment, the first innermost: package.module:Class, or with options."""
    train_env_kwargs: Mapping[str, Any]
    """Keyword arguments of the training environments only; they override env_kwargs (online)."""
    seed: int
    """Seed of everything random in the run."""
    seeds: Sequence[int] | None
    """Seeds of several agents trained at once, each as with `seed` (offline, or in worlds)."""
    device: str | torch.device
    """auto, cpu, cuda or cuda:N; auto uses a GPU if there is one."""
    engine: Literal['auto', 'eager', 'compile', 'graph', 'compiled_graph']
    """How updates are executed; auto uses CUDA graphs if possible and compiles long runs."""
    tf32: bool
    """Let a GPU round the inputs of matrix products to TF32: faster, less precise."""
    products: Literal['library', 'tiled']
    """Batched products of compiled updates on a GPU: PyTorch's, or tiles on its tensor cores."""
    threads: int
    """CPU threads for tensor operations; 0 chooses by network size."""
    profile: bool
    """Report where the time of the run goes, early on and at its end."""
    init_from: str | PathLike[str] | None
    """Run or checkpoint folder with the policy to start from."""
    total_updates: int | None
    """Budget in gradient updates (offline)."""
    total_epochs: int | None
    """Budget in passes over the data set, instead of total_updates (offline)."""
    total_timesteps: int | None
    """Budget in environment steps (online)."""
    num_envs: int
    """Environments that are stepped together (online)."""
    vectorization: Literal['sync', 'async']
    """sync: in this process, for fast environments; async: one process each (online)."""
    env_workers: int
    """Processes that share the environments, at most one each; 0: see vectorization (online)."""
    overlap_updates: bool
    """Update while the environments make the next step, whose actions were chosen before."""
    eval_interval: int
    """Updates or environment steps between evaluations; 0 evaluates only at the end."""
    eval_episodes: int
    """Episodes per evaluation."""
    eval_max_steps: int
    """Steps after which an evaluation truncates an episode, with a note."""
    final_eval: bool
    """Evaluate when the run ends."""
    checkpoint_interval: int
    """Updates or environment steps between checkpoints; 0: only checkpoint_minutes applies."""
    checkpoint_minutes: float
    """Also save after this many minutes; 0 turns that off."""
    keep_last: int
    """Number of newest checkpoints that are kept."""
    keep_best: bool
    """Save and keep the checkpoint with the best evaluation."""
    best_metric: str | None
    """Evaluation metric that selects the best checkpoint; by default that of early_stopping."""
    log_interval: int
    """Updates or environment steps between two lines of training metrics."""
    lr_schedule: Schedule | Mapping[str, Any]
    """Learning-rate factor over the run, for every optimiser."""
    early_stopping: EarlyStoppingConfig | Mapping[str, Any] | None
    """Optional early stopping on evaluations."""
    tensorboard: bool
    """Write TensorBoard events in addition to metrics.jsonl."""
    loggers: Sequence[LoggerConfig | Mapping[str, Any] | str]
    """Further loggers, by name or with options: csv, wandb, mlflow, package.module:Class."""
    report: bool
    """Write report.html into the run folder, at evaluations and at the end."""
    output_dir: str | PathLike[str]
    """Folder in which the run folder is made."""
    run_name: str | None
    """Name of the run folder; by default made of algorithm, task, seed and time."""
    algo_kwargs: Mapping[str, Any]
    """Knobs of the algorithm."""

class BC(ManagedAlgorithm):
    """Behaviour cloning.

    In short: clone the behaviour in the data.
    Paper: Pomerleau 1989.

    Knobs, beside the keys of the configuration:

        policy_average = 0.0
            Rate of a moving average of the policy's weights, which then acts; 0 for none.
        return_temperature = 0.0
            Sample rows in proportion to exp(return of their episode, in 0..1, / this); 0 is uniform.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 256
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of the policy.
        action_distribution = 'gaussian'
            Density of Box actions: a Gaussian around a mean inside the box, or the tanh of one.
        loss = 'likelihood'
            Maximise the likelihood of the data's actions, or fit a deterministic policy to them.
        lr = 0.0003
            Learning rate.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        policy_average: float = 0.0,
        return_temperature: float | None = 0.0,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 256,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        action_distribution: Literal['gaussian', 'tanh_gaussian'] = 'gaussian',
        loss: Literal['likelihood', 'mse'] = 'likelihood',
        lr: float = 0.0003,
        **run: Unpack[RunKeys],
    ) -> None: ...

class AWR(ManagedAlgorithm):
    """Advantage-weighted regression.

    In short: clone good actions more, by return above the value.
    Paper: Peng et al. 2019.

    Knobs, beside the keys of the configuration:

        policy_average = 0.0
            Rate of a moving average of the policy's weights, which then acts; 0 for none.
        return_temperature = 0.0
            Sample rows in proportion to exp(return of their episode, in 0..1, / this); 0 is uniform.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 256
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of critics and value networks.
        policy_hidden_sizes = None
            Widths of the policy's hidden layers; hidden_sizes by default.
        critic_hidden_sizes = None
            Widths of the hidden layers of critics and value networks; hidden_sizes by default.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        action_distribution = 'gaussian'
            Density of Box actions: a Gaussian around a mean inside the box, or the tanh of one.
        advantage_norm_rate = 0.01
            Rate of the moving mean and standard deviation of the advantages.
        temperature = 1.0
            Weights are exp(advantage / temperature); smaller is greedier.
        max_weight = 20.0
            Cap of the weights.
        normalize_advantages = True
            Standardise advantages, so that the temperature means the same on every reward scale.
        policy_lr = 0.0003
            Learning rate of the policy.
        value_lr = 0.001
            Learning rate of the value network.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        policy_average: float = 0.0,
        return_temperature: float | None = 0.0,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 256,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        policy_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        gamma: float = 0.99,
        action_distribution: Literal['gaussian', 'tanh_gaussian'] = 'gaussian',
        advantage_norm_rate: float = 0.01,
        temperature: float = 1.0,
        max_weight: float = 20.0,
        normalize_advantages: bool = True,
        policy_lr: float = 0.0003,
        value_lr: float = 0.001,
        **run: Unpack[RunKeys],
    ) -> None: ...

class MARWIL(ManagedAlgorithm):
    """Monotonic advantage re-weighted imitation learning.

    In short: clone good actions more, by self-scaled advantage.
    Paper: Wang et al. 2018.

    Knobs, beside the keys of the configuration:

        policy_average = 0.0
            Rate of a moving average of the policy's weights, which then acts; 0 for none.
        return_temperature = 0.0
            Sample rows in proportion to exp(return of their episode, in 0..1, / this); 0 is uniform.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 256
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of critics and value networks.
        policy_hidden_sizes = None
            Widths of the policy's hidden layers; hidden_sizes by default.
        critic_hidden_sizes = None
            Widths of the hidden layers of critics and value networks; hidden_sizes by default.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        action_distribution = 'gaussian'
            Density of Box actions: a Gaussian around a mean inside the box, or the tanh of one.
        advantage_norm_rate = 0.01
            How fast the moving average of squared advantages follows the batches.
        inverse_temperature = 1.0
            Weights are exp(inverse_temperature * normalised advantage); 0 is cloning.
        max_weight = 20.0
            Cap of the weights, applied to the exponent.
        value_coef = 1.0
            Weight of the value loss, and factor of the value network's learning rate.
        lr = 0.0003
            Learning rate of the policy; value_coef scales that of the value network.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        policy_average: float = 0.0,
        return_temperature: float | None = 0.0,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 256,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        policy_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        gamma: float = 0.99,
        action_distribution: Literal['gaussian', 'tanh_gaussian'] = 'gaussian',
        advantage_norm_rate: float = 0.01,
        inverse_temperature: float = 1.0,
        max_weight: float = 20.0,
        value_coef: float = 1.0,
        lr: float = 0.0003,
        **run: Unpack[RunKeys],
    ) -> None: ...

class CRR(ManagedAlgorithm):
    """Critic-regularized regression.

    In short: clone actions that a critic rates above the policy's own.
    Paper: Wang et al. 2020.

    Knobs, beside the keys of the configuration:

        policy_average = 0.0
            Rate of a moving average of the policy's weights, which then acts; 0 for none.
        return_temperature = 0.0
            Sample rows in proportion to exp(return of their episode, in 0..1, / this); 0 is uniform.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 256
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of critics and value networks.
        policy_hidden_sizes = None
            Widths of the policy's hidden layers; hidden_sizes by default.
        critic_hidden_sizes = None
            Widths of the hidden layers of critics and value networks; hidden_sizes by default.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        tau = 0.005
            Rate at which target networks follow the online ones, per update.
        policy_lr = 0.0003
            Learning rate of the policy.
        critic_lr = 0.0003
            Learning rate of the critics.
        action_distribution = 'gaussian'
            Density of Box actions: a Gaussian around a mean inside the box, or the tanh of one.
        num_action_samples = 4
            Policy actions per state against which the data's action is compared.
        advantage_type = 'mean'
            Compare with the mean or with the best of the sampled actions.
        weight_type = 'exp'
            Weight 1 for positive advantages and 0 else, or exp(advantage / temperature).
        temperature = 1.0
            Temperature of the exp weights; smaller is greedier.
        max_weight = 20.0
            Cap of the exp weights.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        policy_average: float = 0.0,
        return_temperature: float | None = 0.0,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 256,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        policy_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        gamma: float = 0.99,
        tau: float = 0.005,
        policy_lr: float = 0.0003,
        critic_lr: float = 0.0003,
        action_distribution: Literal['gaussian', 'tanh_gaussian'] = 'gaussian',
        num_action_samples: int = 4,
        advantage_type: Literal['mean', 'max'] = 'mean',
        weight_type: Literal['binary', 'exp'] = 'exp',
        temperature: float = 1.0,
        max_weight: float = 20.0,
        **run: Unpack[RunKeys],
    ) -> None: ...

class IQL(ManagedAlgorithm):
    """Implicit Q-learning.

    In short: TD learning that never asks for an unseen action.
    Paper: Kostrikov et al. 2021.

    Knobs, beside the keys of the configuration:

        buffer_capacity = 1000000
            Transitions the replay holds; the oldest are overwritten.
        learning_starts = 1000
            Environment steps before the first update; random unless the policy has learned before.
        train_frequency = 1
            Environment steps between two rounds of updates.
        gradient_updates_per_step = 1.0
            Updates per environment step; fractions are kept exactly over time.
        policy_average = 0.0
            Rate of a moving average of the policy's weights, which then acts; 0 for none.
        return_temperature = 0.0
            Sample rows in proportion to exp(return of their episode, in 0..1, / this); 0 is uniform.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 256
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of critics and value networks.
        policy_hidden_sizes = None
            Widths of the policy's hidden layers; hidden_sizes by default.
        critic_hidden_sizes = None
            Widths of the hidden layers of critics and value networks; hidden_sizes by default.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        offline_pretrain_updates = 0
            Updates on the prior data alone, before the first environment step.
        offline_batch_ratio = 0.5
            Share of every minibatch that is prior data, to the nearest whole row.
        tau = 0.005
            Rate at which target networks follow the online ones, per update.
        policy_lr = 0.0003
            Learning rate of the policy.
        critic_lr = 0.0003
            Learning rate of the critics.
        action_distribution = 'gaussian'
            Density of Box actions: a Gaussian around a mean inside the box, or the tanh of one.
        expectile = 0.7
            Which expectile of Q over the data's actions V estimates; towards 1 is towards the max.
        inverse_temperature = 3.0
            Weights are exp(inverse_temperature * advantage); larger is greedier.
        max_weight = 100.0
            Cap of the weights.
        value_lr = 0.0003
            Learning rate of the value network.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        buffer_capacity: int = 1000000,
        learning_starts: int = 1000,
        train_frequency: int = 1,
        gradient_updates_per_step: float = 1.0,
        policy_average: float = 0.0,
        return_temperature: float | None = 0.0,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 256,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        policy_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        gamma: float = 0.99,
        offline_pretrain_updates: int = 0,
        offline_batch_ratio: float = 0.5,
        tau: float = 0.005,
        policy_lr: float = 0.0003,
        critic_lr: float = 0.0003,
        action_distribution: Literal['gaussian', 'tanh_gaussian'] = 'gaussian',
        expectile: float = 0.7,
        inverse_temperature: float = 3.0,
        max_weight: float = 100.0,
        value_lr: float = 0.0003,
        **run: Unpack[RunKeys],
    ) -> None: ...

class AWAC(ManagedAlgorithm):
    """Advantage-weighted actor-critic.

    In short: clone good actions more, by a critic's advantage.
    Paper: Nair et al. 2020.

    Knobs, beside the keys of the configuration:

        buffer_capacity = 1000000
            Transitions the replay holds; the oldest are overwritten.
        learning_starts = 1000
            Environment steps before the first update; random unless the policy has learned before.
        train_frequency = 1
            Environment steps between two rounds of updates.
        gradient_updates_per_step = 1.0
            Updates per environment step; fractions are kept exactly over time.
        policy_average = 0.0
            Rate of a moving average of the policy's weights, which then acts; 0 for none.
        return_temperature = 0.0
            Sample rows in proportion to exp(return of their episode, in 0..1, / this); 0 is uniform.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 256
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of critics and value networks.
        policy_hidden_sizes = None
            Widths of the policy's hidden layers; hidden_sizes by default.
        critic_hidden_sizes = None
            Widths of the hidden layers of critics and value networks; hidden_sizes by default.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        offline_pretrain_updates = 0
            Updates on the prior data alone, before the first environment step.
        offline_batch_ratio = 0.5
            Share of every minibatch that is prior data, to the nearest whole row.
        tau = 0.005
            Rate at which target networks follow the online ones, per update.
        policy_lr = 0.0003
            Learning rate of the policy.
        critic_lr = 0.0003
            Learning rate of the critics.
        action_distribution = 'gaussian'
            Density of Box actions: a Gaussian around a mean inside the box, or the tanh of one.
        temperature = 1.0
            Weights grow with exp(advantage / temperature); smaller is greedier.
        weight_type = 'exp'
            Capped exponential, or a softmax over the batch times the batch size.
        max_weight = 100.0
            Cap of the exp weights.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        buffer_capacity: int = 1000000,
        learning_starts: int = 1000,
        train_frequency: int = 1,
        gradient_updates_per_step: float = 1.0,
        policy_average: float = 0.0,
        return_temperature: float | None = 0.0,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 256,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        policy_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        gamma: float = 0.99,
        offline_pretrain_updates: int = 0,
        offline_batch_ratio: float = 0.5,
        tau: float = 0.005,
        policy_lr: float = 0.0003,
        critic_lr: float = 0.0003,
        action_distribution: Literal['gaussian', 'tanh_gaussian'] = 'gaussian',
        temperature: float = 1.0,
        weight_type: Literal['exp', 'softmax'] = 'exp',
        max_weight: float = 100.0,
        **run: Unpack[RunKeys],
    ) -> None: ...

class CQL(ManagedAlgorithm):
    """Conservative Q-learning.

    In short: actor-critic that rates unseen actions down.
    Paper: Kumar et al. 2020.

    Knobs, beside the keys of the configuration:

        policy_average = 0.0
            Rate of a moving average of the policy's weights, which then acts; 0 for none.
        return_temperature = None
            Sample rows by exp(episode return / this); 0: uniform; default 0.1, Discrete actions 0.
        buffer_capacity = 1000000
            Transitions the replay holds; the oldest are overwritten.
        learning_starts = 1000
            Environment steps before the first update; random unless the policy has learned before.
        train_frequency = 1
            Environment steps between two rounds of updates.
        gradient_updates_per_step = 1.0
            Updates per environment step; fractions are kept exactly over time.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 256
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of critics and value networks.
        policy_hidden_sizes = None
            Widths of the policy's hidden layers; hidden_sizes by default.
        critic_hidden_sizes = None
            Widths of the hidden layers of critics and value networks; hidden_sizes by default.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        offline_pretrain_updates = 0
            Updates on the prior data alone, before the first environment step.
        offline_batch_ratio = 0.5
            Share of every minibatch that is prior data, to the nearest whole row.
        tau = 0.005
            Rate at which target networks follow the online ones, per update.
        policy_lr = 0.0001
            Learning rate of the policy.
        critic_lr = 0.0003
            Learning rate of the critics.
        min_q_weight = 5.0
            Weight of the conservative term; larger trusts unseen actions less.
        num_action_samples = 10
            Uniform, policy and next-policy actions per state in the conservative term, of each.
        importance_weights = False
            The paper's objective: sampled values over their densities, without the data's action.
        cloning_weight = None
            Weight of the policy's distance to the data; 1 by default, in the paper's objective 0.
        calibrate = False
            Cal-QL: push values of the policy's actions down no further than the logged returns.
        lagrange_threshold = None
            Tune a multiplier of the term so that min_q_weight * gap stays near this; off by default.
        lagrange_lr = 0.0003
            Learning rate of that multiplier.
        backup_entropy = False
            Put the entropy bonus into the TD target.
        backup_action = 'sampled'
            Action of the policy at s' whose value the TD target takes.
        target_entropy = None
            Entropy aimed at; default: -4 (the paper's: -1) per component, or 10% of uniform.
        temperature_lr = 0.0001
            Learning rate of the temperature.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        policy_average: float = 0.0,
        return_temperature: float | None = None,
        buffer_capacity: int = 1000000,
        learning_starts: int = 1000,
        train_frequency: int = 1,
        gradient_updates_per_step: float = 1.0,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 256,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        policy_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        gamma: float = 0.99,
        offline_pretrain_updates: int = 0,
        offline_batch_ratio: float = 0.5,
        tau: float = 0.005,
        policy_lr: float = 0.0001,
        critic_lr: float = 0.0003,
        min_q_weight: float = 5.0,
        num_action_samples: int = 10,
        importance_weights: bool = False,
        cloning_weight: float | None = None,
        calibrate: bool = False,
        lagrange_threshold: float | None = None,
        lagrange_lr: float = 0.0003,
        backup_entropy: bool = False,
        backup_action: Literal['sampled', 'mode'] = 'sampled',
        target_entropy: float | None = None,
        temperature_lr: float = 0.0001,
        **run: Unpack[RunKeys],
    ) -> None: ...

class TD3BC(ManagedAlgorithm):
    """TD3 with behaviour cloning.

    In short: deterministic actor-critic that stays near the data.
    Paper: Fujimoto and Gu 2021.

    Knobs, beside the keys of the configuration:

        policy_average = 0.0
            Rate of a moving average of the policy's weights, which then acts; 0 for none.
        return_temperature = None
            Sample rows by exp(episode return / this); 0: uniform; default 0.1, without episodes 0.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 256
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of critics and value networks.
        policy_hidden_sizes = None
            Widths of the policy's hidden layers; hidden_sizes by default.
        critic_hidden_sizes = None
            Widths of the hidden layers of critics and value networks; hidden_sizes by default.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        tau = 0.005
            Rate at which target networks follow the online ones, per update.
        policy_lr = 0.0003
            Learning rate of the policy.
        critic_lr = 0.0003
            Learning rate of the critics.
        policy_delay = 2
            Updates of the critics per step of the policy and the target networks.
        target_noise = 0.2
            Standard deviation of the noise on the target policy's actions.
        target_noise_clip = 0.5
            Largest size of that noise, per component.
        alpha = 2.5
            Weight of the critic against cloning; smaller stays nearer to the data.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        policy_average: float = 0.0,
        return_temperature: float | None = None,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 256,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        policy_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        gamma: float = 0.99,
        tau: float = 0.005,
        policy_lr: float = 0.0003,
        critic_lr: float = 0.0003,
        policy_delay: int = 2,
        target_noise: float = 0.2,
        target_noise_clip: float = 0.5,
        alpha: float = 2.5,
        **run: Unpack[RunKeys],
    ) -> None: ...

class ReBRAC(ManagedAlgorithm):
    """Revisited behaviour-regularised actor-critic.

    In short: deterministic actor-critic with penalties on policy and target.
    Paper: Tarasov et al. 2023.

    Knobs, beside the keys of the configuration:

        policy_average = 0.0
            Rate of a moving average of the policy's weights, which then acts; 0 for none.
        return_temperature = None
            Sample rows by exp(episode return / this); 0: uniform; default 0.1, without episodes 0.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 1024
            Transitions per update.
        hidden_sizes = (256, 256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = True
            LayerNorm before the activations of the critics.
        policy_hidden_sizes = None
            Widths of the policy's hidden layers; hidden_sizes by default.
        critic_hidden_sizes = None
            Widths of the hidden layers of critics and value networks; hidden_sizes by default.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        tau = 0.005
            Rate at which target networks follow the online ones, per update.
        policy_lr = 0.0001
            Learning rate of the policy.
        critic_lr = 0.001
            Learning rate of the critics.
        policy_delay = 2
            Updates of the critics per step of the policy and the target networks.
        target_noise = 0.2
            Standard deviation of the noise on the target policy's actions.
        target_noise_clip = 0.5
            Largest size of that noise, per component.
        policy_penalty = 0.3
            Weight of the distance from the policy's action to the data's.
        critic_penalty = 0.3
            Weight of the distance from the target's action to the data's next action.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        policy_average: float = 0.0,
        return_temperature: float | None = None,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 1024,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = True,
        policy_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        gamma: float = 0.99,
        tau: float = 0.005,
        policy_lr: float = 0.0001,
        critic_lr: float = 0.001,
        policy_delay: int = 2,
        target_noise: float = 0.2,
        target_noise_clip: float = 0.5,
        policy_penalty: float = 0.3,
        critic_penalty: float = 0.3,
        **run: Unpack[RunKeys],
    ) -> None: ...

class SAC(ManagedAlgorithm):
    """Soft actor-critic.

    In short: sample-efficient continuous control with an entropy bonus.
    Paper: Haarnoja et al. 2018.

    Knobs, beside the keys of the configuration:

        buffer_capacity = 1000000
            Transitions the replay holds; the oldest are overwritten.
        learning_starts = 1000
            Environment steps with random actions before the first update.
        train_frequency = 1
            Environment steps between two rounds of updates.
        gradient_updates_per_step = 1.0
            Updates per environment step; fractions are kept exactly over time.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 256
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of critics and value networks.
        policy_hidden_sizes = None
            Widths of the policy's hidden layers; hidden_sizes by default.
        critic_hidden_sizes = None
            Widths of the hidden layers of critics and value networks; hidden_sizes by default.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        tau = 0.005
            Rate at which target networks follow the online ones, per update.
        policy_lr = 0.0003
            Learning rate of the policy.
        critic_lr = 0.0003
            Learning rate of the critics.
        fixed_temperature = None
            Weight of the entropy, held constant; tuned automatically by default.
        target_entropy = None
            Entropy aimed at; default: minus the number of action components, or 30% of uniform.
        temperature_lr = 0.0003
            Learning rate of the temperature.
        initial_temperature = 1.0
            Initial weight of the entropy, if it is tuned.
        policy_delay = 1
            Updates of the critics per step of the policy and the temperature.
        architecture = 'mlp'
            Layers of policy and critics: mlp, crossq (no target critics), simba or simbav2.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        buffer_capacity: int = 1000000,
        learning_starts: int = 1000,
        train_frequency: int = 1,
        gradient_updates_per_step: float = 1.0,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 256,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        policy_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        gamma: float = 0.99,
        tau: float = 0.005,
        policy_lr: float = 0.0003,
        critic_lr: float = 0.0003,
        fixed_temperature: float | None = None,
        target_entropy: float | None = None,
        temperature_lr: float = 0.0003,
        initial_temperature: float = 1.0,
        policy_delay: int = 1,
        architecture: Literal['mlp', 'crossq', 'simba', 'simbav2'] = 'mlp',
        **run: Unpack[RunKeys],
    ) -> None: ...

class TD3(ManagedAlgorithm):
    """Twin delayed deep deterministic policy gradient.

    In short: continuous control with a deterministic policy and twin critics.
    Paper: Fujimoto et al. 2018.

    Knobs, beside the keys of the configuration:

        buffer_capacity = 1000000
            Transitions the replay holds; the oldest are overwritten.
        learning_starts = 1000
            Environment steps with random actions before the first update.
        train_frequency = 1
            Environment steps between two rounds of updates.
        gradient_updates_per_step = 1.0
            Updates per environment step; fractions are kept exactly over time.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 256
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of critics and value networks.
        policy_hidden_sizes = None
            Widths of the policy's hidden layers; hidden_sizes by default.
        critic_hidden_sizes = None
            Widths of the hidden layers of critics and value networks; hidden_sizes by default.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        tau = 0.005
            Rate at which target networks follow the online ones, per update.
        policy_lr = 0.0003
            Learning rate of the policy.
        critic_lr = 0.0003
            Learning rate of the critics.
        policy_delay = 2
            Updates of the critics per step of the policy and the target networks.
        target_noise = 0.2
            Standard deviation of the noise on the target policy's actions.
        target_noise_clip = 0.5
            Largest size of that noise, per component.
        architecture = 'mlp'
            Layers of policy and critics: mlp, crossq (no target critics), simba or simbav2.
        exploration_noise = 0.1
            Standard deviation of the noise on actions in training.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        buffer_capacity: int = 1000000,
        learning_starts: int = 1000,
        train_frequency: int = 1,
        gradient_updates_per_step: float = 1.0,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 256,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        policy_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        gamma: float = 0.99,
        tau: float = 0.005,
        policy_lr: float = 0.0003,
        critic_lr: float = 0.0003,
        policy_delay: int = 2,
        target_noise: float = 0.2,
        target_noise_clip: float = 0.5,
        architecture: Literal['mlp', 'crossq', 'simba', 'simbav2'] = 'mlp',
        exploration_noise: float = 0.1,
        **run: Unpack[RunKeys],
    ) -> None: ...

class RLPD(ManagedAlgorithm):
    """Reinforcement learning with prior data.

    In short: from prior data to online improvement in few steps.
    Paper: Ball et al. 2023.

    Knobs, beside the keys of the configuration:

        buffer_capacity = 1000000
            Transitions the replay holds; the oldest are overwritten.
        learning_starts = 5000
            Environment steps before the first update; random unless the policy has learned before.
        train_frequency = 1
            Environment steps between two rounds of updates.
        gradient_updates_per_step = 20.0
            Critic updates per environment step; the policy is updated once per round of them.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 256
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = True
            Standardise every hidden layer of the critics before its ReLU.
        policy_hidden_sizes = None
            Widths of the policy's hidden layers; hidden_sizes by default.
        critic_hidden_sizes = None
            Widths of the hidden layers of critics and value networks; hidden_sizes by default.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        tau = 0.005
            Rate at which target networks follow the online ones, per update.
        policy_lr = 0.0003
            Learning rate of the policy.
        critic_lr = 0.0003
            Learning rate of the critics.
        architecture = 'mlp'
            Layers of policy and critics: mlp, crossq (no target critics), simba or simbav2.
        offline_pretrain_updates = 0
            Updates on the prior data alone, before the first environment step.
        offline_batch_ratio = 0.5
            Share of every minibatch that is prior data, to the nearest whole row.
        num_critics = 10
            Critics in the ensemble.
        num_min_critics = 2
            Critics whose minimum is the target, sampled for every update.
        policy_objective = 'mean'
            The value that the policy maximises: the critics' mean, or their minimum as in SAC.
        fixed_temperature = None
            Weight of the entropy, held constant; tuned automatically by default.
        target_entropy = None
            Entropy aimed at; default: minus half the action components, or 30% of uniform.
        temperature_lr = 0.0003
            Learning rate of the temperature.
        backup_entropy = True
            Count the entropy bonus of the next action in the critics' target.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        buffer_capacity: int = 1000000,
        learning_starts: int = 5000,
        train_frequency: int = 1,
        gradient_updates_per_step: float = 20.0,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 256,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = True,
        policy_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        gamma: float = 0.99,
        tau: float = 0.005,
        policy_lr: float = 0.0003,
        critic_lr: float = 0.0003,
        architecture: Literal['mlp', 'crossq', 'simba', 'simbav2'] = 'mlp',
        offline_pretrain_updates: int = 0,
        offline_batch_ratio: float = 0.5,
        num_critics: int = 10,
        num_min_critics: int = 2,
        policy_objective: Literal['mean', 'min'] = 'mean',
        fixed_temperature: float | None = None,
        target_entropy: float | None = None,
        temperature_lr: float = 0.0003,
        backup_entropy: bool = True,
        **run: Unpack[RunKeys],
    ) -> None: ...

class MBPO(ManagedAlgorithm):
    """Soft actor-critic on imagined transitions of a learned model.

    In short: SAC in short rollouts of a learned model, where steps are expensive.
    Paper: Janner et al. 2019.

    Knobs, beside the keys of the configuration:

        buffer_capacity = 1000000
            Transitions the replay holds; the oldest are overwritten.
        learning_starts = 5000
            Environment steps with random actions before the first fit and the first update.
        train_frequency = 1
            Environment steps between two rounds of updates.
        gradient_updates_per_step = 20.0
            Updates per environment step; fractions are exact over time.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 256
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of critics and value networks.
        policy_hidden_sizes = None
            Widths of the policy's hidden layers; hidden_sizes by default.
        critic_hidden_sizes = None
            Widths of the hidden layers of critics and value networks; hidden_sizes by default.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        num_members = 7
            Models in the ensemble.
        num_elites = 5
            Models used for imagined steps: those with the smallest error on the holdout.
        model_hidden_sizes = (200, 200, 200, 200)
            Widths of the hidden layers of every model.
        model_lr = 0.001
            Learning rate of the models.
        model_batch_size = 256
            Transitions per step of a fit, for every model.
        model_weight_decay = (2.5e-05, 5e-05, 7.5e-05, 7.5e-05, 0.0001)
            Weight decay from the first to the last layer; spread evenly over any other depth.
        holdout_ratio = 0.2
            Fraction of the data that is held out of a fit to evaluate it.
        max_holdout = 5000
            Maximum number of transitions in the holdout.
        model_patience = 5
            Epochs without improvement after which a fit stops.
        model_max_epochs = None
            Maximum number of epochs of a fit; no limit by default.
        termination = 'auto'
            Ends of imagined episodes: auto, a known task, learned, never, or package.module:name.
        rollout_batch_size = 100000
            Imagined rollouts that start together, in states of the real data.
        rollout_length = 1
            Steps of a rollout at the start of the run.
        final_rollout_length = None
            Steps of a rollout at the end of the growth; as at the start by default.
        rollout_growth = (20, 150)
            Epochs between which the length grows linearly.
        epoch_length = 1000
            Environment steps, or updates without an environment, that count as one epoch.
        retain_epochs = 1
            Epochs for which imagined transitions are kept.
        model_buffer_capacity = None
            Maximum number of imagined transitions kept; follows from retain_epochs by default.
        real_ratio = 0.05
            Fraction of every minibatch that is real, to the nearest row.
        tau = 0.005
            Rate at which target networks follow the online ones, per update.
        policy_lr = 0.0003
            Learning rate of the policy.
        critic_lr = 0.0003
            Learning rate of the critics.
        fixed_temperature = None
            Weight of the entropy, held constant; tuned automatically by default.
        target_entropy = None
            Entropy aimed at; default: minus the number of action components, or 30% of uniform.
        temperature_lr = 0.0003
            Learning rate of the temperature.
        initial_temperature = 1.0
            Initial weight of the entropy, if it is tuned.
        policy_delay = 1
            Updates of the critics per step of the policy and the temperature.
        architecture = 'mlp'
            Layers of policy and critics: mlp, crossq (no target critics), simba or simbav2.
        model_interval = 250
            Environment steps between two fits of the model, each followed by rollouts.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        buffer_capacity: int = 1000000,
        learning_starts: int = 5000,
        train_frequency: int = 1,
        gradient_updates_per_step: float = 20.0,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 256,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        policy_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        gamma: float = 0.99,
        num_members: int = 7,
        num_elites: int = 5,
        model_hidden_sizes: Sequence[int] = ...,
        model_lr: float = 0.001,
        model_batch_size: int = 256,
        model_weight_decay: Sequence[float] = ...,
        holdout_ratio: float = 0.2,
        max_holdout: int = 5000,
        model_patience: int = 5,
        model_max_epochs: int | None = None,
        termination: str = 'auto',
        rollout_batch_size: int = 100000,
        rollout_length: int = 1,
        final_rollout_length: int | None = None,
        rollout_growth: Sequence[int] = ...,
        epoch_length: int = 1000,
        retain_epochs: int = 1,
        model_buffer_capacity: int | None = None,
        real_ratio: float = 0.05,
        tau: float = 0.005,
        policy_lr: float = 0.0003,
        critic_lr: float = 0.0003,
        fixed_temperature: float | None = None,
        target_entropy: float | None = None,
        temperature_lr: float = 0.0003,
        initial_temperature: float = 1.0,
        policy_delay: int = 1,
        architecture: Literal['mlp', 'crossq', 'simba', 'simbav2'] = 'mlp',
        model_interval: int = 250,
        **run: Unpack[RunKeys],
    ) -> None: ...

class MOPO(ManagedAlgorithm):
    """Soft actor-critic on imagined transitions, penalised by the model's uncertainty.

    In short: SAC in a model of the data that pays for its uncertainty.
    Paper: Yu et al. 2020.

    Knobs, beside the keys of the configuration:

        policy_average = 0.0
            Rate of a moving average of the policy's weights, which then acts; 0 for none.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 256
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of critics and value networks.
        policy_hidden_sizes = None
            Widths of the policy's hidden layers; hidden_sizes by default.
        critic_hidden_sizes = None
            Widths of the hidden layers of critics and value networks; hidden_sizes by default.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        num_members = 7
            Models in the ensemble.
        num_elites = 5
            Models used for imagined steps: those with the smallest error on the holdout.
        model_hidden_sizes = (200, 200, 200, 200)
            Widths of the hidden layers of every model.
        model_lr = 0.001
            Learning rate of the models.
        model_batch_size = 256
            Transitions per step of a fit, for every model.
        model_weight_decay = (2.5e-05, 5e-05, 7.5e-05, 7.5e-05, 0.0001)
            Weight decay from the first to the last layer; spread evenly over any other depth.
        holdout_ratio = 0.2
            Fraction of the data that is held out of a fit to evaluate it.
        max_holdout = 5000
            Maximum number of transitions in the holdout.
        model_patience = 5
            Epochs without improvement after which a fit stops.
        model_max_epochs = None
            Maximum number of epochs of a fit; no limit by default.
        termination = 'auto'
            Ends of imagined episodes: auto, a known task, learned, never, or package.module:name.
        rollout_batch_size = 50000
            Imagined rollouts that start together, in states of the data.
        rollout_length = 5
            Steps of a rollout at the start of the run.
        final_rollout_length = None
            Steps of a rollout at the end of the growth; as at the start by default.
        rollout_growth = (20, 150)
            Epochs between which the length grows linearly.
        epoch_length = 1000
            Environment steps, or updates without an environment, that count as one epoch.
        retain_epochs = 5
            Epochs for which imagined transitions are kept.
        model_buffer_capacity = None
            Maximum number of imagined transitions kept; follows from retain_epochs by default.
        real_ratio = 0.05
            Fraction of every minibatch that is real, to the nearest row.
        tau = 0.005
            Rate at which target networks follow the online ones, per update.
        policy_lr = 0.0003
            Learning rate of the policy.
        critic_lr = 0.0003
            Learning rate of the critics.
        fixed_temperature = None
            Weight of the entropy, held constant; tuned automatically by default.
        target_entropy = None
            Entropy aimed at; default: minus the number of action components, or 30% of uniform.
        temperature_lr = 0.0003
            Learning rate of the temperature.
        initial_temperature = 1.0
            Initial weight of the entropy, if it is tuned.
        policy_delay = 1
            Updates of the critics per step of the policy and the temperature.
        rollout_interval = 1000
            Updates between two rounds of rollouts.
        penalty = 'disagreement'
            Estimate of the model's error: learned_std as in the paper, or the members' disagreement.
        penalty_coef = 1.0
            Penalty on the reward of an imagined step, per unit of the model's estimated error.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        policy_average: float = 0.0,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 256,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        policy_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        gamma: float = 0.99,
        num_members: int = 7,
        num_elites: int = 5,
        model_hidden_sizes: Sequence[int] = ...,
        model_lr: float = 0.001,
        model_batch_size: int = 256,
        model_weight_decay: Sequence[float] = ...,
        holdout_ratio: float = 0.2,
        max_holdout: int = 5000,
        model_patience: int = 5,
        model_max_epochs: int | None = None,
        termination: str = 'auto',
        rollout_batch_size: int = 50000,
        rollout_length: int = 5,
        final_rollout_length: int | None = None,
        rollout_growth: Sequence[int] = ...,
        epoch_length: int = 1000,
        retain_epochs: int = 5,
        model_buffer_capacity: int | None = None,
        real_ratio: float = 0.05,
        tau: float = 0.005,
        policy_lr: float = 0.0003,
        critic_lr: float = 0.0003,
        fixed_temperature: float | None = None,
        target_entropy: float | None = None,
        temperature_lr: float = 0.0003,
        initial_temperature: float = 1.0,
        policy_delay: int = 1,
        rollout_interval: int = 1000,
        penalty: Literal['learned_std', 'disagreement'] = 'disagreement',
        penalty_coef: float = 1.0,
        **run: Unpack[RunKeys],
    ) -> None: ...

class DQN(ManagedAlgorithm):
    """Deep Q-learning.

    In short: Q-learning with replay and a target network.
    Paper: Mnih et al. 2015.

    Knobs, beside the keys of the configuration:

        memory = 'none'
            Recurrent layer before the networks, for tasks where one observation says too little.
        memory_size = 64
            Units of the recurrent layer.
        sequence_length = 16
            Steps through which gradients of the recurrent layer flow back.
        buffer_capacity = 1000000
            Transitions the replay holds; the oldest are overwritten.
        learning_starts = 1000
            Environment steps with random actions before the first update.
        train_frequency = 4
            Environment steps between two rounds of updates.
        gradient_updates_per_step = 0.5
            Updates per environment step; fractions are exact over time.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 64
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of the value network.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        lr = 0.0005
            Learning rate of the value network.
        adam_eps = 1e-08
            Epsilon of Adam; larger values slow down weights with small gradients.
        target_update_interval = 100
            Updates between two copies of the online network into the target network.
        double = False
            Choose the next action by the online network and rate it by the target network.
        dueling = False
            Sum a state value and advantages from two separate streams.
        n_step = 1
            Rewards that are summed before the target bootstraps.
        prioritized = False
            Replay transitions in proportion to their TD errors instead of uniformly.
        priority_alpha = 0.6
            Exponent of the priorities; 0 is uniform, 1 proportional to the TD error.
        priority_beta = 0.4
            Share of the sampling bias that is corrected at the start; it rises to 1 over the run.
        epsilon_start = 1.0
            Initial fraction of random actions.
        epsilon_end = 0.05
            Final fraction of random actions.
        epsilon_fraction = 0.1
            Fraction of the budget over which the fraction of random actions falls linearly.
        noisy = False
            Explore by learned noise on the weights of the network's head instead of by epsilon.
        noise_scale = 0.5
            Initial scale of that noise.
        burn_in = 4
            Steps before a sequence that bring a stored state of the recurrent layer up to date.
        kappa = 1.0
            Size of a TD error from which the Huber loss is linear.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        memory: Literal['none', 'gru', 'lstm'] = 'none',
        memory_size: int = 64,
        sequence_length: int = 16,
        buffer_capacity: int = 1000000,
        learning_starts: int = 1000,
        train_frequency: int = 4,
        gradient_updates_per_step: float = 0.5,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 64,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        gamma: float = 0.99,
        lr: float = 0.0005,
        adam_eps: float = 1e-08,
        target_update_interval: int = 100,
        double: bool = False,
        dueling: bool = False,
        n_step: int = 1,
        prioritized: bool = False,
        priority_alpha: float = 0.6,
        priority_beta: float = 0.4,
        epsilon_start: float = 1.0,
        epsilon_end: float = 0.05,
        epsilon_fraction: float = 0.1,
        noisy: bool = False,
        noise_scale: float = 0.5,
        burn_in: int = 4,
        kappa: float = 1.0,
        **run: Unpack[RunKeys],
    ) -> None: ...

class C51(ManagedAlgorithm):
    """Categorical DQN.

    In short: Q-learning of the return's distribution over fixed values; Rainbow.
    Paper: Bellemare et al. 2017.

    Knobs, beside the keys of the configuration:

        memory = 'none'
            Recurrent layer before the networks, for tasks where one observation says too little.
        memory_size = 64
            Units of the recurrent layer.
        sequence_length = 16
            Steps through which gradients of the recurrent layer flow back.
        buffer_capacity = 1000000
            Transitions the replay holds; the oldest are overwritten.
        learning_starts = 1000
            Environment steps with random actions before the first update.
        train_frequency = 4
            Environment steps between two rounds of updates.
        gradient_updates_per_step = 0.5
            Updates per environment step; fractions are exact over time.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 64
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of the value network.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        lr = 0.0005
            Learning rate of the value network.
        adam_eps = 1e-08
            Epsilon of Adam; larger values slow down weights with small gradients.
        target_update_interval = 100
            Updates between two copies of the online network into the target network.
        double = False
            Choose the next action by the online network and rate it by the target network.
        dueling = False
            Sum a state value and advantages from two separate streams.
        n_step = 1
            Rewards that are summed before the target bootstraps.
        prioritized = False
            Replay transitions in proportion to their TD errors instead of uniformly.
        priority_alpha = 0.6
            Exponent of the priorities; 0 is uniform, 1 proportional to the TD error.
        priority_beta = 0.4
            Share of the sampling bias that is corrected at the start; it rises to 1 over the run.
        epsilon_start = 1.0
            Initial fraction of random actions.
        epsilon_end = 0.05
            Final fraction of random actions.
        epsilon_fraction = 0.1
            Fraction of the budget over which the fraction of random actions falls linearly.
        noisy = False
            Explore by learned noise on the weights of the network's head instead of by epsilon.
        noise_scale = 0.5
            Initial scale of that noise.
        burn_in = 4
            Steps before a sequence that bring a stored state of the recurrent layer up to date.
        num_atoms = 51
            Returns whose probabilities are learned, per action.
        value_range = (-10.0, 10.0)
            Smallest and largest of these returns; what lies outside counts as the nearer one.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        memory: Literal['none', 'gru', 'lstm'] = 'none',
        memory_size: int = 64,
        sequence_length: int = 16,
        buffer_capacity: int = 1000000,
        learning_starts: int = 1000,
        train_frequency: int = 4,
        gradient_updates_per_step: float = 0.5,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 64,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        gamma: float = 0.99,
        lr: float = 0.0005,
        adam_eps: float = 1e-08,
        target_update_interval: int = 100,
        double: bool = False,
        dueling: bool = False,
        n_step: int = 1,
        prioritized: bool = False,
        priority_alpha: float = 0.6,
        priority_beta: float = 0.4,
        epsilon_start: float = 1.0,
        epsilon_end: float = 0.05,
        epsilon_fraction: float = 0.1,
        noisy: bool = False,
        noise_scale: float = 0.5,
        burn_in: int = 4,
        num_atoms: int = 51,
        value_range: Sequence[float] = ...,
        **run: Unpack[RunKeys],
    ) -> None: ...

class QRDQN(ManagedAlgorithm):
    """Quantile-regression DQN.

    In short: Q-learning of the return's distribution at fixed quantiles.
    Paper: Dabney et al. 2018.

    Knobs, beside the keys of the configuration:

        memory = 'none'
            Recurrent layer before the networks, for tasks where one observation says too little.
        memory_size = 64
            Units of the recurrent layer.
        sequence_length = 16
            Steps through which gradients of the recurrent layer flow back.
        buffer_capacity = 1000000
            Transitions the replay holds; the oldest are overwritten.
        learning_starts = 1000
            Environment steps with random actions before the first update.
        train_frequency = 4
            Environment steps between two rounds of updates.
        gradient_updates_per_step = 0.5
            Updates per environment step; fractions are exact over time.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 64
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of the value network.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        lr = 0.0005
            Learning rate of the value network.
        adam_eps = 1e-08
            Epsilon of Adam; larger values slow down weights with small gradients.
        target_update_interval = 100
            Updates between two copies of the online network into the target network.
        double = False
            Choose the next action by the online network and rate it by the target network.
        dueling = False
            Sum a state value and advantages from two separate streams.
        n_step = 1
            Rewards that are summed before the target bootstraps.
        prioritized = False
            Replay transitions in proportion to their TD errors instead of uniformly.
        priority_alpha = 0.6
            Exponent of the priorities; 0 is uniform, 1 proportional to the TD error.
        priority_beta = 0.4
            Share of the sampling bias that is corrected at the start; it rises to 1 over the run.
        epsilon_start = 1.0
            Initial fraction of random actions.
        epsilon_end = 0.05
            Final fraction of random actions.
        epsilon_fraction = 0.1
            Fraction of the budget over which the fraction of random actions falls linearly.
        noisy = False
            Explore by learned noise on the weights of the network's head instead of by epsilon.
        noise_scale = 0.5
            Initial scale of that noise.
        burn_in = 4
            Steps before a sequence that bring a stored state of the recurrent layer up to date.
        kappa = 1.0
            Size of a TD error from which the Huber loss is linear.
        num_quantiles = 200
            Quantiles of the return per action.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        memory: Literal['none', 'gru', 'lstm'] = 'none',
        memory_size: int = 64,
        sequence_length: int = 16,
        buffer_capacity: int = 1000000,
        learning_starts: int = 1000,
        train_frequency: int = 4,
        gradient_updates_per_step: float = 0.5,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 64,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        gamma: float = 0.99,
        lr: float = 0.0005,
        adam_eps: float = 1e-08,
        target_update_interval: int = 100,
        double: bool = False,
        dueling: bool = False,
        n_step: int = 1,
        prioritized: bool = False,
        priority_alpha: float = 0.6,
        priority_beta: float = 0.4,
        epsilon_start: float = 1.0,
        epsilon_end: float = 0.05,
        epsilon_fraction: float = 0.1,
        noisy: bool = False,
        noise_scale: float = 0.5,
        burn_in: int = 4,
        kappa: float = 1.0,
        num_quantiles: int = 200,
        **run: Unpack[RunKeys],
    ) -> None: ...

class IQN(ManagedAlgorithm):
    """Implicit quantile networks.

    In short: Q-learning of the return's whole quantile function.
    Paper: Dabney et al. 2018.

    Knobs, beside the keys of the configuration:

        memory = 'none'
            Recurrent layer before the networks, for tasks where one observation says too little.
        memory_size = 64
            Units of the recurrent layer.
        sequence_length = 16
            Steps through which gradients of the recurrent layer flow back.
        buffer_capacity = 1000000
            Transitions the replay holds; the oldest are overwritten.
        learning_starts = 1000
            Environment steps with random actions before the first update.
        train_frequency = 4
            Environment steps between two rounds of updates.
        gradient_updates_per_step = 0.5
            Updates per environment step; fractions are exact over time.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 64
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of the value network.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        lr = 0.0005
            Learning rate of the value network.
        adam_eps = 1e-08
            Epsilon of Adam; larger values slow down weights with small gradients.
        target_update_interval = 100
            Updates between two copies of the online network into the target network.
        double = False
            Choose the next action by the online network and rate it by the target network.
        dueling = False
            Sum a state value and advantages from two separate streams.
        n_step = 1
            Rewards that are summed before the target bootstraps.
        prioritized = False
            Replay transitions in proportion to their TD errors instead of uniformly.
        priority_alpha = 0.6
            Exponent of the priorities; 0 is uniform, 1 proportional to the TD error.
        priority_beta = 0.4
            Share of the sampling bias that is corrected at the start; it rises to 1 over the run.
        epsilon_start = 1.0
            Initial fraction of random actions.
        epsilon_end = 0.05
            Final fraction of random actions.
        epsilon_fraction = 0.1
            Fraction of the budget over which the fraction of random actions falls linearly.
        noisy = False
            Explore by learned noise on the weights of the network's head instead of by epsilon.
        noise_scale = 0.5
            Initial scale of that noise.
        burn_in = 4
            Steps before a sequence that bring a stored state of the recurrent layer up to date.
        kappa = 1.0
            Size of a TD error from which the Huber loss is linear.
        num_quantiles = 64
            Fractions sampled per state at which quantiles are learned.
        num_target_quantiles = 64
            Fractions sampled per next state for the target.
        num_action_quantiles = 32
            Equal fractions over which the mean is taken to choose an action.
        num_cosines = 64
            Cosines that embed a fraction.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        memory: Literal['none', 'gru', 'lstm'] = 'none',
        memory_size: int = 64,
        sequence_length: int = 16,
        buffer_capacity: int = 1000000,
        learning_starts: int = 1000,
        train_frequency: int = 4,
        gradient_updates_per_step: float = 0.5,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 64,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        gamma: float = 0.99,
        lr: float = 0.0005,
        adam_eps: float = 1e-08,
        target_update_interval: int = 100,
        double: bool = False,
        dueling: bool = False,
        n_step: int = 1,
        prioritized: bool = False,
        priority_alpha: float = 0.6,
        priority_beta: float = 0.4,
        epsilon_start: float = 1.0,
        epsilon_end: float = 0.05,
        epsilon_fraction: float = 0.1,
        noisy: bool = False,
        noise_scale: float = 0.5,
        burn_in: int = 4,
        kappa: float = 1.0,
        num_quantiles: int = 64,
        num_target_quantiles: int = 64,
        num_action_quantiles: int = 32,
        num_cosines: int = 64,
        **run: Unpack[RunKeys],
    ) -> None: ...

class FQF(ManagedAlgorithm):
    """Fully parameterised quantile function.

    In short: Q-learning of the return's quantiles at learned fractions.
    Paper: Yang et al. 2019.

    Knobs, beside the keys of the configuration:

        memory = 'none'
            Recurrent layer before the networks, for tasks where one observation says too little.
        memory_size = 64
            Units of the recurrent layer.
        sequence_length = 16
            Steps through which gradients of the recurrent layer flow back.
        buffer_capacity = 1000000
            Transitions the replay holds; the oldest are overwritten.
        learning_starts = 1000
            Environment steps with random actions before the first update.
        train_frequency = 4
            Environment steps between two rounds of updates.
        gradient_updates_per_step = 0.5
            Updates per environment step; fractions are exact over time.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 64
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of the value network.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        lr = 0.0005
            Learning rate of the value network.
        adam_eps = 1e-08
            Epsilon of Adam; larger values slow down weights with small gradients.
        target_update_interval = 100
            Updates between two copies of the online network into the target network.
        double = False
            Choose the next action by the online network and rate it by the target network.
        dueling = False
            Sum a state value and advantages from two separate streams.
        n_step = 1
            Rewards that are summed before the target bootstraps.
        prioritized = False
            Replay transitions in proportion to their TD errors instead of uniformly.
        priority_alpha = 0.6
            Exponent of the priorities; 0 is uniform, 1 proportional to the TD error.
        priority_beta = 0.4
            Share of the sampling bias that is corrected at the start; it rises to 1 over the run.
        epsilon_start = 1.0
            Initial fraction of random actions.
        epsilon_end = 0.05
            Final fraction of random actions.
        epsilon_fraction = 0.1
            Fraction of the budget over which the fraction of random actions falls linearly.
        noisy = False
            Explore by learned noise on the weights of the network's head instead of by epsilon.
        noise_scale = 0.5
            Initial scale of that noise.
        burn_in = 4
            Steps before a sequence that bring a stored state of the recurrent layer up to date.
        kappa = 1.0
            Size of a TD error from which the Huber loss is linear.
        num_fractions = 32
            Fractions proposed per state.
        num_cosines = 64
            Cosines that embed a fraction.
        fraction_lr = 0.0001
            Learning rate of the proposed fractions.
        entropy_coef = 0.001
            Weight of the fractions' entropy, which keeps them from collapsing onto a few.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        memory: Literal['none', 'gru', 'lstm'] = 'none',
        memory_size: int = 64,
        sequence_length: int = 16,
        buffer_capacity: int = 1000000,
        learning_starts: int = 1000,
        train_frequency: int = 4,
        gradient_updates_per_step: float = 0.5,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 64,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        gamma: float = 0.99,
        lr: float = 0.0005,
        adam_eps: float = 1e-08,
        target_update_interval: int = 100,
        double: bool = False,
        dueling: bool = False,
        n_step: int = 1,
        prioritized: bool = False,
        priority_alpha: float = 0.6,
        priority_beta: float = 0.4,
        epsilon_start: float = 1.0,
        epsilon_end: float = 0.05,
        epsilon_fraction: float = 0.1,
        noisy: bool = False,
        noise_scale: float = 0.5,
        burn_in: int = 4,
        kappa: float = 1.0,
        num_fractions: int = 32,
        num_cosines: int = 64,
        fraction_lr: float = 0.0001,
        entropy_coef: float = 0.001,
        **run: Unpack[RunKeys],
    ) -> None: ...

class PPO(ManagedAlgorithm):
    """Proximal policy optimisation.

    In short: robust policy gradients where steps are cheap.
    Paper: Schulman et al. 2017.

    Knobs, beside the keys of the configuration:

        memory = 'none'
            Recurrent layer before the networks, for tasks where one observation says too little.
        memory_size = 64
            Units of the recurrent layer.
        sequence_length = 16
            Steps through which gradients of the recurrent layer flow back.
        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 64
            Steps per minibatch; must divide rollout_length times the number of environments.
        hidden_sizes = (64, 64)
            Widths of the hidden layers of policy and value network.
        grad_clip = 0.5
            Maximum gradient norm per network, or of both where they share layers.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of critics and value networks.
        policy_hidden_sizes = None
            Widths of the policy's hidden layers; hidden_sizes by default.
        critic_hidden_sizes = None
            Widths of the hidden layers of critics and value networks; hidden_sizes by default.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        shared_layers = False
            Let policy and value share all layers but the last, and one optimiser; usual for images.
        rollout_length = 2048
            Steps per environment between two rounds of updates.
        epochs = 10
            Passes over each rollout.
        gae_lambda = 0.95
            Lambda of GAE: 0 for one-step advantages, 1 for Monte Carlo returns.
        clip = 0.2
            Clip range of the probability ratio around 1.
        clip_schedule = Schedule()
            Schedule of the factor on clip over the run.
        value_clip = None
            Clip range of the value around the rollout's value; off by default.
        value_coef = 0.5
            Weight of the value loss, and factor of a separate value network's learning rate.
        entropy_coef = 0.0
            Weight of the entropy bonus.
        entropy_schedule = Schedule()
            Schedule of the factor on entropy_coef over the run.
        normalize_advantages = True
            Standardise advantages within each minibatch.
        target_kl = None
            Skip the remaining epochs when the KL divergence exceeds 1.5 times this; off by default.
        normalize_observations = False
            Standardise observations by running statistics, which are stored with the policy.
        normalize_rewards = False
            Divide rewards by the running standard deviation of the discounted return.
        squash_mean = False
            Bound the mean of Box actions by a tanh, as the policies trained on data do.
        initial_std = 1.0
            Standard deviation of Box actions at the start; the action range is 2 wide.
        lr = 0.0003
            Learning rate of the policy; value_coef scales that of a separate value network.
        adam_eps = 1e-08
            Epsilon of Adam; larger values slow down weights with small gradients.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        memory: Literal['none', 'gru', 'lstm'] = 'none',
        memory_size: int = 64,
        sequence_length: int = 16,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 64,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = 0.5,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        policy_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        gamma: float = 0.99,
        shared_layers: bool = False,
        rollout_length: int = 2048,
        epochs: int = 10,
        gae_lambda: float = 0.95,
        clip: float = 0.2,
        clip_schedule: Schedule | Mapping[str, Any] = ...,
        value_clip: float | None = None,
        value_coef: float = 0.5,
        entropy_coef: float = 0.0,
        entropy_schedule: Schedule | Mapping[str, Any] = ...,
        normalize_advantages: bool = True,
        target_kl: float | None = None,
        normalize_observations: bool = False,
        normalize_rewards: bool = False,
        squash_mean: bool = False,
        initial_std: float = 1.0,
        lr: float = 0.0003,
        adam_eps: float = 1e-08,
        **run: Unpack[RunKeys],
    ) -> None: ...

class Dreamer(ManagedAlgorithm):
    """A world model and its policy, with one loss and one optimiser for all networks.

    In short: learns a model of the world and practises in it.
    Paper: Hafner et al. 2023.

    Knobs, beside the keys of the configuration:

        networks = None
            Function of your own that makes networks, as package.module:function.
        buffer_capacity = 1000000
            Transitions the replay holds; the oldest are overwritten.
        learning_starts = 1000
            Environment steps with random actions before the first update.
        train_frequency = 1
            Environment steps between two rounds of updates.
        gradient_updates_per_step = 0.25
            Updates per environment step; fractions are exact over time.
        batch_size = 16
            Sequences per update.
        batch_length = 64
            Steps in each sequence.
        size = '1m'
            Size of all networks, named after the number of parameters.
        precision = 'float32'
            Precision of products and convolutions in updates; outputs of heads stay float32.
        rollout_length = 15
            Imagined steps from every state of a batch.
        horizon = 333.0
            Time scale of discounting in steps: the discount is 1 - 1/horizon.
        gae_lambda = 0.95
            Lambda of the returns: 0 bootstraps after one step, 1 at the end of the imagined rollout.
        entropy_coef = 0.0003
            Weight of the policy's entropy, in units of the scaled returns.
        lr = 4e-05
            Learning rate of all networks.
        lr_warmup = 1000
            Updates over which the learning rate rises linearly from 0.
        gradient_share = 0.3
            Maximum norm of a gradient, relative to its parameter's norm.
        free_nats = 1.0
            KL divergence per step that is not penalised.
        dynamics_scale = 1.0
            Weight of the KL term that trains the prior.
        representation_scale = 0.1
            Weight of the KL term that trains the posterior.
        replay_value_scale = 0.3
            Weight of the value loss on real sequences.
        tau = 0.02
            Rate at which the slow critic follows the critic, per update.
        slow_scale = 1.0
            Weight of the critic's loss towards the slow critic.
        return_range_rate = 0.01
            Rate of the moving average of the return scale.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        networks: str | NetworkFactory | None = None,
        buffer_capacity: int = 1000000,
        learning_starts: int = 1000,
        train_frequency: int = 1,
        gradient_updates_per_step: float = 0.25,
        batch_size: int = 16,
        batch_length: int = 64,
        size: Literal['tiny', '1m', '12m', '25m', '50m', '100m', '200m'] = '1m',
        precision: Literal['float32', 'bfloat16'] = 'float32',
        rollout_length: int = 15,
        horizon: float = 333.0,
        gae_lambda: float = 0.95,
        entropy_coef: float = 0.0003,
        lr: float = 4e-05,
        lr_warmup: int = 1000,
        gradient_share: float = 0.3,
        free_nats: float = 1.0,
        dynamics_scale: float = 1.0,
        representation_scale: float = 0.1,
        replay_value_scale: float = 0.3,
        tau: float = 0.02,
        slow_scale: float = 1.0,
        return_range_rate: float = 0.01,
        **run: Unpack[RunKeys],
    ) -> None: ...

class GAIL(ManagedAlgorithm):
    """Generative adversarial imitation learning.

    In short: imitates demonstrations without any reward, in a simulator.
    Paper: Ho and Ermon 2016.

    Knobs, beside the keys of the configuration:

        batch_size = 256
            Pairs of the expert, and as many of the policy, per discriminator step.
        hidden_sizes = (64, 64)
            Widths of the hidden layers of the discriminator.
        grad_clip = None
            Maximum gradient norm of the discriminator; none by default.
        generator = 'ppo'
            Algorithm that trains the policy: ppo, or sac, which needs far fewer steps (Box actions).
        ppo = PPOParams()
            Knobs of the generator ppo, as in the algorithm of that name.
        sac = SACParams()
            Knobs of the generator sac, as in the algorithm of that name.
        reward_form = 'softplus'
            Reward from the logit: softplus (never negative), log_sigmoid (never positive) or logit.
        discriminator_lr = 0.0003
            Learning rate of the discriminator.
        discriminator_updates = None
            Discriminator steps: 8 per rollout with ppo, 1 per update with sac by default.
        discriminator_entropy_coef = 0.001
            Weight of the discriminator's entropy, which keeps it from being overconfident.
        gradient_penalty = 0.0
            Weight of (gradient norm - 1)^2 at points between pairs of expert and policy.
        spectral_norm = False
            Divide the discriminator's weight matrices by their largest singular values.
        demo_episodes = None
            Number of demonstrations to learn from, the first of the data; all by default.
        demo_subsample = 1
            Keep every n-th step of a demonstration, from a random offset.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        batch_size: int = 256,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        generator: Literal['ppo', 'sac'] = 'ppo',
        ppo: PPOParams | Mapping[str, Any] = ...,
        sac: SACParams | Mapping[str, Any] = ...,
        reward_form: Literal['softplus', 'log_sigmoid', 'logit'] = 'softplus',
        discriminator_lr: float = 0.0003,
        discriminator_updates: int | None = None,
        discriminator_entropy_coef: float = 0.001,
        gradient_penalty: float = 0.0,
        spectral_norm: bool = False,
        demo_episodes: int | None = None,
        demo_subsample: int = 1,
        **run: Unpack[RunKeys],
    ) -> None: ...

class FQE(ManagedAlgorithm):
    """Fitted Q evaluation of a policy that never changes.

    In short: value of a given policy, from data alone.
    Paper: Le et al. 2019.

    Knobs, beside the keys of the configuration:

        networks = None
            Function of your own that makes networks, as package.module:function.
        batch_size = 256
            Transitions per update.
        hidden_sizes = (256, 256)
            Widths of the hidden layers of every network.
        grad_clip = None
            Largest gradient norm per network; none by default.
        activation = 'relu'
            Function after every hidden layer.
        layer_norm = False
            LayerNorm before the activations of critics and value networks.
        gamma = 0.99
            Discount per step; 1 only for tasks that end, because returns without an end grow forever.
        tau = 0.005
            Rate at which the target network follows the critic, per update.
        critic_lr = 0.0003
            Learning rate of the critic.
        horizon = None
            Steps that are counted; without a horizon all of them, which needs gamma below 1.
        stochastic = False
            Evaluate sampled actions of the policy instead of its likeliest ones.
        value_range = None
            Smallest and largest possible return, where known; else from the rewards of the data.
        bootstrap = False
            Learn from episodes resampled with replacement by the run's seed: one replicate per seed.
        policy = None
            The policy that is evaluated, as read from init_from; a run fills it in.
    """

    algo: ClassVar[str]
    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Frame | str | Path | None = None,
        spaces: Mapping[str, Any] | None = None,
        networks: str | NetworkFactory | None = None,
        batch_size: int = 256,
        hidden_sizes: Sequence[int] = ...,
        grad_clip: float | None = None,
        activation: Literal['relu', 'silu', 'gelu', 'elu', 'tanh'] = 'relu',
        layer_norm: bool = False,
        gamma: float = 0.99,
        tau: float = 0.005,
        critic_lr: float = 0.0003,
        horizon: int | None = None,
        stochastic: bool = False,
        value_range: Sequence[float] | None = None,
        bootstrap: bool = False,
        policy: EvaluatedPolicy | Mapping[str, Any] | None = None,
        **run: Unpack[RunKeys],
    ) -> None: ...
