"""Fits, rollouts and mixed minibatches: when, from what, how many; refusals; a line solved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training import (
    MBPO,
    MOPO,
    SAC,
    Callback,
    ManagedAlgorithm,
    RLTrainingError,
    load_transition_dataset,
)
from rl_training.algorithms.fitting import FitReport, Fitting
from rl_training.algorithms.mbpo import MBPOAlgorithm
from rl_training.envs.make import env_spaces
from rl_training.experiment.registry import register
from rl_training.runtime.build import build_algorithm, build_loop
from rl_training.runtime.callbacks import EvalEvent

from ..contract.small_runs import small_config
from ..each import each

TAG = 1000.0
"""Reward of imagined rows where a test wants to tell them apart."""


def wrong_shape(next_obs: Tensor) -> Tensor:
    return next_obs > 0.0


def squeezed(next_obs: Tensor) -> Tensor:
    return (next_obs[:, :1] > 0.0).squeeze()


def raises(next_obs: Tensor) -> Tensor:
    raise RuntimeError("oh\nno")


def loop_of(algo: str, config: Any = None, **knobs: Any) -> Any:
    config = config or small_config(algo, algo_kwargs=knobs)
    algorithm = build_algorithm(config, env_spaces(config.env_id))
    torch.manual_seed(0)
    return build_loop(config, algorithm)


class Notes:
    """What an `Imagination` was asked to do, and at which tick."""

    def __init__(self, loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fits: list[tuple[int, int]] = []
        self.rounds: list[tuple[int, int, int]] = []
        fit, imagine = loop.extras[0].fit, loop.extras[0].imagine

        def noted_fit(data: Any) -> None:
            self.fits.append((loop.position, len(data.reward)))
            fit(data)

        def noted_imagine(starts: Callable[[], Tensor], epoch: int) -> None:
            obs = starts()
            imagine(lambda: obs, epoch)
            length = int(loop.extras[0].newest["imagined/length"])
            self.rounds.append((loop.position, len(obs), length))

        monkeypatch.setattr(loop.extras[0], "fit", noted_fit)
        monkeypatch.setattr(loop.extras[0], "imagine", noted_imagine)


# --- when and how much -----------------------------------------------------------------------


@pytest.mark.usefixtures("every_line")
def test_fits_are_shown_in_the_progress_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config("mbpo", output_dir=str(tmp_path))
    ManagedAlgorithm(config).learn(progress=True)
    assert "fitting the model to 12 rows: epoch 1, error " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("num_envs", "ticks"), [(1, [12, 22, 32, 42, 52, 62]), (3, [12, 24, 33, 42, 54, 63])]
)
def test_fits_begin_with_learning_and_take_all_real_data(
    num_envs: int, ticks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_of("mbpo", small_config("mbpo", num_envs=num_envs))
    notes = Notes(loop, monkeypatch)
    loop.advance(64)
    assert [tick for tick, _ in notes.fits] == ticks
    assert [rows for _, rows in notes.fits] == ticks
    assert [(tick, rows) for tick, rows, _ in notes.rounds] == [(tick, 20) for tick in ticks]
    loop.close()


def test_a_log_is_fitted_once_and_imagined_in_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = loop_of("mopo")
    notes = Notes(loop, monkeypatch)
    for ticks in (3, 3, 4):
        loop.advance(ticks)
    assert notes.fits == [(0, 1200)]
    assert notes.rounds == [(0, 20, 2), (4, 20, 2), (8, 20, 2)]
    assert loop.progress.updates == 10


@pytest.mark.parametrize("algo", ["mbpo", "mopo"])
def test_the_length_in_force_is_the_length_of_rollouts(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 1 to 4 between the epochs 0 and 3; what is kept grows with it."""
    knobs = {"rollout_length": 1, "final_rollout_length": 4, "rollout_growth": [0, 3]}
    knobs |= {"epoch_length": 10 if algo == "mbpo" else 4, "retain_epochs": 1}
    config = small_config(algo, algo_kwargs=knobs)
    if algo == "mopo":
        config = config.replace(total_updates=20)
    loop = loop_of(algo, config)
    notes = Notes(loop, monkeypatch)
    seen = []
    for _ in range(loop.total):
        loop.advance(1)
        seen.append((len(loop.extras[0].replay), loop.extras[0].replay.limit))
    lengths = [length for *_, length in notes.rounds]
    assert lengths[:5] == [1, 2, 3, 4, 4]
    assert seen[-1] == (80, 80)
    assert (20, 20) in seen
    assert (40, 40) in seen
    loop.close()


