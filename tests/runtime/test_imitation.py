"""The imitation loop: whose rewards the policy learns from, what is warned of and what is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import AWR, BC, GAIL, IQL, TrainConfig, load, load_transition_dataset
from rl_training.data.convert import save_dataset
from rl_training.envs.make import env_spaces
from rl_training.experiment.errors import CheckpointError, ConfigError, DataError
from rl_training.replay.imitation import ImitationBatch
from rl_training.replay.rollout import generalized_advantages
from rl_training.runtime.build import build_algorithm, build_loop
from rl_training.runtime.loops.imitation import Demonstrations
from rl_training.runtime.loops.imitation_signs import StateSamples, SurvivalBiasWarning
from rl_training.runtime.loops.off_policy import OffPolicyLoop
from rl_training.runtime.loops.on_policy import OnPolicyLoop

from ..contract.small_runs import LOOP_KNOBS, SMALL_SAC, small_config
from ..contract.test_updates import assert_same_state
from ..each import each

PPO = {"ppo": LOOP_KNOBS["imitation"]["ppo"]}
SAC = {"generator": "sac", "ppo": {}, "sac": SMALL_SAC}
GENERATORS = [pytest.param(PPO, id="ppo"), pytest.param(SAC, id="sac")]


def loop_of(config: TrainConfig) -> Any:
    algorithm = build_algorithm(config, env_spaces(config.env_id, config.env_kwargs))
    torch.manual_seed(0)
    return build_loop(config, algorithm)


def demonstrations_of(loop: Any) -> Demonstrations:
    return loop.extras[0] if isinstance(loop, OffPolicyLoop) else loop.judge.demos


def imitator_of(loop: Any) -> Any:
    return loop.engine.learner.algorithm


def ran(config: TrainConfig) -> Any:
    loop = loop_of(config)
    loop.advance(config.total_timesteps)
    loop.close()
    return loop


# --- rewards ---------------------------------------------------------------------------------


SCALED = {"ppo": {**PPO["ppo"], "normalize_rewards": True}}


@pytest.mark.parametrize("knobs", [*GENERATORS, pytest.param(SCALED, id="ppo, scaled")])
def test_the_environments_reward_reaches_nothing_that_learns(knobs: dict[str, Any]) -> None:
    """Two environments that differ in their rewards alone give the same weights, to the bit."""
    config = small_config(
        "gail",
        env_id="rl_training/SparsePendulum-v0",
        dataset={"kind": "random", "steps": 400},
        algo_kwargs=knobs,
        total_timesteps=448,
    )
    generous = config.replace(train_env_kwargs={"upright": 3.14})
    stingy, paid = ran(config), ran(generous)
    assert paid.report()["rollout/return_mean"] > 100, "the environments do pay differently"
    assert stingy.report()["rollout/return_mean"] < 50
    assert_same_state(
        stingy.engine.learner.algorithm.training_state(),
        paid.engine.learner.algorithm.training_state(),
    )
    for name, component in stingy.components().items():
        if name not in ("returns", "collector"):
            assert_same_state(component.training_state(), paid.components()[name].training_state())


def test_nothing_of_it_is_in_the_replay() -> None:
    loop = ran(small_config("gail", algo_kwargs=SAC))
    assert len(loop.memory.replay) == 64
    assert not loop.memory.replay.gather(torch.arange(64)).reward.any()


@pytest.mark.parametrize("knobs", GENERATORS)
def test_pairs_of_either_side_belong_together(knobs: dict[str, Any]) -> None:
    loop = ran(small_config("gail", algo_kwargs=knobs))
    if isinstance(loop, OffPolicyLoop):
        own = loop.memory.replay.gather(torch.arange(len(loop.memory.replay)))
        batch = loop.engine.learner.draw(loop.algorithm)
    else:
        own, batch = loop.judge.samples.pairs, loop.judge.draw()
    demos = demonstrations_of(loop).table
    theirs = demos.gather(torch.arange(len(demos)))
    for side, pairs in ((theirs, batch.expert), (own, batch.policy)):
        known = {tuple(row) for row in torch.cat([side.obs, side.action], 1).tolist()}
        assert len(pairs.obs) == demonstrations_of(loop).rows
        assert {tuple(row) for row in torch.cat(pairs, 1).tolist()} <= known


def test_ppo_learns_from_rewards_of_the_discriminator_that_has_seen_the_rollout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = loop_of(small_config("gail", algo_kwargs=PPO))
    assert isinstance(loop, OnPolicyLoop)
    before = imitator_of(loop).discriminator.net.layers[0].weight.clone()
    taken, raw, rollouts, lasts = [], [], [], []
    learn = loop.improve

    def learning(rollout: Any) -> Any:
        taken.append(loop.rollout.taken())
        raw.append(loop.rollout.raw_obs())
        rollouts.append(rollout)
        lasts.append(loop.algorithm.value(torch.from_numpy(loop.experience.obs)).detach())
        return learn(rollout)

    monkeypatch.setattr(loop, "improve", learning)
    loop.advance(16)
    assert not torch.equal(before, imitator_of(loop).discriminator.net.layers[0].weight)
    (steps,), (seen,), (rollout,), (last,) = taken, raw, rollouts, lasts
    reward = imitator_of(loop).reward(seen.flatten(0, 1), steps.action.flatten(0, 1)).view(16, 1)
    p = loop.params
    expected = generalized_advantages(
        reward,
        steps.value,
        torch.cat([steps.value[1:], last[None]]),
        torch.zeros(16, 1, dtype=torch.bool),
        torch.zeros(16, 1, dtype=torch.bool),
        gamma=p.gamma,
        gae_lambda=p.gae_lambda,
    )
    torch.testing.assert_close(rollout.advantage, expected.flatten())
    loop.close()


def test_the_discriminator_sees_observations_before_the_policys_normalisation() -> None:
    knobs = {"ppo": {**PPO["ppo"], "normalize_observations": True}}
    loop = ran(small_config("gail", algo_kwargs=knobs))
    seen = loop.judge.samples.pairs.obs  # of the pendulum: cosine, sine, speed
    torch.testing.assert_close(seen[:, 0] ** 2 + seen[:, 1] ** 2, torch.ones(len(seen)))


def test_sac_draws_pairs_of_both_sides_and_a_minibatch() -> None:
    config = small_config("gail", algo_kwargs={**SAC, "discriminator_updates": 3})
    loop = loop_of(config)
    assert isinstance(loop, OffPolicyLoop)
    loop.advance(20)
    batch = loop.engine.learner.draw(loop.algorithm)
    assert isinstance(batch, ImitationBatch)
    assert len(batch.expert.obs) == len(batch.policy.obs) == 3 * 16
    assert len(batch.experience.reward) == SMALL_SAC["batch_size"]
    steps = {name: float(opt.steps) for name, opt in imitator_of(loop).optimizers.items()}
    assert steps == {"policy": 8, "critics": 8, "temperature": 8, "discriminator": 24}
    assert loop.progress.updates == 8
    loop.close()


def test_ppo_gives_the_discriminator_its_steps_per_rollout() -> None:
    loop = ran(small_config("gail", algo_kwargs={**PPO, "discriminator_updates": 5}))
    assert float(imitator_of(loop).optimizers["discriminator"].steps) == 4 * 5
    assert float(imitator_of(loop).optimizers["policy"].steps) == 4 * 2 == loop.progress.updates


def test_each_generator_has_its_own_number_of_discriminator_steps() -> None:
    """Eight of them per update of SAC would outrun the policy."""
    for knobs, rows in ((SAC, 16), (PPO, 8 * 16)):
        config = small_config("gail", algo_kwargs={**knobs, "discriminator_updates": None})
        loop = loop_of(config)
        assert demonstrations_of(loop).rows == rows
        loop.close()


# --- demonstrations --------------------------------------------------------------------------


def test_what_is_drawn_are_the_thinned_demonstrations() -> None:
    config = small_config("gail", algo_kwargs={"demo_episodes": 2, "demo_subsample": 20})
    loop = loop_of(config)
    drawn = {row.tobytes() for _ in range(30) for row in demonstrations_of(loop).draw().obs.numpy()}
    assert len(drawn) == 20  # 2 episodes of 200 steps, every 20th
    loop.close()


def test_other_demonstrations_are_refused_on_resume(tmp_path: Path) -> None:
    rows = {
        "observations": np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32),
        "actions": np.zeros((40, 1), np.float32),
        "rewards": np.zeros(40, np.float32),
        "terminations": np.arange(40) == 39,
        "truncations": np.zeros(40, np.bool_),
    }
    config = small_config("gail", output_dir=str(tmp_path), checkpoint_interval=16)
    agent = GAIL(config, dataset=rows)
    result = agent.learn(progress=False)
    path = result.run_dir / "dataset.npz"
    changed = {**np.load(path)}
    changed["observations"] = changed["observations"] + 1
    np.savez(path, **changed)
    with pytest.raises(CheckpointError, match="is not the one this run was trained on"):
        GAIL.resume(result.run_dir, total_timesteps=128, progress=False)


def test_an_agent_is_its_generators_policy(tmp_path: Path) -> None:
    for knobs in (PPO, SAC):
        config = small_config("gail", output_dir=str(tmp_path), algo_kwargs=knobs)
        agent = GAIL(config)
        result = agent.learn(progress=False)
        again = load(result.run_dir)
        obs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
        np.testing.assert_array_equal(again.predict(obs)[0], agent.predict(obs)[0])
        assert agent.evaluate(2).return_mean == again.evaluate(2).return_mean


@pytest.mark.parametrize("kind", ["random", "scripted", "npz", "hdf5", "minari"])
def test_demonstrations_of_every_kind(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section: dict[str, Any] = {"kind": kind}
    if kind == "scripted":
        section["name"] = "pendulum-expert"
    elif kind != "random":
        pytest.importorskip({"hdf5": "h5py", "minari": "minari"}.get(kind, "numpy"))
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
        target = {"minari": "minari:test/demos-v0"}.get(kind, str(tmp_path / f"demos.{kind}"))
        save_dataset(load_transition_dataset("pendulum-expert").take_episodes(3), target)
        section |= {"id": "test/demos-v0"} if kind == "minari" else {"path": target}
    loop = ran(small_config("gail", dataset=section, algo_kwargs={"demo_subsample": 10}))
    assert loop.progress.env_steps == 64


@pytest.mark.parametrize("knobs", GENERATORS)
@pytest.mark.parametrize("source", ["npz", "hdf5", "arrays"])
def test_demonstrations_without_rewards(source: str, knobs: dict[str, Any], tmp_path: Path) -> None:
    """The same run as with them, to the bit, and it can be taken on."""
    rows = load_transition_dataset("pendulum-expert").take_episodes(3).to_arrays()
    config = small_config("gail", output_dir=str(tmp_path), algo_kwargs=knobs)
    paid = GAIL(config, dataset=rows)
    paid.learn(progress=False)
    del rows["rewards"]
    shown: Any = rows
    if source != "arrays":
        shown = tmp_path / f"demos.{source}"
        if source == "npz":
            np.savez(shown, **rows)
        else:
            with pytest.importorskip("h5py").File(shown, "w") as file:
                for name, array in rows.items():
                    file[name] = array
    free = GAIL(config, dataset=shown)
    result = free.learn(progress=False)
    states = (agent.algorithm.training_state() for agent in (paid, free))
    assert_same_state(*states)
    GAIL.resume(result.run_dir, total_timesteps=96, progress=False)


@each(
    ("knobs", "sentence"),
    [
        ({"ppo": {"rollout_length": 32, "batch_size": 9}}, "ppo.batch_size: 9 does not divide"),
        ({"ppo": {"rollout_length": 999}}, "ppo.rollout_length: one rollout takes 999 steps"),
        ({"sac": {"learning_starts": 0}}, "sac.learning_starts: 0 is too small"),
        (
            {"sac": {"learning_starts": 50, "buffer_capacity": 40}},
            "sac.learning_starts: of 50 random steps only 40 fit into "
            "algo_kwargs.sac.buffer_capacity",
        ),
        (
            {"sac": {"learning_starts": 8, "buffer_capacity": 10**14}},
            "sac.buffer_capacity: a replay of 100,000,000,000,000 transitions would take",
        ),
    ],
)
def test_knobs_of_the_generator_are_refused_by_their_full_name(
    knobs: dict[str, Any], sentence: str
) -> None:
    """The discriminator has a batch size of its own, which would not help."""
    generator = min(knobs)
    other = {"ppo": {}, "sac": {}, "generator": generator}
    with pytest.raises(ConfigError) as refused:
        loop_of(small_config("gail", algo_kwargs={**other, **knobs}))
    assert str(refused.value).startswith(f"algo_kwargs.{sentence}")


def test_other_algorithms_refuse_data_without_rewards(tmp_path: Path) -> None:
    rows = load_transition_dataset("pendulum-expert").take_episodes(3).to_arrays()
    del rows["rewards"]
    dataset = load_transition_dataset(rows, env_id="Pendulum-v1", needs_rewards=False)
    path = tmp_path / "demos.npz"
    np.savez(path, **rows)
    for cls in (AWR, IQL):
        with pytest.raises(DataError, match="missing key 'rewards'"):
            cls("Pendulum-v1", dataset=rows)
        with pytest.raises(DataError, match="has no rewards"):
            cls("Pendulum-v1", dataset=dataset)
        agent = cls("Pendulum-v1", dataset=path, device="cpu", output_dir=str(tmp_path))
        with pytest.raises(DataError, match="missing key 'rewards'"):
            agent.learn(total_updates=2, progress=False)


def test_demonstrations_of_a_checkpoint(tmp_path: Path) -> None:
    """Any agent's data set is a demonstration."""
    expert = BC("Pendulum-v1", dataset="pendulum-expert", hidden_sizes=[8], device="cpu")
    config = small_config("gail", output_dir=str(tmp_path))
    result = GAIL(config, dataset=expert.collect(episodes=2)).learn(progress=False)
    assert result.env_steps == 64


