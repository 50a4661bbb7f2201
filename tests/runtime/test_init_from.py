"""Starting with another run's policy, and what the command line refuses from offline to online."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import (
    AWR,
    BC,
    CQL,
    GAIL,
    IQL,
    PPO,
    RLPD,
    SAC,
    ManagedAlgorithm,
    RLTrainingError,
    TrainConfig,
    learn_seeds,
    load,
    resume_seeds,
)
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.warm_start import start_from
from rl_training.envs.make import env_spaces
from rl_training.runtime.build import build_algorithm, build_loop

from ..conftest import Command
from ..contract.small_runs import cases
from ..contract.test_updates import assert_same_state
from ..each import each
from .test_offline_to_online import SMALL
from .test_resume import only_run

SIZES = {"hidden_sizes": [8], "device": "cpu"}
DATA: dict[str, Any] = {"dataset": "pendulum-mixed"}
NORMALISED = {"kind": "scripted", "name": "pendulum-mixed", "normalize_observations": True}
OBS = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)


def saved(agent: ManagedAlgorithm, folder: Path, name: str = "source.ckpt") -> str:
    normalizer = moved(agent.algorithm, 0.3).normalizer
    if normalizer.active:  # as training would have left them
        normalizer.set_statistics(torch.tensor([0.7, -0.4, 2.0]), torch.tensor([0.5, 0.8, 4.0]))
    return str(agent.save(folder / name))


# --- every pair ------------------------------------------------------------------------------

BOX: dict[str, tuple[str, dict[str, Any]]] = {
    "bc": ("bc", {}),
    "bc squashed": ("bc", {"action_distribution": "tanh_gaussian"}),
    "bc mse": ("bc", {"loss": "mse"}),
    "awr": ("awr", {}),
    "marwil": ("marwil", {"action_distribution": "tanh_gaussian"}),
    "crr": ("crr", {}),
    "iql": ("iql", {}),
    "iql squashed": ("iql", {"action_distribution": "tanh_gaussian"}),
    "awac": ("awac", {}),
    "cql": ("cql", {}),
    "sac": ("sac", {}),
    "td3": ("td3", {}),
    "td3_bc": ("td3_bc", {}),
    "rebrac": ("rebrac", {}),
    "rlpd": ("rlpd", {"num_critics": 3, "num_min_critics": 2}),
    "mbpo": ("mbpo", {"num_members": 2, "num_elites": 1, "model_hidden_sizes": [8]}),
    "mopo": ("mopo", {"num_members": 2, "num_elites": 1, "model_hidden_sizes": [8]}),
    "ppo": ("ppo", {}),
    "ppo squashed": ("ppo", {"squash_mean": True}),
    "gail by ppo": ("gail", {"ppo": {"hidden_sizes": [8], "squash_mean": True}}),
    "gail by sac": ("gail", {"generator": "sac", "sac": {"hidden_sizes": [8]}}),
    "dreamer": ("dreamer", {"size": "tiny"}),
}
DISCRETE: dict[str, tuple[str, dict[str, Any]]] = {
    "bc": ("bc", {}),
    "awr": ("awr", {}),
    "marwil": ("marwil", {}),
    "crr": ("crr", {}),
    "iql": ("iql", {}),
    "awac": ("awac", {}),
    "cql": ("cql", {}),
    "sac": ("sac", {}),
    "rlpd": ("rlpd", {}),
    "ppo": ("ppo", {}),
    "gail": ("gail", {"ppo": {"hidden_sizes": [8]}}),
    "dqn": ("dqn", {}),
    "dqn dueling": ("dqn", {"dueling": True}),
    "c51": ("c51", {"num_atoms": 4}),
    "qr_dqn": ("qr_dqn", {"num_quantiles": 4}),
    "iqn": ("iqn", {}),
    "fqf": ("fqf", {}),
    "dreamer": ("dreamer", {"size": "tiny"}),
}
ALONE = {"ppo", "dreamer"}
"""Policies over Box actions that no other kind can become: no tanh, and none of observations."""


def learner_of(algo: str, env_id: str, knobs: dict[str, Any]) -> Algorithm:
    sizes = {} if algo == "dreamer" else {"hidden_sizes": [8]}
    knobs = {**sizes, **knobs}
    config = TrainConfig(algo=algo, env_id=env_id, device="cpu", algo_kwargs=knobs)
    return build_algorithm(config, env_spaces(env_id))


def moved(algorithm: Algorithm, by: float) -> Algorithm:
    """Away from its first weights, so that nothing is equal by a common seed."""
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in algorithm.parameters():
            parameter.add_(by * torch.randn_like(parameter))
    return algorithm


def allowed(kind: str, target: str, source: str) -> bool:
    if kind == "box":
        return target == source or not {target, source} & ALONE
    by_value = {"dqn", "dqn dueling", "c51", "qr_dqn", "iqn", "fqf", "dreamer"}
    return target == source or not {target, source} & by_value


@pytest.mark.parametrize("kind", ["box", "discrete"])
def test_the_first_policy_is_the_given_one_or_refused(kind: str) -> None:
    """Over all pairs of algorithms."""
    kinds, env_id = (BOX, "Pendulum-v1") if kind == "box" else (DISCRETE, "CartPole-v1")
    assert {algo for algo, _ in kinds.values()} == {n for n, k in cases() if k == kind} - {
        "fqe"
    }  # it rates a policy
    obs = torch.randn(64, 3 if kind == "box" else 4, generator=torch.Generator().manual_seed(0))
    sources = {
        name: moved(learner_of(algo, env_id, knobs), 0.3 if kind == "box" else 1.0)
        for name, (algo, knobs) in kinds.items()
    }
    for target, (algo, knobs) in kinds.items():
        fresh = learner_of(algo, env_id, knobs)
        first = fresh.act(obs, explore=False).action
        for source, given in sources.items():
            learner = copy.deepcopy(fresh)
            if not allowed(kind, target, source):
                with pytest.raises(RLTrainingError, match=r"^init_from: the .* policy in 'x'") as e:
                    start_from(learner, given, "x", same_rewards=True)
                assert "\n" not in str(e.value)
                assert_same_state(dict(learner.state_dict()), dict(fresh.state_dict()))
                continue
            start_from(learner, given, "x", same_rewards=True)
            found, expected = (x.act(obs, explore=False).action for x in (learner, given))
            pair = f"{target} from {source}"
            np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=pair)
            assert not np.allclose(expected, first, atol=1e-2), pair
            assert int(learner.update_count) == 0


@pytest.mark.parametrize("target_normalises", [True, False])
@pytest.mark.parametrize("source_normalises", [True, False])
def test_normalised_observations(
    source_normalises: bool, target_normalises: bool, tmp_path: Path
) -> None:
    """The source's statistics are carried over, or folded into the first layers."""

    def data(normalises: bool) -> dict[str, Any]:
        return {"dataset": NORMALISED if normalises else "pendulum-mixed"}

    source = IQL("Pendulum-v1", **data(source_normalises), **SIZES)
    options = {"init_from": saved(source, tmp_path), **SIZES}
    agents = [
        (cls, cls("Pendulum-v1", **data(target_normalises), **options))
        for cls in (IQL, BC, CQL, RLPD)
    ]
    if not target_normalises:
        agents += [(SAC, SAC("Pendulum-v1", **options))]
    squashed = {"normalize_observations": target_normalises, "squash_mean": True}
    agents += [(PPO, PPO("Pendulum-v1", **squashed, **options))]
    wide = (OBS * [1.0, 1.0, 4.0]).astype(np.float32)
    expected = source.predict(wide)[0]
    for cls, agent in agents:
        assert agent.algorithm.normalizer.active == target_normalises
        found = agent.predict(wide)[0]
        np.testing.assert_allclose(found, expected, atol=2e-6, err_msg=cls.__name__)
    theirs, own = source.algorithm, agents[0][1].algorithm
    seen, now = (torch.from_numpy(wide), torch.zeros(len(wide), 1))
    critics = [x.critics(x.normalizer(seen), now) for x in (theirs, own)]
    torch.testing.assert_close(*critics, atol=2e-6, rtol=1e-5)