@pytest.mark.parametrize(
    ("retain", "capacity", "kept"), [(1, None, 80), (2, None, 160), (2, 100, 100)]
)
def test_imagined_rows_are_kept_for_some_epochs(
    retain: int, capacity: int | None, kept: int
) -> None:
    """Two rounds per epoch, of 20 rollouts of two steps."""
    loop = loop_of("mbpo", retain_epochs=retain, model_buffer_capacity=capacity)
    loop.advance(64)
    assert len(loop.extras[0].replay) == loop.extras[0].replay.limit == kept
    loop.close()


@each("algo", ["mbpo", "mopo"])
@each(("ratio", "real"), [(0.0, 0), (0.05, 1), (0.25, 3), (1.0, 12)])
def test_every_minibatch_has_its_share_of_real_rows(algo: str, ratio: float, real: int) -> None:
    loop = loop_of(algo, real_ratio=ratio)
    loop.algorithm = loop.extras[0].algorithm
    loop.algorithm.imagined_reward = lambda reward, uncertain: torch.full_like(reward, TAG)
    loop.advance(13 if algo == "mbpo" else 5)
    for _ in range(3):
        batch = loop.engine.learner.draw(loop.algorithm)
        assert int((batch.reward != TAG).sum()) == real
        assert len(batch.reward) == 12
    loop.close()


def test_rollouts_begin_in_real_states_with_the_policys_own_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = loop_of("mbpo", rollout_length=1)
    loop.advance(13)
    real = {tuple(row) for row in loop.memory.replay.everything().obs.tolist()}
    imagined = loop.extras[0].replay.everything()
    assert {tuple(row) for row in imagined.obs.tolist()} <= real
    policy = loop.algorithm.policy
    asked = []
    sample = policy.sample
    monkeypatch.setattr(policy, "sample", lambda obs: asked.append(obs) or sample(obs))
    loop.extras[0].imagine(lambda: torch.zeros(20, 3), 0)
    assert len(asked) == 1
    newest = loop.extras[0].replay.everything().action
    assert len(set(newest.flatten().tolist())) > 10
    loop.close()


ASKED: list[Tensor] = []


def noting(next_obs: Tensor) -> Tensor:
    """A termination function that keeps the states it is asked about."""
    ASKED.append(next_obs)
    return next_obs[:, 0] > 2.0


def test_normalised_data_end_where_raw_ones_do() -> None:
    """The model lives in normalised states; the function of the task is asked about raw ones."""
    config = small_config("mopo", algo_kwargs={"termination": f"{__name__}:noting"})
    section = {**config.to_dict()["dataset"], "normalize_observations": True}
    loop = loop_of("mopo", config.replace(dataset=section))
    loop.extras[0].ends(loop.data.table.everything().next_obs)
    raw = load_transition_dataset(section, env_id="Pendulum-v1").next_observations
    found = ASKED[-1].numpy()
    inside = np.abs(raw[:, 2]) < 7.9  # the clip of far values cannot be undone
    np.testing.assert_allclose(found[inside], raw[inside], atol=1e-3)


# --- runs ------------------------------------------------------------------------------------

MODEL = {
    "num_members": 3,
    "num_elites": 2,
    "model_hidden_sizes": [16, 16],
    "rollout_batch_size": 100,
    "model_max_epochs": 5,
    "hidden_sizes": [8],
    "batch_size": 20,
    "eval_episodes": 1,
    "tensorboard": False,
    "device": "cpu",
}


