"""The managed class of every algorithm; explicit, so that editors complete the names."""

from __future__ import annotations

from rl_training.api.managed import ManagedAlgorithm


class BC(ManagedAlgorithm):
    """Behaviour cloning."""

    algo = "bc"


class AWR(ManagedAlgorithm):
    """Advantage-weighted regression."""

    algo = "awr"


class MARWIL(ManagedAlgorithm):
    """Monotonic advantage re-weighted imitation learning."""

    algo = "marwil"


class CRR(ManagedAlgorithm):
    """Critic-regularized regression."""

    algo = "crr"


class IQL(ManagedAlgorithm):
    """Implicit Q-learning."""

    algo = "iql"


class AWAC(ManagedAlgorithm):
    """Advantage-weighted actor-critic."""

    algo = "awac"


class CQL(ManagedAlgorithm):
    """Conservative Q-learning."""

    algo = "cql"


class SAC(ManagedAlgorithm):
    """Soft actor-critic."""

    algo = "sac"


class TD3(ManagedAlgorithm):
    """Twin delayed deep deterministic policy gradient."""

    algo = "td3"


class TD3BC(ManagedAlgorithm):
    """TD3 with behaviour cloning."""

    algo = "td3_bc"


class ReBRAC(ManagedAlgorithm):
    """Revisited behaviour-regularised actor-critic."""

    algo = "rebrac"


class RLPD(ManagedAlgorithm):
    """Reinforcement learning with prior data."""

    algo = "rlpd"


class MBPO(ManagedAlgorithm):
    """Model-based policy optimisation."""

    algo = "mbpo"


class MOPO(ManagedAlgorithm):
    """Model-based offline policy optimisation."""

    algo = "mopo"


class DQN(ManagedAlgorithm):
    """Deep Q-learning, with double, dueling, prioritised and n-step options."""

    algo = "dqn"


class QRDQN(ManagedAlgorithm):
    """Quantile-regression DQN."""

    algo = "qr_dqn"


class IQN(ManagedAlgorithm):
    """Implicit quantile networks."""

    algo = "iqn"


class FQF(ManagedAlgorithm):
    """Fully parameterised quantile function."""

    algo = "fqf"


class PPO(ManagedAlgorithm):
    """Proximal policy optimisation."""

    algo = "ppo"


class Dreamer(ManagedAlgorithm):
    """DreamerV3: a world model, and a policy that learns inside it."""

    algo = "dreamer"


class GAIL(ManagedAlgorithm):
    """Generative adversarial imitation learning, with PPO or SAC as the generator."""

    algo = "gail"


MANAGED: dict[str, type[ManagedAlgorithm]] = {
    cls.algo: cls
    for cls in (
        BC,
        AWR,
        MARWIL,
        CRR,
        IQL,
        AWAC,
        CQL,
        TD3BC,
        ReBRAC,
        SAC,
        TD3,
        RLPD,
        MBPO,
        MOPO,
        DQN,
        QRDQN,
        IQN,
        FQF,
        PPO,
        Dreamer,
        GAIL,
    )
}