def test_normalised_runs_learn_and_resume_with_the_statistics_they_began_with(
    tmp_path: Path,
) -> None:
    """Whatever the data's own are; the source is not needed again."""
    path = saved(IQL("Pendulum-v1", dataset=NORMALISED, **SIZES), tmp_path)
    began = load(path).algorithm.normalizer.mean
    for cls in (RLPD, BC):
        budget = {"total_timesteps": 60} if cls is RLPD else {"total_updates": 60}
        small = SMALL if cls is RLPD else {**SIZES, "eval_episodes": 1, "tensorboard": False}
        options = {"init_from": path, "dataset": NORMALISED, "checkpoint_interval": 20, **small}
        whole = cls("Pendulum-v1", output_dir=str(tmp_path / f"{cls.algo}-whole"), **options)
        whole.learn(**budget, progress=False)
        assert torch.equal(whole.algorithm.normalizer.mean, began)
        part = cls("Pendulum-v1", output_dir=str(tmp_path / f"{cls.algo}-part"), **options)
        result = part.learn(**dict.fromkeys(budget, 40), progress=False)
        Path(path).rename(tmp_path / "away")
        resumed = cls.resume(result.run_dir, **budget, progress=False)
        (tmp_path / "away").rename(path)
        assert_same_state(whole.algorithm.training_state(), resumed.algorithm.training_state())