# --- what a run says -------------------------------------------------------------------------


@each(
    ("form", "success", "words"),
    [
        (
            "softplus",
            False,
            ("which most demonstrations do not", "staying alive", "random demonstr"),
        ),
        ("softplus", True, ("as most demonstrations do", "never to finish", "=log_sigmoid")),
        ("log_sigmoid", False, ("which most demonstrations do not", "to fail soon", "=softplus")),
        ("log_sigmoid", True, ("as most demonstrations do", "to finish soon", "random demonstr")),
    ],
)
def test_the_bias_is_named_once(form: str, success: bool, words: tuple[str, ...]) -> None:
    bias, notes = SurvivalBiasWarning(form, success), []
    bias.check(False, notes)
    assert not notes
    for _ in range(3):
        bias.check(True, notes)
    (note,) = notes
    assert note.startswith("algo_kwargs.reward_form: ")
    for part in words:
        assert part in note


def test_what_most_of_the_demonstrations_that_are_kept_do_is_no_failure() -> None:
    """50 expert episodes that are cut come first, then a thousand that fall."""
    config = small_config("gail", "discrete")
    dataset = load_transition_dataset("cartpole-mixed")
    algorithm: Any = build_algorithm(config, dataset.spaces)
    for kept, falls in ((50, False), (90, False), (110, True), (None, True)):
        algorithm.params = algorithm.params.model_copy(update={"demo_episodes": kept})
        assert Demonstrations(config, algorithm, dataset).reach_an_end is falls


