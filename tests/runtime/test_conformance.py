"""Termination ends a return, truncation does not: checked number by number in every loop.

The real loops run in probes whose observations say which episode and step they are, and
everything they store or compute at the ends of episodes is compared with an oracle that
knows only the schedule and the actions. Each check is also run against oracles with a
deliberate mistake, and has to disagree.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rl_training.algorithms import dqn
from rl_training.algorithms.functional import bootstrapped_returns
from rl_training.envs.make import env_spaces
from rl_training.experiment.config import TrainConfig
from rl_training.replay.batch import Batch
from rl_training.replay.rollout import RolloutBatch
from rl_training.runtime.build import build_algorithm, build_loop
from rl_training.runtime.loops.rollouts import Minibatches
from tests.envs.probe import PROBE_ID, ProbeEnv
from tests.runtime import oracle
from tests.runtime.oracle import Mistake, Row, Transition

SEED, GAMMA, LAMBDA, ROWS = 4, 0.9, 0.8, 198


def run_loop(
    algo: str,
    num_envs: int,
    total: int,
    knobs: dict[str, Any],
    prepare: Callable[[Any], None] = lambda loop: None,
    mode: str = "sync",
) -> tuple[Any, list[list[Transition]]]:
    """A loop that has run to its budget, and what must have happened in its environments."""
    actions = "box" if algo in ("sac", "awac") else "discrete"
    config = TrainConfig(
        algo=algo,
        env_id=PROBE_ID,
        env_kwargs={**oracle.SCHEDULE, "actions": actions},
        seed=SEED,
        device="cpu",
        num_envs=num_envs,
        total_timesteps=total,
        vectorization=mode,
        algo_kwargs={"gamma": GAMMA, "hidden_sizes": [8], **knobs},
    )
    torch.manual_seed(SEED)
    loop: Any = build_loop(
        config, build_algorithm(config, env_spaces(config.env_id, config.env_kwargs))
    )
    taken: list[NDArray[Any]] = []
    begin = loop.experience.collector.begin

    def noted(actions: NDArray[Any]) -> None:
        taken.append(actions.copy())
        begin(actions)

    loop.experience.collector.begin = noted
    prepare(loop)
    loop.advance(total)
    loop.close()
    streams = oracle.run_streams(SEED, taken)
    ends = [t for stream in streams for t in stream if t.ended]
    assert sum(t.terminated for t in ends) >= 3
    assert sum(t.truncated for t in ends) >= 3
    return loop, streams


def disagrees(check: Callable[[Mistake | None], None], mistake: Mistake) -> None:
    check(None)
    with pytest.raises(AssertionError):
        check(mistake)


# --- off-policy: what is stored ----------------------------------------------------------------


def stored_rows(
    loop: Any, streams: list[list[Transition]], mistake: Mistake | None = None
) -> list[Row]:
    """What the ring must hold, in the order of its rows."""
    replay = loop.memory.replay
    complete = len(streams[0]) - (replay.n_step - 1)
    newest = range(max(0, complete - replay.steps), complete)
    by_slot = sorted(newest, key=lambda at: at % replay.steps)
    return [
        oracle.n_step_row(transitions, at, replay.n_step, GAMMA, mistake)
        for at in by_slot
        for transitions in streams
    ]


def assert_stored(batch: Batch, rows: list[Row]) -> None:
    assert len(batch.reward) == len(rows)
    for name in ("obs", "next_obs"):
        found = getattr(batch, name).numpy()
        np.testing.assert_allclose(found, [getattr(r, name) for r in rows], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(batch.action.numpy(), [row.action for row in rows])
    np.testing.assert_allclose(batch.reward.numpy(), [row.reward for row in rows], rtol=1e-6)
    np.testing.assert_allclose(batch.discount.numpy(), [row.discount for row in rows], rtol=1e-6)


OFF_POLICY = [
    *(
        ("dqn", n_step, num_envs, prioritized, capacity, "sync")
        for n_step in (1, 3, 5)
        for num_envs in (1, 3)
        for prioritized in (False, True)
        for capacity in (1000, 50)  # all of it, or what is left after going round
    ),
    ("dqn", 3, 3, True, 1000, "async"),
    ("sac", 1, 1, False, 1000, "sync"),
    ("sac", 1, 3, False, 50, "sync"),
    ("awac", 1, 3, False, 50, "sync"),
]


def off_policy_knobs(algo: str, n_step: int, prioritized: bool, capacity: int) -> dict[str, Any]:
    knobs = {"learning_starts": 20, "batch_size": 32, "buffer_capacity": capacity}
    if algo == "dqn":
        knobs |= {"n_step": n_step, "prioritized": prioritized, "target_update_interval": 7}
    if algo == "awac":
        knobs |= {"offline_batch_ratio": 0.0}  # without prior data
    return knobs


@pytest.mark.parametrize(
    ("algo", "n_step", "num_envs", "prioritized", "capacity", "mode"), OFF_POLICY
)
def test_every_stored_transition_is_the_schedules(
    algo: str, n_step: int, num_envs: int, prioritized: bool, capacity: int, mode: str
) -> None:
    knobs = off_policy_knobs(algo, n_step, prioritized, capacity)
    loop, streams = run_loop(algo, num_envs, 150, knobs, mode=mode)
    assert loop.progress.updates > 0
    replay = loop.memory.replay
    everything = replay.gather(torch.arange(len(replay)))
    assert len(replay) == min(150 - num_envs * (n_step - 1), capacity // num_envs * num_envs)

    def check(mistake: Mistake | None) -> None:
        assert_stored(everything, stored_rows(loop, streams, mistake))

    of_windows = {Mistake.CROSSES_CUTS, Mistake.CROSSES_ENDS, Mistake.FULL_POWER}
    for mistake in Mistake:
        if n_step > 1 or mistake not in of_windows:
            disagrees(check, mistake)


# --- off-policy: what is aimed at --------------------------------------------------------------


class TargetWatch:
    """Every batch that a DQN run learned from, its targets, and the network behind them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[Batch, NDArray[Any], Any]] = []
        self.monkeypatch = monkeypatch

    def __call__(self, loop: Any) -> None:
        batches: list[Batch] = []
        sample, loss = loop.memory.replay.sample, dqn.dqn_loss

        def noted_sample(size: int) -> Batch:
            batches.append(sample(size))
            return batches[-1]

        def noted_loss(q: Any, td_target: Any, *rest: Any, **knobs: Any) -> Any:
            network = copy.deepcopy(loop.algorithm.target_network)
            self.seen.append((batches[-1], td_target.numpy().copy(), network))
            return loss(q, td_target, *rest, **knobs)

        loop.memory.replay.sample = noted_sample
        self.monkeypatch.setattr(dqn, "dqn_loss", noted_loss)