def test_batches_are_normalised_by_the_statistics_that_were_carried_over(tmp_path: Path) -> None:
    path = saved(IQL("Pendulum-v1", dataset=NORMALISED, **SIZES), tmp_path)
    agent = AWR("Pendulum-v1", dataset=NORMALISED, init_from=path, total_updates=5, **SIZES)
    loop: Any = build_loop(agent.config, agent.algorithm)
    raw: Any = build_loop(
        agent.config.replace(
            init_from=None, dataset={**NORMALISED, "normalize_observations": False}
        ),
        agent.algorithm,
    )
    index = torch.arange(300)
    found, plain = loop.data.table.gather(index), raw.data.table.gather(index)
    for name in ("obs", "next_obs", "final_obs"):
        expected = agent.algorithm.normalizer(getattr(plain, name))
        torch.testing.assert_close(getattr(found, name), expected)
    assert found.obs.abs().max() > 1.5


def test_running_statistics_go_on_from_the_source(tmp_path: Path) -> None:
    """Their weight is not lost: the policy does not change at the first observations."""
    path = saved(IQL("Pendulum-v1", dataset=NORMALISED, **SIZES), tmp_path)
    agent = PPO(
        "Pendulum-v1", init_from=path, normalize_observations=True, squash_mean=True, **SIZES
    )
    before = agent.predict(OBS)[0]
    agent.algorithm.normalizer.observe(torch.from_numpy(OBS))
    np.testing.assert_allclose(agent.predict(OBS)[0], before, atol=0.1)
    assert float(agent.algorithm.normalizer.count) == 10_032


# --- what else is taken over -----------------------------------------------------------------