def test_logits_have_no_sign_to_warn_of() -> None:
    notes: list[str] = []
    SurvivalBiasWarning("logit", False).check(True, notes)
    assert not notes


def test_a_run_warns_where_episodes_terminate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, warns in (("discrete", True), ("box", False)):  # CartPole falls, Pendulum cannot
        config = small_config("gail", kind, output_dir=str(tmp_path), total_timesteps=128)
        data = {"kind": "random", "steps": 50} if kind == "box" else config.to_dict()["dataset"]
        GAIL(config.replace(dataset=data)).learn()
        assert ("warning: algo_kwargs.reward_form" in capsys.readouterr().err) is warns


@pytest.mark.parametrize("knobs", GENERATORS)
def test_states_are_shown_as_histograms(tmp_path: Path, knobs: dict[str, Any]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = small_config(
        "gail", output_dir=str(tmp_path), algo_kwargs=knobs, tensorboard=True, log_interval=16
    )
    result = GAIL(config).learn(progress=False)
    events = EventAccumulator(str(result.run_dir / "tensorboard"))
    events.Reload()
    names = {f"states/{i}/{who}" for i in range(3) for who in ("expert", "policy")}
    assert set(events.Tags()["histograms"]) == names
    assert {"train/discriminator_accuracy", "train/reward_mean"} <= set(events.Tags()["scalars"])
    lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
    assert not any(key.startswith("states/") for line in lines for key in json.loads(line))


def test_the_newest_states_are_kept() -> None:
    samples = StateSamples(np.zeros((5, 2), np.float32), active=True)
    assert not samples.report()
    for i in range(3000):
        samples.see(np.full((2, 2), i, np.float32))
    policy = samples.report()["states/1/policy"]
    assert policy.tolist() == sorted([*range(3000 - 1024, 3000)] * 2)
    idle = StateSamples(np.zeros((5, 2), np.float32), active=False)
    idle.see(np.zeros((2, 2), np.float32))
    assert not idle.report()