def events(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_what_is_logged(tmp_path: Path) -> None:
    online = {"learning_starts": 40, "gradient_updates_per_step": 2.0, "log_interval": 20}
    agent = MBPO("Pendulum-v1", output_dir=str(tmp_path), **online, **MODEL)
    result = agent.learn(total_timesteps=80, progress=False)
    assert result.updates == 80
    train = [e for e in events(result.run_dir) if e["event"] == "train"]
    assert "model/mse" not in train[0]
    for name in ("mse", "mse_reward", "mse_state", "nll", "calibration", "disagreement", "epochs"):
        assert np.isfinite(train[-1][f"model/{name}"]), name
    assert train[-1]["imagined/length"] == 1
    assert train[-1]["imagined/rows"] == 100
    assert train[-1]["imagined/ended"] == 0
    assert "imagined/penalty_mean" not in train[-1]
    assert train[-1]["lr/dynamics"] == pytest.approx(1e-3)
    again = MBPO.load(result.run_dir)
    assert again.evaluate(1).return_mean == agent.evaluate(1).return_mean
    assert torch.equal(again.algorithm.dynamics.elites, agent.algorithm.dynamics.elites)


def test_mopo_logs_its_penalty(tmp_path: Path) -> None:
    options = {"dataset": "pendulum-mixed", "penalty_coef": 3.0, "output_dir": str(tmp_path)}
    agent = MOPO(
        "Pendulum-v1",
        model_max_epochs=1,
        log_interval=5,
        **options,
        **{key: value for key, value in MODEL.items() if key != "model_max_epochs"},
    )
    result = agent.learn(total_updates=10, progress=False)
    train = [e for e in events(result.run_dir) if e["event"] == "train"]
    assert train[0]["imagined/penalty_mean"] > 0.0
    assert train[0]["model/rows"] == 35_000


def test_a_learned_termination_that_misses_ends_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a fit cannot say is not left standing from the last one."""
    recalls = iter([0.79, 0.5, None])

    def scripted(self: Fitting, data: Any, *_: Any) -> FitReport:
        recall = next(recalls, None)
        found = {} if recall is None else {"termination_recall": recall}
        return FitReport(1, len(data.reward), {"mse": 0.5, **found})

    monkeypatch.setattr(Fitting, "fit", scripted)
    options = {"learning_starts": 20, "model_interval": 20, "log_interval": 20}
    options["gradient_updates_per_step"] = 0.1
    agent = MBPO("Pendulum-v1", termination="learned", output_dir=str(tmp_path), **options, **MODEL)
    result = agent.learn(total_timesteps=80)
    told = capsys.readouterr().err
    assert told.count("warning: algo_kwargs.termination: the learned classifier finds 79%") == 1
    assert told.count("algo_kwargs.termination") == 1
    train = [e for e in events(result.run_dir) if e["event"] == "train"]
    key = "model/termination_recall"
    assert [e.get(key) for e in train] == [0.79, 0.5, None, None]
    assert train[-1]["model/mse"] == 0.5


def test_as_many_updates_as_sac(tmp_path: Path) -> None:
    options = {"learning_starts": 40, "gradient_updates_per_step": 2.0, "output_dir": str(tmp_path)}
    own = {key: MODEL[key] for key in ("hidden_sizes", "batch_size", "eval_episodes")}
    sac = SAC("Pendulum-v1", tensorboard=False, device="cpu", **own, **options)
    mbpo = MBPO("Pendulum-v1", real_ratio=1.0, **options, **MODEL)
    results = [agent.learn(total_timesteps=60, progress=False) for agent in (sac, mbpo)]
    assert results[0].updates == results[1].updates == 40


def test_a_schedule_leaves_the_only_fit_its_learning_rate(tmp_path: Path) -> None:
    """At its one moment, before the first update, a warm-up is still at 0."""
    options = {**MODEL, "dataset": "pendulum-mixed", "output_dir": str(tmp_path)}
    warm = {"kind": "cosine", "warmup": 0.5}
    agent = MOPO("Pendulum-v1", lr_schedule=warm, log_interval=1, **options)
    result = agent.learn(total_updates=4, progress=False)
    train = [e for e in events(result.run_dir) if e["event"] == "train"]
    assert train[-1]["model/mse"] < 0.3  # 1 is that of an untrained one
    assert [e["lr/dynamics"] for e in train] == pytest.approx([1e-3] * 4)
    assert [e["lr/policy"] for e in train] == pytest.approx([0.0, 1.5e-4, 3e-4, 1.5e-4])
    with pytest.raises(RLTrainingError, match=r"^lr_schedule.optimizers: MOPO fits its model"):
        MOPO("Pendulum-v1", lr_schedule={**warm, "optimizers": ["dynamics"]}, **options)


# --- refusals --------------------------------------------------------------------------------

HERE = "tests.runtime.test_model_based"


@each(
    ("options", "message"),
    [
        (
            {"learning_starts": 4, "total_timesteps": 50},
            r"^algo_kwargs.learning_starts: 4 transitions are too few to hold out the share 0.2",
        ),
        (
            {"rollout_length": 3, "model_buffer_capacity": 299},
            r"^algo_kwargs.rollout_length: 100 rollouts of 3 steps are more transitions than the "
            r"299 of algo_kwargs.model_buffer_capacity; .* set at least 300",
        ),
        (
            {"final_rollout_length": 9, "model_buffer_capacity": 800},
            r"^algo_kwargs.rollout_length: 100 rollouts of 9 steps are more",
        ),
        (
            {"termination": f"{HERE}:wrong_shape"},
            r"^algo_kwargs.termination: '.*:wrong_shape' must return one boolean .* shape \(3, 3\)",
        ),
        (
            {"termination": f"{HERE}:raises"},
            r"^algo_kwargs.termination: '.*:raises' raised Runtime",
        ),
        (
            {"termination": f"{HERE}:squeezed"},
            r"^algo_kwargs.termination: '.*:squeezed' must return .* for each of 1 .* shape \(\)",
        ),
        ({"termination": "hoppper"}, r"^algo_kwargs.termination: 'hoppper' is not known \(did"),
        (
            {"rollout_batch_size": 10**12},
            r"^algo_kwargs.model_buffer_capacity: a model replay of .* would take",
        ),
        ({"learning_starts": 300}, r"^algo_kwargs.learning_starts: 300 random steps leave nothing"),
    ],
)
def test_refused_before_a_folder_exists(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    values = {"total_timesteps": 100, "learning_starts": 40, **MODEL, **options}
    agent = MBPO("Pendulum-v1", output_dir=str(tmp_path), **values)
    with pytest.raises(RLTrainingError, match=message) as caught:
        agent.learn(progress=False)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_rows_of_a_fit_count_as_memory(
    tmp_path: Path, free_memory: Callable[[int | None], None]
) -> None:
    """A replay of Pendulum's rows takes 36 bytes each and the model's replay little; a fit to
    them 32 for inputs and targets, and as many for the orders of each of two members. Each would
    fit alone where the run is refused, because they are needed together."""
    free = 10**7
    free_memory(free)
    knobs = {**MODEL, "num_members": 2, "num_elites": 1, "learning_starts": 40}
    rows = free // 135
    agent = MBPO("Pendulum-v1", output_dir=str(tmp_path), **knobs, buffer_capacity=rows)
    agent.learn(total_timesteps=50, progress=False)
    options = {**knobs, "buffer_capacity": free // 97}
    agent = MBPO("Pendulum-v1", output_dir=str(tmp_path / "none"), **options)
    with pytest.raises(RLTrainingError, match=r"^algo_kwargs.buffer_capacity: a model's fit to"):
        agent.learn(total_timesteps=50, progress=False)
    assert not (tmp_path / "none").exists()


def test_a_log_too_small_for_the_holdout(tmp_path: Path) -> None:
    data = load_transition_dataset("pendulum-mixed")
    names = ("observations", "actions", "rewards", "next_observations", "terminations")
    arrays = {name: getattr(data, name)[:4] for name in names}
    arrays["truncations"] = np.array([False, False, False, True])
    agent = MOPO("Pendulum-v1", dataset=arrays, output_dir=str(tmp_path), **MODEL)
    with pytest.raises(RLTrainingError, match=r"^dataset: 4 transitions are too few to hold out"):
        agent.learn(total_updates=5, progress=False)
    assert not list(tmp_path.iterdir())


def test_a_task_without_a_known_termination(tmp_path: Path) -> None:
    agent = MBPO("LineForModels-v0", output_dir=str(tmp_path), total_timesteps=9000, **MODEL)
    with pytest.raises(
        RLTrainingError, match="termination function is known for 'LineForModels-v0'"
    ):
        agent.learn(progress=False)
    assert not list(tmp_path.iterdir())


class SpoiltMBPO(MBPOAlgorithm):
    """The second member of its model has diverged before it begins."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.dynamics.net.weights[1].data[1] = float("inf")


@pytest.mark.usefixtures("own_names")
def test_a_model_that_diverges_ends_the_run_with_a_sentence(cli: Any, tmp_path: Path) -> None:
    register("spoilt_mbpo", SpoiltMBPO)
    knobs = [f"algo_kwargs.{key}={value}" for key, value in SHORT.items()]
    outcome = cli(
        "train",
        "mbpo/pendulum",
        "algo=spoilt_mbpo",
        *knobs,
        "total_timesteps=60",
        "tensorboard=false",
        "device=cpu",
        "--output-dir",
        tmp_path,
    )
    assert outcome.code == 2
    assert "error: member 1 of the dynamics model has diverged in epoch 1" in outcome.err
    assert "Traceback" not in outcome.err


SHORT = {"learning_starts": 30, "model_max_epochs": 2, "rollout_batch_size": 50}


@each(
    ("cls", "options", "message"),
    [
        (MBPO, {"dataset": "pendulum-mixed"}, "dataset: MBPO learns in the environment"),
        (MBPO, {"total_updates": 5}, "total_updates: MBPO learns in the environment"),
        (MOPO, {"total_timesteps": 5}, "total_timesteps: MOPO learns from data alone"),
        (MOPO, {"seeds": [0, 1]}, "seeds: MOPO trains one seed per run"),
        (MOPO, {"learning_starts": 5}, "learning_starts"),
    ],
)
def test_keys_of_other_families(cls: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RLTrainingError, match=message):
        cls("Pendulum-v1", **options)


def test_discrete_actions_by_the_command_line(cli: Any, tmp_path: Path) -> None:
    outcome = cli("train", "mbpo/pendulum", "env_id=CartPole-v1", "--output-dir", tmp_path / "runs")
    assert outcome.code == 2
    assert "MBPO takes Box actions" in outcome.err
    assert not (tmp_path / "runs").exists()


# --- learning --------------------------------------------------------------------------------


class LineEnv(gym.Env):  # type: ignore[type-arg]
    """A point that is pushed along a line for 30 steps and should stay at 0, where it starts."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.position = self.velocity = 0.0
        self.left = 30
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.velocity += float(action[0])
        self.position += self.velocity
        self.left -= 1
        obs = np.array([self.position, self.velocity], np.float32)
        return obs, -(self.position**2), False, self.left == 0, {}


gym.register("LineForModels-v0", f"{HERE}:LineEnv")


SOLVED = -0.02
"""Random policies stay closer with a probability below 1e-5."""


class Curve(Callback):
    """Evaluations by their step, until one solves the task."""

    def __init__(self) -> None:
        self.returns: dict[int, float] = {}

    def on_eval(self, event: EvalEvent) -> None:
        assert event.result is not None
        self.returns[event.tick] = event.result.return_mean
        if event.result.return_mean > SOLVED:
            event.request_stop("solved")


def line_curve(folder: Path, seed: int = 0, **knobs: Any) -> dict[int, float]:
    """500 random steps and 360 of its own."""
    curve = Curve()
    agent = MBPO(
        "LineForModels-v0",
        termination="never",
        hidden_sizes=[64, 64],
        learning_starts=500,
        gradient_updates_per_step=10,
        policy_lr=1e-3,
        critic_lr=1e-3,
        temperature_lr=1e-3,
        num_members=5,
        num_elites=3,
        model_hidden_sizes=[64, 64],
        model_interval=120,
        rollout_batch_size=10_000,
        seed=seed,
        device="cpu",
        eval_interval=20,
        eval_episodes=1,
        tensorboard=False,
        keep_best=False,
        output_dir=str(folder),
        **knobs,
    )
    agent.learn(total_timesteps=860, callbacks=[curve], progress=False)
    return curve.returns


def test_a_line_is_learned_in_860_steps(tmp_path: Path) -> None:
    """By most of seven seeds: the last bits of a product, which processors round differently,
    decide about single ones."""
    solved = failed = 0
    for seed in range(7):
        curve = line_curve(tmp_path, seed)
        assert max(value for tick, value in curve.items() if tick <= 500) < -1.0
        if max(curve.values()) > SOLVED:
            solved += 1
        else:
            failed += 1
        if 4 in (solved, failed):
            break
    assert solved == 4, f"not solved by {failed} of {solved + failed} seeds"


def test_an_untrained_model_teaches_nothing(tmp_path: Path) -> None:
    untrained = {"model_lr": 1e-12, "model_max_epochs": 1}
    assert max(line_curve(tmp_path, real_ratio=0.0, **untrained).values()) < SOLVED
