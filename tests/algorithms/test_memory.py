"""PPO and the value-based algorithms with memory: scans, batches, losses and acting, against NumPy
and against acting step by step; each oracle catches the usual mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import ManagedAlgorithm, TrainConfig
from rl_training.algorithms.functional import Metrics
from rl_training.algorithms.value_based import ValueAlgorithm
from rl_training.experiment.errors import ConfigError
from rl_training.models.recurrent import LSTMState, Past, RecurrentMemory, RolloutMemory
from rl_training.replay.rollout import RolloutBatch
from rl_training.replay.sequences import SequenceBatch, transitions_of
from rl_training.runtime.build import build_algorithm, build_loop
from rl_training.runtime.evaluation import start_seed
from rl_training.runtime.loops.on_policy import OnPolicyLoop

from ..contract.test_updates import HOST_SYNCS, OperationLog
from ..envs.masked import register_masked
from .helpers import DISCRETE, f64, make_learner, mlp

KINDS = ("gru", "lstm")
BLIND = "rl_training/CartPoleNoVelocity-v0"
SMALL: dict[str, Any] = {"memory_size": 5, "sequence_length": 4, "hidden_sizes": [8]}
ROLLOUTS: dict[str, Any] = {**SMALL, "rollout_length": 16, "batch_size": 16, "lr": 0.01}
REPLAY: dict[str, Any] = {
    **SMALL,
    "batch_size": 8,
    "learning_starts": 24,
    "buffer_capacity": 100,
    "train_frequency": 2,
}


def config_for(algo: str, kind: str = "gru", **changes: Any) -> TrainConfig:
    knobs = {**(ROLLOUTS if algo == "ppo" else REPLAY), "memory": kind}
    values: dict[str, Any] = {"algo": algo, "env_id": BLIND, "total_timesteps": 64, "num_envs": 2}
    values |= {"tensorboard": False, "device": "cpu", "eval_episodes": 1}
    return TrainConfig(
        **{**values, **changes, "algo_kwargs": {**knobs, **changes.get("algo_kwargs", {})}}
    )


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def hidden_states(memory: RecurrentMemory, past: Past, mistake: str = "") -> Any:
    """Row by row and gate by gate, as the papers write it."""
    cell, n = memory.cell, memory.size
    w, b, u = f64(cell.input.weight), f64(cell.input.bias), f64(cell.recurrent.weight)
    obs, first = f64(past.obs), past.first.numpy()
    out = np.zeros((*first.shape, n))
    for row in range(len(obs)):
        h = f64(past.state.hidden)[row]
        c = f64(past.state.cell)[row] if isinstance(past.state, LSTMState) else None
        if mistake == "no burn-in":
            obs_row, first_row = obs[row, past.burn_in :], first[row, past.burn_in :]
        else:
            obs_row, first_row = obs[row], first[row]
        begin = first.shape[1] - len(obs_row)
        for t, x in enumerate(obs_row):
            begins = first_row[t - 1] if mistake == "late reset" and t else first_row[t]
            if begins and mistake != "leak":
                h = np.zeros(n)
                c = None if c is None else np.zeros(n)
            given = w @ x + b
            if c is None:
                own = u @ h + f64(cell.recurrent.bias)
                reset = sigmoid(given[:n] + own[:n])
                keep = sigmoid(given[n : 2 * n] + own[n : 2 * n])
                new = np.tanh(given[2 * n :] + reset * own[2 * n :])
                h = (1.0 - keep) * new + keep * h
            else:
                gates = given + u @ h
                into, forget = sigmoid(gates[:n]), sigmoid(gates[n : 2 * n])
                c = forget * c + into * np.tanh(gates[2 * n : 3 * n])
                h = sigmoid(gates[3 * n :]) * np.tanh(c)
            out[row, begin + t] = h
    return out[:, past.burn_in :]


def random_past(memory: RecurrentMemory, rows: int, steps: int, burn_in: int) -> Past:
    torch.manual_seed(3)
    for parameter in memory.parameters():
        parameter.data.normal_(0.0, 0.7)
    state = type(memory.initial(1))(*(torch.rand(rows, memory.size) for _ in memory.initial(1)))
    first = torch.rand(rows, steps) < 0.3
    first[0], first[1, burn_in + 1] = False, True
    return Past(torch.randn(rows, steps, memory.seen), first, state, burn_in)


@pytest.mark.parametrize("kind", KINDS)
def test_a_scan_is_the_papers_recurrence(kind: Any) -> None:
    memory = RecurrentMemory(3, 5, kind)
    past = random_past(memory, rows=6, steps=7, burn_in=2)
    found = f64(memory.scan(past))
    np.testing.assert_allclose(found, hidden_states(memory, past), atol=1e-6)
    for mistake in ("leak", "late reset", "no burn-in"):
        assert np.abs(found - hidden_states(memory, past, mistake)).max() > 1e-2, mistake
    # one step at a time, as it acts, is the same as the scan
    state, hidden = memory.initial(6), []
    for x in past.obs.unbind(1):
        state = memory.step(x, state)
        hidden.append(state.hidden)
    whole = Past(past.obs, torch.zeros_like(past.first), memory.initial(6), 0)
    torch.testing.assert_close(torch.stack(hidden, 1), memory.scan(whole))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_a_scan_flow_through_its_steps_and_not_through_burn_in(kind: Any) -> None:
    memory = RecurrentMemory(2, 3, kind).double()
    past = random_past(memory, rows=3, steps=6, burn_in=2)
    state = type(past.state)(*(part.double() for part in past.state))
    weights = torch.randn(3, 4, 3).double()

    def loss() -> torch.Tensor:
        return (memory.scan(past._replace(obs=past.obs.double(), state=state)) * weights).sum()

    gradients = torch.autograd.grad(loss(), list(memory.parameters()))
    with torch.no_grad():  # the state behind the burn-in, which is a constant
        for t in range(past.burn_in):
            goes_on = (~past.first[:, t]).double()[:, None]
            kept = type(state)(*(part * goes_on for part in state))
            state = memory.step(past.obs[:, t].double(), kept)
    past = Past(past.obs[:, 2:], past.first[:, 2:], state, 0)
    for parameter, gradient in zip(memory.parameters(), gradients, strict=True):
        for place in range(0, parameter.numel(), 3):
            with torch.no_grad():
                flat, step = parameter.view(-1), 1e-6
                before, ends = float(flat[place]), []
                for sign in (1, -1):
                    flat[place] = before + sign * step
                    ends.append(float(loss()))
                flat[place] = before
            slope = (ends[0] - ends[1]) / (2 * step)
            assert float(gradient.view(-1)[place]) == pytest.approx(slope, rel=1e-5, abs=1e-7)


def stream(steps: int) -> SequenceBatch:
    """Two sequences whose observations count up; the first has an episode that is cut at 3 and one
    that terminates at 6."""
    number = torch.arange(2 * steps, dtype=torch.float32).view(2, steps)
    flags = torch.zeros(3, 2, steps, dtype=torch.bool)
    flags[0, 0, [4, 7]] = True
    flags[1, 0, [3, 6]] = True
    flags[2, 0, 6] = True
    action = torch.nn.functional.one_hot((number % 3).long(), 3).float()
    state = LSTMState(torch.rand(2, 5), torch.rand(2, 5))
    obs = number.unsqueeze(-1).repeat(1, 1, 4) / 10
    return SequenceBatch(obs, action, number / 20, *flags, state, torch.zeros(2, steps))


def test_transitions_inside_of_sequences() -> None:
    sequences = stream(9)
    batch = transitions_of(sequences, burn_in=2, gamma=0.9)
    rows = [(row, t) for row in range(2) for t in range(2, 8)]
    assert [round(10 * float(x)) for x in batch.obs[:, 0]] == [9 * r + t for r, t in rows]
    assert [round(10 * float(x)) for x in batch.next_obs[:, 0]] == [9 * r + t + 1 for r, t in rows]
    assert batch.action.tolist() == [(9 * r + t + 1) % 3 for r, t in rows]
    assert batch.reward.tolist() == pytest.approx([(9 * r + t + 1) / 20 for r, t in rows])
    ended = [(r, t) == (0, 5) for r, t in rows]  # into the terminal step, not into the cut one
    assert batch.discount.tolist() == pytest.approx([0.0 if x else 0.9 for x in ended])
    between = [(r, t) in ((0, 3), (0, 6)) for r, t in rows]
    assert batch.weight is not None
    assert batch.weight.tolist() == pytest.approx([0.0 if x else 12 / 10 for x in between])


def q_values(network: Any, past: Past, mistake: str = "") -> Any:
    """(B, L + 1, A) by NumPy: features and head of a DQN on hidden state and observation."""
    hidden = hidden_states(network.memory, past, mistake)
    x = np.concatenate([hidden, f64(past.obs)[:, past.burn_in :]], -1)
    return mlp(network.head.actions, np.maximum(mlp(network.features.net, x), 0.0))


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_dqn_on_sequences(kind: str) -> None:
    knobs = {**REPLAY, "memory": kind, "double": True, "burn_in": 2, "hidden_sizes": (6, 4)}
    learner = make_learner("dqn", DISCRETE, **knobs)
    torch.manual_seed(1)
    for parameter in learner.parameters():
        parameter.data.normal_(0.0, 0.5)
    sequences = stream(9)
    if kind == "gru":
        sequences = sequences._replace(context=type(learner.initial_carry(1))(torch.rand(2, 5)))
    batch = transitions_of(sequences, 2, 0.9)
    past = batch.past
    assert past is not None

    def loss(mistake: str = "") -> float:
        online, target = (
            q_values(net, past, mistake) for net in (learner.network, learner.target_network)
        )
        total, count = 0.0, 0
        for row in range(2):
            for i in range(6):
                t = i + 2
                if sequences.last[row, t]:
                    continue
                after = i if mistake == "off by one" else i + 1
                best = online[row, after].argmax()
                goes_on = 0.0 if sequences.terminal[row, t + 1] else 0.9
                reward = float(sequences.reward[row, t + 1])
                action = int(sequences.action[row, t + 1].argmax())
                goal = reward + goes_on * target[row, after, best]
                error = goal - online[row, i, action]
                total += 0.5 * error**2 if abs(error) <= 1.0 else abs(error) - 0.5
                count += 1
        return total / count

    right, q = loss(), q_values(learner.network, past)
    for mistake in ("leak", "late reset", "no burn-in", "off by one"):
        assert abs(loss(mistake) - right) > 1e-3, mistake
    seen = learner.network(learner.states(learner.network, batch))
    np.testing.assert_allclose(f64(seen), q[:, :-1].reshape(-1, 3), atol=1e-5)
    assert float(learner.learn(batch)["td_loss"]) == pytest.approx(right, rel=1e-5)


class Seen:
    """Keeps the rollouts of a loop and what was learned from them first."""

    def __init__(self, config: TrainConfig) -> None:
        torch.manual_seed(0)
        spaces_of = ManagedAlgorithm(config).algorithm.spaces
        self.algorithm = build_algorithm(config, spaces_of)
        loop = build_loop(config, self.algorithm)
        assert isinstance(loop, OnPolicyLoop)
        self.loop = loop
        self.metrics: list[Metrics] = []
        update = self.algorithm.update

        def watched(batch: Any) -> Metrics:
            self.metrics.append(update(batch))
            return self.metrics[-1]

        self.algorithm.update = watched  # type: ignore[method-assign]

    def close(self) -> None:
        self.loop.close()


@pytest.mark.parametrize("kind", KINDS)
def test_ppo_learns_from_what_it_acted_on(kind: str) -> None:
    """Across ends of episodes and of sequences, ratios are 1 in the first update; the values of
    cut episodes are those of the true final state, reached with the episode's own memory."""
    config = config_for("ppo", kind, env_kwargs={"max_episode_steps": 6}, total_timesteps=128)
    seen = Seen(config)
    loop, algorithm = seen.loop, seen.algorithm
    memories: RolloutMemory = algorithm.memories  # type: ignore[assignment]
    for parameter in memories.parameters():
        parameter.data.normal_(0.0, 0.5)
    for rollout in range(3):
        start = loop.carried.now  # type: ignore[union-attr]
        loop._collect()
        taken = loop.rollout.taken()
        assert taken.truncated.any()
        batch = loop._rollout(taken, taken.reward)
        # by acting again, one step after the other
        carry = start
        for t in range(16):
            x, carry = memories.step(taken.obs[t], carry)
            torch.testing.assert_close(algorithm.value(x), taken.value[t])
            cut = taken.truncated[t]
            if cut.any():
                last = torch.from_numpy(loop_final(config, taken, t)) if rollout == 0 else None
                if last is not None:
                    final = algorithm.value(memories.step(last, carry)[0])
                    torch.testing.assert_close(final[cut], taken.final_value[t][cut])
            ended = taken.terminated[t] | taken.truncated[t]
            carry = memories.initial(2) if ended.all() else _reset(carry, ended)
        flat, steps = algorithm._seen(batch), batch.steps()
        log_prob, _ = algorithm.actor.log_prob_and_entropy(flat, steps.action)
        torch.testing.assert_close(log_prob, steps.log_prob, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(algorithm.value(flat), steps.value, atol=1e-5, rtol=1e-5)
        for mistake in (
            batch._replace(first=torch.zeros_like(batch.first)),  # type: ignore[arg-type]
            batch._replace(carry=memories.initial(len(batch.obs))),
            batch._replace(first=batch.first.roll(1, 1)),  # type: ignore[union-attr]
        ):
            wrong = algorithm.value(algorithm._seen(mistake))
            assert (wrong - steps.value).abs().max() > 1e-3
        loop._learn(taken)
        loop.rollout.clear()
    assert float(seen.metrics[0]["approx_kl"]) == pytest.approx(0.0, abs=1e-6)
    assert float(seen.metrics[0]["clip_fraction"]) == 0.0
    assert float(seen.metrics[1]["approx_kl"]) > 1e-6
    seen.close()


def _reset(carry: Any, ended: torch.Tensor) -> Any:
    keep = (~ended).float()[:, None]
    return type(carry)(*(type(s)(*(part * keep for part in s)) for s in carry))


def loop_final(config: TrainConfig, taken: Any, t: int) -> Any:
    """The observations after step t of the first rollout, by playing it again."""
    from rl_training.envs.collector import Collector
    from rl_training.experiment.seeding import derive_seed

    seed = derive_seed(config.seed, "collect")
    collector = Collector(BLIND, config.env_kwargs, 2, seed)
    for step in range(t + 1):
        result = collector.step(taken.action[step].numpy())
    collector.close()
    return result.next_obs


def test_updates_with_memory_are_capturable(no_branches: None) -> None:
    learner = make_learner("dqn", DISCRETE, **REPLAY, memory="lstm", burn_in=2)
    batches = [transitions_of(stream(9), 2, 0.9) for _ in range(3)]
    ppo = make_learner("ppo", DISCRETE, **ROLLOUTS, memory="gru")
    rollouts = []
    for seed in range(3):
        torch.manual_seed(seed)
        obs, first = torch.randn(4, 4, 4), torch.rand(4, 4) < 0.3
        columns = (torch.randint(3, (4, 4)), *torch.randn(4, 4, 4))
        rollouts.append(RolloutBatch(obs, *columns, first, ppo.rollout_carry(4)))
    for one, given in ((learner, batches), (ppo, rollouts)):
        one.step(given[0])
        logs = []
        for batch in given:
            with OperationLog() as log:
                one.step(batch)
            logs.append(log.operations)
        assert not [op for op, _ in logs[0] if op in HOST_SYNCS]
        assert logs[0] == logs[1] == logs[2]
        optimized = {id(p) for o in one.optimizers.values() for p in o.parameters}
        online = [p for name, p in one.named_parameters() if "target" not in name]
        assert {id(p) for p in online} == optimized


def test_masks_and_images_with_memory() -> None:
    """An action that is not allowed raises in the environment; images have their own encoder."""
    register_masked()
    for algo in ("ppo", "dqn", "qr_dqn"):
        for task in ("masked/Task-v0", "rl_training/Catch-v0"):
            config = config_for(algo, env_id=task, algo_kwargs={"sequence_length": 4})
            agent = ManagedAlgorithm(config)
            loop = build_loop(config, agent.algorithm)
            before = agent.algorithm.memory.cell.recurrent.weight.clone()  # type: ignore[union-attr]
            loop.advance(64)
            loop.close()
            after = agent.algorithm.memory.cell.recurrent.weight  # type: ignore[union-attr]
            assert not torch.equal(before, after), (algo, task)


def test_predict_and_evaluate_carry_the_memory() -> None:
    for algo, kind in (("ppo", "lstm"), ("dqn", "gru")):
        agent = ManagedAlgorithm(config_for(algo, kind))
        assert isinstance(agent.algorithm, ValueAlgorithm) == (algo == "dqn")
        torch.manual_seed(2)
        for parameter in agent.algorithm.parameters():
            parameter.data.normal_(0.0, 1.0)
        result = agent.evaluate(4, seed=3)
        env, lengths = gym.make(BLIND), []
        for episode in range(4):
            obs, _ = env.reset(seed=start_seed(3, episode))
            state, steps, ended = None, 0, False
            while not ended:
                action, state = agent.predict(obs, state)
                obs, _, terminated, truncated, _ = env.step(int(action))
                steps, ended = steps + 1, terminated or truncated
            lengths.append(steps)
        assert lengths == list(result.lengths)
        fresh, again = agent.predict(obs)[1], agent.predict(obs, state, episode_start=True)[1]
        assert torch.equal(fresh.hidden, again.hidden)
        assert not torch.equal(fresh.hidden, agent.predict(obs, state)[1].hidden)
        with pytest.raises(ConfigError, match="expected the state that the call before returned"):
            agent.predict(obs, "nonsense")
        asked = agent.value if algo == "ppo" else agent.q_values
        with pytest.raises(ConfigError, match="use predict with its state"):
            asked(obs)


def test_a_run_starts_from_another_with_the_same_memory(tmp_path: Path) -> None:
    source = ManagedAlgorithm(config_for("ppo"))
    path = source.save(tmp_path / "source")
    for changes, refusal in (
        ({}, None),
        ({"memory_size": 6}, "another memory"),
        ({"memory": "none", "memory_size": 64, "sequence_length": 16}, "memory"),
    ):
        config = config_for("ppo", init_from=str(path), algo_kwargs=changes)
        if refusal is None:
            agent = ManagedAlgorithm(config)
            mine, theirs = (x.algorithm.state_dict() for x in (agent, source))
            assert all(torch.equal(mine[k], theirs[k]) for k in theirs if "memories" in k)
        else:
            with pytest.raises(ConfigError, match=rf"^init_from: .*{refusal}"):
                ManagedAlgorithm(config)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("ppo", {"sequence_length": 5}, r"sequence_length: 5 does not divide the batch_size of 16"),
    ("ppo", {"sequence_length": 32, "batch_size": 32}, r"sequence_length: .*rollout_length of 16"),
    ("dqn", {"sequence_length": 3}, r"sequence_length: 3 does not divide the batch_size of 8"),
    ("dqn", {"n_step": 3}, r"n_step: with memory DQN learns from sequences"),
    ("iqn", {"prioritized": True}, r"prioritized: with memory IQN learns from sequences"),
    ("dqn", {"learning_starts": 10}, r"learning_starts: .*lower algo_kwargs.sequence_length"),
    ("dqn", {"buffer_capacity": 18, "learning_starts": 18}, r"buffer_capacity: 18 is too small"),
    ("dqn", {"memory": "rnn"}, r"memory: "),
    ("ppo", {"memory_size": 0}, r"memory_size: "),
    ("fqf", {"burn_in": -1}, r"burn_in: "),
]


def built(algo: str, knobs: dict[str, Any]) -> None:
    config = config_for(algo, algo_kwargs=knobs)
    build_loop(config, ManagedAlgorithm(config).algorithm).close()


def test_unfit_sequences_are_refused_in_one_sentence() -> None:
    for algo, knobs, message in REFUSED:
        with pytest.raises(ConfigError, match=rf"^algo_kwargs\.{message}") as caught:
            built(algo, knobs)
        assert str(caught.value).count("\n") == 0


def test_which_actions_are_allowed_is_no_noise_at_first() -> None:
    """A new PPO does not read the mask; what it decides is cut by it all the same."""
    register_masked()
    for kind in ("none", "gru"):
        agent = ManagedAlgorithm(config_for("ppo", kind, env_id="masked/Task-v0"))
        algorithm = agent.algorithm
        obs = torch.randn(4, algorithm.spaces.obs_dim).abs().ceil()
        other = obs.clone()
        other[:, -5:] = torch.eye(5)[:4]
        if kind == "none":
            assert torch.equal(algorithm.value(obs), algorithm.value(other))  # type: ignore[operator]
        assert algorithm.act(other, explore=True).action.tolist() == [0, 1, 2, 3]