@pytest.mark.parametrize("n_step", [1, 3, 5])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("prioritized", [False, True])
def test_every_target_is_the_schedules(
    n_step: int, num_envs: int, prioritized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = TargetWatch(monkeypatch)
    knobs = off_policy_knobs("dqn", n_step, prioritized, 1000)
    loop, streams = run_loop("dqn", num_envs, 150, knobs, watch)
    assert len(watch.seen) == loop.progress.updates > 20
    where = {(t.seed, t.step): (s, at) for s in streams for at, t in enumerate(s)}
    assert len(where) == 150, "no observation occurs twice"

    def check(mistake: Mistake | None) -> None:
        for batch, targets, network in watch.seen:
            keys = [ProbeEnv.decode(obs, scaled=True)[:2] for obs in batch.obs.numpy()]
            rows = [oracle.n_step_row(*where[key], n_step, GAMMA, mistake) for key in keys]
            with torch.no_grad():
                next_q = network(torch.from_numpy(np.stack([row.next_obs for row in rows])))
            expected = [
                row.reward + row.discount * float(q.max())
                for row, q in zip(rows, next_q, strict=True)
            ]
            np.testing.assert_allclose(targets, expected, rtol=1e-4, atol=1e-4)

    of_windows = {Mistake.CROSSES_CUTS, Mistake.CROSSES_ENDS, Mistake.FULL_POWER}
    for mistake in Mistake:
        if n_step > 1 or mistake not in of_windows:
            disagrees(check, mistake)


# --- off-policy: when what happens ---------------------------------------------------------------


@pytest.mark.parametrize("algo", ["dqn", "sac"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_policy_explores_once_the_random_steps_are_over(algo: str, num_envs: int) -> None:
    seen: list[tuple[int, bool, float]] = []

    def watch(loop: Any) -> None:
        act = loop.algorithm.act

        def noted(obs: Any, *, explore: bool) -> Any:
            seen.append((loop.tick, explore, loop.algorithm.fraction))
            return act(obs, explore=explore)

        loop.algorithm.act = noted

    knobs = {**off_policy_knobs(algo, 1, False, 1000), "learning_starts": 121}
    _, streams = run_loop(algo, num_envs, 150, knobs, watch)
    first = {1: 121, 3: 123}[num_envs]
    assert seen == [(tick, True, tick / 150) for tick in range(first, 150, num_envs)]
    drawn = [t.action for stream in streams for t in stream[: first // num_envs]]
    if algo == "dqn":
        assert 0.3 < np.mean(drawn) < 0.7
    else:  # uniform in [-1, 1]: deviation 0.58, of the mean of 242 numbers 0.04
        assert np.abs(drawn).max() <= 1.0
        assert (np.min(drawn), np.max(drawn)) == pytest.approx((-1.0, 1.0), abs=0.05)
        assert np.mean(drawn) == pytest.approx(0.0, abs=0.15)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_priorities_are_fed_back_and_their_correction_rises_to_the_end(num_envs: int) -> None:
    betas: list[tuple[int, float]] = []
    batches: list[Batch] = []
    fed: list[tuple[Any, Any, Any]] = []

    def watch(loop: Any) -> None:
        sample, update = loop.memory.replay.sample, loop.memory.replay.priorities.update

        def noted_sample(size: int) -> Batch:
            betas.append((loop.tick, float(loop.memory.replay.priorities.beta)))
            batches.append(sample(size))
            return batches[-1]

        def noted_update(index: Any, td_errors: Any) -> None:
            fed.append((index, td_errors.clone(), loop.algorithm.last_td_errors.clone()))
            update(index, td_errors)

        loop.memory.replay.sample, loop.memory.replay.priorities.update = noted_sample, noted_update

    knobs = {**off_policy_knobs("dqn", 1, True, 1000), "priority_beta": 0.3, "priority_alpha": 0.9}
    loop, _ = run_loop("dqn", num_envs, 150, knobs, watch)
    expected = [0.3 + 0.7 * tick / 150 for tick, _ in betas]
    np.testing.assert_allclose([beta for _, beta in betas], expected, rtol=1e-6)
    assert loop.memory.replay.priorities.alpha == 0.9
    assert len(fed) == len(batches) == loop.progress.updates > 20
    for batch, (index, given, of_update) in zip(batches, fed, strict=True):
        assert torch.equal(index, batch.index)
        assert torch.equal(given, of_update)


def test_windows_of_an_episode_that_was_given_up_are_cut_once() -> None:
    """As after a resume in an environment that did not repeat itself."""
    calls: list[tuple[str, int]] = []

    def watch(loop: Any) -> None:
        add, cut, step = (
            loop.memory.replay.add,
            loop.memory.replay.cut,
            loop.experience.draw_and_step,
        )

        def noted_cut(envs: NDArray[Any]) -> None:
            assert envs.tolist() == [False, True, False]
            calls.append(("cut", loop.tick))
            cut(envs)

        def noted_add(*columns: Any) -> None:
            calls.append(("add", loop.tick))
            add(*columns)

        def interrupted(draw: Any) -> Any:
            taken = step(draw)
            if loop.tick == 60:
                loop.experience.collector.restarted[1] = True
            return taken

        loop.memory.replay.add, loop.memory.replay.cut = noted_add, noted_cut
        loop.experience.draw_and_step = interrupted

    run_loop("dqn", 3, 150, off_policy_knobs("dqn", 3, False, 1000), watch)
    adds = [("add", tick) for tick in range(3, 151, 3)]
    assert calls == [*adds[:20], ("cut", 60), *adds[20:]]


# --- on-policy ---------------------------------------------------------------------------------


class RolloutWatch:
    """Every rollout that a PPO run learned from, and the value network that rated it."""

    def __init__(self) -> None:
        self.seen: list[tuple[RolloutBatch, oracle.Value]] = []

    def __call__(self, loop: Any) -> None:
        improve = loop.improve

        def noted(rollout: RolloutBatch) -> Any:
            network = copy.deepcopy(loop.algorithm.value)

            def value(obs: NDArray[Any]) -> NDArray[Any]:
                with torch.no_grad():
                    return network(torch.from_numpy(obs)).numpy()

            self.seen.append((rollout.map(torch.clone), value))
            return improve(rollout)

        loop.improve = noted


def assert_rollouts(
    watch: RolloutWatch,
    streams: list[list[Transition]],
    steps: int,
    rewards: NDArray[Any],
    mistake: Mistake | None = None,
) -> None:
    """Compare advantages and returns with (T, E) rewards of the whole run."""
    for number, (rollout, value) in enumerate(watch.seen):
        first = number * steps
        for i, transitions in enumerate(streams):
            part = transitions[first : first + steps]
            rows = slice(i, None, len(streams))  # steps in order, environments side by side
            assert len(rollout.obs[rows]) == len(part) == steps
            np.testing.assert_array_equal(rollout.obs[rows].numpy(), [t.obs for t in part])
            np.testing.assert_array_equal(rollout.action[rows].numpy(), [t.action for t in part])
            following = transitions[first + steps] if first + steps < len(transitions) else None
            errors = oracle.td_errors(
                part, rewards[first : first + steps, i], value, GAMMA, following, mistake
            )
            expected = oracle.advantages(part, errors, GAMMA * LAMBDA, mistake)
            found = rollout.advantage[rows].numpy()
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(
                rollout.returns[rows].numpy(),
                expected + value(np.stack([t.obs for t in part])),
                rtol=1e-4,
                atol=1e-4,
            )


def run_rollouts(
    steps: int,
    num_envs: int,
    mode: str = "sync",
    also: Callable[[Any], None] = lambda loop: None,
    **knobs: Any,
) -> tuple[RolloutWatch, list[list[Transition]]]:
    watch, size = RolloutWatch(), steps * num_envs

    def prepare(loop: Any) -> None:
        watch(loop)
        also(loop)

    own = {"rollout_length": steps, "batch_size": size, "epochs": 2, "gae_lambda": LAMBDA}
    rollouts = -(-70 // steps)  # 70 steps or more in every environment
    _, streams = run_loop("ppo", num_envs, rollouts * size, {**own, **knobs}, prepare, mode)
    assert len(watch.seen) == rollouts
    return watch, streams


@pytest.mark.parametrize(
    ("steps", "num_envs", "mode"),
    [
        *((steps, num_envs, "sync") for steps in (2, 3, 5, 8, 21) for num_envs in (1, 3)),
        (5, 3, "async"),
    ],
)
def test_advantages_and_returns_are_the_schedules(steps: int, num_envs: int, mode: str) -> None:
    watch, streams = run_rollouts(steps, num_envs, mode)
    rewards = np.array([[t.reward for t in now] for now in zip(*streams, strict=True)])

    def check(mistake: Mistake | None) -> None:
        assert_rollouts(watch, streams, steps, rewards, mistake)

    for mistake in set(Mistake) - {Mistake.FULL_POWER}:  # which is one of n-step returns
        disagrees(check, mistake)


@pytest.mark.parametrize(("steps", "num_envs"), [(3, 1), (5, 3), (21, 3)])
def test_the_running_return_behind_scaled_rewards_is_reset_at_ends(
    steps: int, num_envs: int
) -> None:
    watch, streams = run_rollouts(steps, num_envs, normalize_rewards=True)
    assert_rollouts(watch, streams, steps, oracle.scaled_rewards(streams, GAMMA))
    leaking = oracle.scaled_rewards(streams, GAMMA, reset_at_ends=False)
    with pytest.raises(AssertionError):
        assert_rollouts(watch, streams, steps, leaking)


@pytest.mark.parametrize(("steps", "num_envs"), [(5, 1), (7, 3)])
def test_statistics_of_observations_take_in_every_one_that_was_acted_on_once(
    steps: int, num_envs: int
) -> None:
    """Also across rollouts; the last observation of an episode is rated but not counted."""
    normalizers: list[Any] = []
    knobs = {"normalize_observations": True}
    watch, streams = run_rollouts(
        steps, num_envs, also=lambda loop: normalizers.append(loop.algorithm.normalizer), **knobs
    )
    raw = np.array([[t.obs for t in now] for now in zip(*streams, strict=True)], np.float64)
    found = np.concatenate([r.obs.view(steps, num_envs, -1).numpy() for r, _ in watch.seen])
    for t in range(num_envs == 1, len(raw)):  # of one observation the deviation says nothing
        seen = raw[: t + 1].reshape(-1, raw.shape[-1])
        std = np.sqrt(np.maximum(seen.var(0), 1e-8))
        expected = np.clip((raw[t] - seen.mean(0)) / std, -10.0, 10.0)
        np.testing.assert_allclose(found[t], expected, rtol=1e-2, atol=1e-2)
    assert int(normalizers[0].count) == raw.shape[0] * num_envs + num_envs  # and the next ones


def test_schedules_follow_the_share_of_the_budget() -> None:
    clips: list[float] = []

    def note(loop: Any) -> None:
        improve = loop.improve

        def noted(rollout: RolloutBatch) -> Any:
            clips.append(float(loop.algorithm.clip))
            return improve(rollout)

        loop.improve = noted

    run_rollouts(35, 1, also=note, clip=0.4, clip_schedule={"kind": "linear"})
    np.testing.assert_allclose(clips, [0.4, 0.2])


def test_every_pass_takes_every_row_once_in_an_order_of_its_own() -> None:
    columns = (torch.arange(12.0) for _ in range(6))
    minibatches = Minibatches(12, 4, torch.device("cpu"))
    minibatches.take(RolloutBatch(*columns))
    orders = []
    for _ in range(3):
        pieces = [minibatches.next() for _ in range(minibatches.shuffle(torch.randperm(12)))]
        assert [len(piece.obs) for piece in pieces] == [4, 4, 4]
        assert all(torch.equal(piece.obs, column) for piece in pieces for column in piece[:6])
        orders.append(torch.cat([piece.obs for piece in pieces]).tolist())
        assert sorted(orders[-1]) == list(range(12))
    assert len({tuple(order) for order in orders}) == 3
    assert list(range(12)) not in orders


@pytest.mark.parametrize(
    ("target", "distances", "passes"),
    [(None, [9.0] * 5, 5), (0.01, [0.0149] * 5, 5), (0.01, [0.0149, 0.0149, 0.0151, 0.0], 3)],
)
def test_epochs_end_once_the_policy_has_moved_too_far(
    target: float | None, distances: list[float], passes: int
) -> None:
    taken: list[int] = []

    def measured(loop: Any) -> None:
        def run(count: int) -> Any:
            taken.append(count)
            return {"approx_kl": torch.tensor(distances[len(taken) - 1])}

        loop.engine.run = run

    run_rollouts(70, 1, also=measured, target_kl=target, epochs=5, batch_size=35)
    assert taken == [2] * passes


# --- offline -----------------------------------------------------------------------------------


def whole_return(
    transitions: list[Transition], at: int, value: oracle.Value, mistake: Mistake | None
) -> float:
    """sum_k gamma^k r_{t+k} to the end of the episode, continued by the value at a cut."""
    total = 0.0
    for k, t in enumerate(transitions[at:]):
        total += GAMMA**k * t.reward
        last_row = at + k == len(transitions) - 1  # where the data stop, an episode is cut
        if t.terminated and mistake is not Mistake.CROSSES_ENDS:
            goes_on = mistake is Mistake.TERMINATION_GOES_ON
        elif last_row or (t.truncated and mistake is not Mistake.CROSSES_CUTS):
            goes_on = mistake is not Mistake.TRUNCATION_ENDS_THE_RETURN
        else:
            continue
        state = t.next_obs
        if t.truncated and mistake is Mistake.NEXT_IS_THE_RESET and not last_row:
            state = transitions[at + k + 1].obs
        return total + goes_on * GAMMA ** (k + 1) * float(value(state[None])[0])
    raise AssertionError("the last row ends the data")


@pytest.mark.parametrize("actions", ["box", "discrete"])
@pytest.mark.parametrize("at_truncation", ["bootstrap", "cut"])
def test_data_from_a_probe_are_the_schedules(actions: str, at_truncation: str) -> None:
    config = TrainConfig(
        algo="marwil",
        env_id=PROBE_ID,
        env_kwargs={**oracle.SCHEDULE, "actions": actions},
        dataset={"kind": "random", "steps": ROWS, "returns": {"at_truncation": at_truncation}},
        device="cpu",
        total_updates=2,
        algo_kwargs={"gamma": GAMMA, "hidden_sizes": [8], "batch_size": 32},
    )
    spaces = env_spaces(config.env_id, config.env_kwargs)
    algorithm: Any = build_algorithm(config, spaces)
    loop: Any = build_loop(config, algorithm)
    loop.advance(2)
    batch: Batch = loop.data.table.gather(torch.arange(len(loop.data.table)))
    seen = [ProbeEnv.decode(obs, scaled=True)[:2] for obs in batch.obs.numpy()]
    seeds = list(dict.fromkeys(seed for seed, _ in seen))
    transitions = oracle.stream(lambda k: [*seeds, -1][k], list(batch.action.numpy()))
    assert [(t.seed, t.step) for t in transitions] == seen
    assert len(transitions) == ROWS
    assert not transitions[-1].ended, "the last episode is cut by the end of the data"

    def value(obs: NDArray[Any]) -> NDArray[Any]:
        with torch.no_grad():
            return algorithm.model.value(torch.from_numpy(obs)).numpy()

    def check(mistake: Mistake | None) -> None:
        rows = [
            oracle.n_step_row(transitions, at, 1, GAMMA, mistake) for at in range(len(transitions))
        ]
        np.testing.assert_allclose(batch.obs.numpy(), [r.obs for r in rows], atol=1e-6)
        np.testing.assert_allclose(batch.next_obs.numpy(), [r.next_obs for r in rows], atol=1e-5)
        np.testing.assert_array_equal(batch.reward.numpy(), [r.reward for r in rows])
        np.testing.assert_allclose(batch.discount.numpy(), [r.discount for r in rows], rtol=1e-6)

    for mistake in (
        Mistake.TRUNCATION_ENDS_THE_RETURN,
        Mistake.TERMINATION_GOES_ON,
        Mistake.NEXT_IS_THE_RESET,
    ):
        disagrees(check, mistake)

    found = bootstrapped_returns(batch, algorithm.model.value).numpy()
    cut = Mistake.TRUNCATION_ENDS_THE_RETURN  # which is what "cut" asks for

    def check_returns(mistake: Mistake | None) -> None:
        meant = mistake or (cut if at_truncation == "cut" else None)
        expected = [whole_return(transitions, at, value, meant) for at in range(ROWS)]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)

    for mistake in set(Mistake) - {Mistake.FULL_POWER, *((cut,) if at_truncation == "cut" else ())}:
        disagrees(check_returns, mistake)