def test_the_spread_is_that_of_the_source_where_it_can_be(tmp_path: Path) -> None:
    obs = torch.from_numpy(OBS)
    one = saved(IQL("Pendulum-v1", **DATA, **SIZES), tmp_path, "one")
    many = saved(SAC("Pendulum-v1", **SIZES), tmp_path, "many")
    for cls, path in ((SAC, one), (SAC, many), (IQL, one)):
        agent = cls("Pendulum-v1", init_from=path, **({} if cls is SAC else DATA), **SIZES)
        found = agent.algorithm.policy(obs)[1]
        torch.testing.assert_close(found, load(path).algorithm.policy(obs)[1])
    ppo = PPO("Pendulum-v1", init_from=one, squash_mean=True, **SIZES)
    given = load(one).algorithm.policy.log_std
    torch.testing.assert_close(ppo.algorithm.policy.log_std, given)
    fresh = IQL("Pendulum-v1", init_from=many, **DATA, **SIZES).algorithm.policy.log_std
    assert torch.equal(fresh, torch.zeros_like(fresh))  # one for all states cannot be made of many


def test_other_networks_are_taken_where_they_fit(tmp_path: Path) -> None:
    """By what they are, the same shape, discount and rewards; said in one sentence."""
    scaled = {"kind": "scripted", "name": "pendulum-mixed", "rewards": {"scale": 0.5}}
    paths = {
        "sac": saved(SAC("Pendulum-v1", **SIZES), tmp_path, "sac"),
        "cql": saved(CQL("Pendulum-v1", dataset=scaled, **SIZES), tmp_path, "cql"),
        "iql": saved(IQL("Pendulum-v1", **DATA, **SIZES), tmp_path, "iql"),
    }
    everything = ["critics", "target critics", "temperature"]
    for cls, source, options, taken, left in (
        (SAC, "sac", {}, everything, []),
        (CQL, "sac", DATA, everything, []),
        (SAC, "sac", {"gamma": 0.5}, [], everything),
        (SAC, "sac", {"fixed_temperature": 0.1}, everything[:2], []),
        (SAC, "cql", {}, [], everything),
        (CQL, "cql", {"dataset": scaled}, everything, []),
        (SAC, "iql", {}, everything[:2], everything[2:]),
        (AWR, "iql", DATA, ["value"], []),
        (RLPD, "iql", DATA, [], everything),
    ):
        agent = cls("Pendulum-v1", init_from=paths[source], **options, **SIZES)
        given = load(paths[source]).algorithm.other_networks()
        own = agent.algorithm.other_networks()
        assert list(own) == taken + left
        for name, network in own.items():
            same = name in given and str(network) == str(given[name])
            if isinstance(network, torch.nn.Parameter):
                same = name in given and bool((network == given[name]).all())
            elif same:
                mine, theirs = (x.state_dict() for x in (network, given[name]))
                same = all(torch.equal(mine[key], theirs[key]) for key in mine)
            assert same == (name in taken), (cls, source, name)
        words = agent._beginning
        assert words is not None
        assert words.startswith(f"starts from the {source.upper()} in '{paths[source]}': policy")
        assert ("anew" in words) == bool(left)


def test_another_rlpd_gives_all_its_networks_and_no_count(tmp_path: Path) -> None:
    source = RLPD("Pendulum-v1", **DATA, **SMALL)
    source.algorithm.update_count += 7
    agent = RLPD("Pendulum-v1", init_from=saved(source, tmp_path), **DATA, **SMALL)
    expected = {**source.algorithm.state_dict(), "update_count": torch.tensor(0)}
    assert_same_state(dict(agent.algorithm.state_dict()), expected)
    fewer = {**SMALL, "num_critics": 2}
    agent = RLPD("Pendulum-v1", init_from=str(tmp_path / "source.ckpt"), **DATA, **fewer)
    np.testing.assert_array_equal(agent.predict(OBS)[0], source.predict(OBS)[0])


def test_several_seeds_start_from_one_policy(tmp_path: Path) -> None:
    path = saved(IQL("Pendulum-v1", dataset=NORMALISED, **SIZES), tmp_path)
    small = {**SIZES, "batch_size": 16, "eval_episodes": 1, "tensorboard": False}
    options = {"init_from": path, "dataset": NORMALISED, "total_updates": 3, **small}
    alone = [AWR("Pendulum-v1", seed=seed, **options) for seed in (4, 5)]
    for agent in alone:
        agent.learn(progress=False, output_dir=str(tmp_path / "alone"))
    config = alone[0].config.replace(output_dir=str(tmp_path / "together"))
    result = learn_seeds(config, [4, 5], progress=False)

    def compare(run_dir: Path) -> None:
        for seed, agent in zip((4, 5), alone, strict=True):
            found = load(run_dir / f"seed-{seed}").algorithm.state_dict()
            for name, expected in agent.algorithm.state_dict().items():
                torch.testing.assert_close(found[name], expected, atol=1e-5, rtol=1e-4)

    compare(result.run_dir)
    for seed in (4, 5):  # killed before the first checkpoint
        shutil.rmtree(result.run_dir / f"seed-{seed}" / "checkpoints")
    compare(resume_seeds(result.run_dir, progress=False).run_dir)


# --- runs ------------------------------------------------------------------------------------


def test_it_acts_from_the_first_step(tmp_path: Path) -> None:
    path = saved(SAC("Pendulum-v1", **SIZES), tmp_path)
    for agent in (
        RLPD("Pendulum-v1", init_from=path, total_timesteps=30, **DATA, **SMALL),
        SAC("Pendulum-v1", init_from=path, total_timesteps=30, learning_starts=20, **SIZES),
    ):
        loop: Any = build_loop(agent.config, agent.algorithm)
        assert loop.collecting.actor.random_steps == 0
        loop.close()


def test_a_resumed_run_needs_the_source_no_more(tmp_path: Path) -> None:
    path = saved(SAC("Pendulum-v1", **SIZES), tmp_path)
    options = {"init_from": path, "checkpoint_interval": 20, **DATA, **SMALL}
    whole = RLPD("Pendulum-v1", output_dir=str(tmp_path / "whole"), **options)
    whole.learn(total_timesteps=60, progress=False)
    part = RLPD("Pendulum-v1", output_dir=str(tmp_path / "part"), **options)
    result = part.learn(total_timesteps=40, progress=False)
    shutil.rmtree(path)
    resumed = RLPD.resume(result.run_dir, total_timesteps=60, progress=False)
    assert_same_state(whole.algorithm.training_state(), resumed.algorithm.training_state())


def test_a_run_without_a_checkpoint_starts_over_from_the_source(tmp_path: Path) -> None:
    path = saved(SAC("Pendulum-v1", **SIZES), tmp_path)
    options = {"init_from": path, "total_timesteps": 40, **DATA, **SMALL}
    agent = RLPD("Pendulum-v1", output_dir=str(tmp_path / "runs"), **options)
    agent.learn(progress=False)
    run_dir = only_run(tmp_path / "runs")
    shutil.rmtree(run_dir / "checkpoints")
    again = RLPD.resume(run_dir, progress=False)
    assert_same_state(agent.algorithm.training_state(), again.algorithm.training_state())
    shutil.rmtree(run_dir / "checkpoints")
    shutil.rmtree(path)
    with pytest.raises(RLTrainingError, match=r"^init_from: "):
        RLPD.resume(run_dir, progress=False)


def refused(path: str, message: str, **options: Any) -> None:
    with pytest.raises(RLTrainingError, match=message) as caught:
        RLPD("Pendulum-v1", init_from=path, **{**DATA, **SMALL, **options})
    assert "\n" not in str(caught.value)


def test_policies_that_do_not_fit(tmp_path: Path) -> None:
    refused(str(tmp_path / "nothing"), "^init_from: ")
    path = saved(SAC("Pendulum-v1", **SIZES), tmp_path)
    fix = r"has hidden layers \[8\], but this run \[9, 8\]; set algo_kwargs.hidden_sizes='\[8\]'"
    refused(path, fix, hidden_sizes=[9, 8])
    shutil.rmtree(path)
    path = saved(PPO("Pendulum-v1", **SIZES), tmp_path)
    refused(path, "^init_from: the PPO policy in '.*' does not bound its mean by a tanh")
    shutil.rmtree(path)
    path = saved(SAC("MountainCarContinuous-v0", **SIZES), tmp_path)
    refused(path, r"^init_from: .* the task has observations \(3,\) .*made for observations \(2,\)")
    shutil.rmtree(path)
    path = saved(BC("Pendulum-v1", **DATA, **SIZES), tmp_path)
    inner = r"bounds its mean .*; set algo_kwargs.ppo.squash_mean=true$"
    with pytest.raises(RLTrainingError, match=inner):
        GAIL("Pendulum-v1", init_from=path, ppo={"hidden_sizes": [8]}, **DATA)
    inner = r"has hidden layers \[8\], but this run \[9\]; set algo_kwargs.sac.hidden_sizes"
    with pytest.raises(RLTrainingError, match=inner):
        GAIL("Pendulum-v1", init_from=path, generator="sac", sac={"hidden_sizes": [9]}, **DATA)


# --- the command line ------------------------------------------------------------------------

QUICK = (
    "total_timesteps=40",
    "eval_episodes=1",
    "tensorboard=false",
    "device=cpu",
    "algo_kwargs.hidden_sizes=[8]",
    "algo_kwargs.learning_starts=20",
)


def test_fine_tuning_from_the_shell(cli: Command, tmp_path: Path) -> None:
    """An offline run, then the same policy online."""
    data = ("dataset.name=pendulum-mixed", "env_id=Pendulum-v1")
    small = ("total_updates=20", "eval_episodes=1", "algo_kwargs.hidden_sizes=[8]")
    offline = cli("train", "iql/pendulum", *small, "--output-dir", tmp_path / "a", "-q")
    assert offline.code == 0, offline.err
    source = f"init_from={only_run(tmp_path / 'a')}"
    online = ("train", "rlpd/pendulum", *QUICK, *data, source)
    outcome = cli(
        *online, "algo_kwargs.offline_pretrain_updates=15", "--output-dir", tmp_path / "b"
    )
    assert outcome.code == 0, outcome.err
    assert "budget of 55 pretraining updates and env steps spent" in outcome.out
    assert only_run(tmp_path / "b").name.startswith("rlpd-")


@each(
    ("overrides", "fragment"),
    [
        (("algo_kwargs.offline_batch_ratio=1.5",), "algo_kwargs.offline_batch_ratio: expected"),
        (("algo_kwargs.num_min_critics=6",), "algo_kwargs.num_min_critics: 6 critics cannot be"),
        (("algo_kwargs.batch_size=1",), "algo_kwargs.offline_batch_ratio: a batch_size of 1"),
        (("dataset=null",), "dataset: at algo_kwargs.offline_batch_ratio 0.5 rlpd learns from"),
        (
            ("dataset=null", "algo_kwargs.offline_pretrain_updates=9"),
            "algo_kwargs.offline_pretrain_updates: 9 updates of pretraining need prior data",
        ),
        (("dataset.name=cartpole-mixed",), "is made in CartPole-v1, not in rl_training/Sparse"),
        (("dataset={kind: npz, path: cartpole.npz}",), "cartpole.npz"),
        (("init_from=nowhere",), "init_from: "),
        (("total_updates=5",), "total_updates: RLPD learns from data and in the environment"),
    ],
)
def test_refused_from_the_shell(
    cli: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overrides: tuple[str, ...],
    fragment: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    made = cli("data", "make", "cartpole-random", "--out", "cartpole.npz")
    assert made.code == 0
    outcome = cli("train", "rlpd/pendulum", *QUICK, *overrides, "--output-dir", tmp_path / "runs")
    assert outcome.code == 2, outcome
    assert outcome.err.splitlines() == outcome.error_lines
    assert len(outcome.error_lines) == 1
    assert fragment in outcome.err
    assert not (tmp_path / "runs").exists()
