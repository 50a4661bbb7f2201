"""Sweeps: what they train, what they refuse, and that a kill loses nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from rl_training.cli.launchers import LauncherName, Wanted
from rl_training.experiment.cores import usable_cores
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.lock import is_in_use
from rl_training.reports.runs import find_runs
from rl_training.search.grid import configs_of, parse_seeds, plan_of
from rl_training.search.launch import Job
from rl_training.search.local import LocalProcesses, Process, Slots
from rl_training.search.runner import Outcome, StudyRunner
from rl_training.search.study import Study
from tests.conftest import Command
from tests.search.sleeping import SleepingRuns

KNOBS = (
    "dataset={kind: random, steps: 160}",
    "total_updates=4000",
    "checkpoint_interval=500",
    "eval_episodes=1",
    "eval_max_steps=5",
    "algo_kwargs.hidden_sizes=[8]",
    "algo_kwargs.batch_size=16",
)


def test_every_combination_is_a_run_and_seeds_are_trained_at_once_where_they_can_be() -> None:
    axes = ["algo_kwargs.policy_average=0,0.5", "total_updates=10,20", "env_kwargs={g: 9.8}"]
    offline = configs_of(plan_of("bc/pendulum", axes, [3, 5]))
    assert [name for name, _ in offline] == [
        "policy_average=0,total_updates=10-2seeds",
        "policy_average=0,total_updates=20-2seeds",
        "policy_average=0.5,total_updates=10-2seeds",
        "policy_average=0.5,total_updates=20-2seeds",
    ]
    for _, config in offline:
        assert config.seeds == (3, 5)
        assert config.env_kwargs == {"g": 9.8}
    online = configs_of(plan_of("sac/pendulum", ["algo_kwargs.gamma=0.9,0.99"], [3, 5]))
    assert [config.seed for _, config in online] == [3, 5, 3, 5]
    assert [config.algo_kwargs["gamma"] for _, config in online] == [0.9, 0.9, 0.99, 0.99]
    lists = configs_of(plan_of("sac/pendulum", ["algo_kwargs.hidden_sizes=[8,8],[4]"], None))
    assert [config.algo_kwargs["hidden_sizes"] for _, config in lists] == [[8, 8], [4]]
    for text, seeds in (("3", [0, 1, 2]), ("2..4", [2, 3, 4]), ("7,1", [7, 1])):
        assert parse_seeds(text) == seeds


def test_a_file_of_a_sweep(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "config: sac/pendulum\n"
        "set: {total_timesteps: 400}\n"
        "grid: {algo_kwargs.gamma: [0.9, 0.99]}\n"
        "list: [{algo_kwargs.tau: 0.1}, {algo_kwargs.tau: 0.2}]\n"
        "seeds: [4, 9]\n"
    )
    found = configs_of(plan_of(str(file), ["total_timesteps=500"], None))
    assert len(found) == 8
    assert {config.total_timesteps for _, config in found} == {500}
    assert {(c.algo_kwargs["tau"], c.algo_kwargs["gamma"], c.seed) for _, c in found} == {
        (tau, gamma, seed) for tau in (0.1, 0.2) for gamma in (0.9, 0.99) for seed in (4, 9)
    }
    for text, words in (
        ("config: sac/pendulum\ngrid: {a: 3}\n", "grid expects"),
        ("config: sac/pendulum\ngrid: {}\nseedz: 3\n", "unknown key 'seedz'"),
        ("grid: {a: [3]}\n", "names no config"),
        ("config: sac/pendulum\nlist: [3]\n", "list expects"),
        ("config: sac/pendulum\ngrid: {}\nseeds: [1, 1]\n", "each once"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=words):
            plan_of(str(file), [], None)


def test_what_a_sweep_cannot_train_is_refused_before_anything_is_made(
    cli: Command, tmp_path: Path
) -> None:
    for arguments, words in (
        (("algo_kwargs.gama=1,2",), "did you mean 'gamma'"),
        (("algo_kwargs.gamma=0.9,3",), "gamma"),
        (("algo_kwargs.gamma=0.9,,0.8",), "missing between two commas"),
        (("algo_kwargs.gamma=0.9,0.9",), "occurs twice"),
        (("seed=1,2",), "--seeds"),
        (("--seeds", "1,1"), "each once"),
        (("--seeds", "100001"), "each once"),
    ):
        refused = cli("sweep", "sac/pendulum", *arguments, "--out", tmp_path / "study")
        assert refused.code == 2
        assert words in refused.err
        assert not (tmp_path / "study").exists()
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "study"):
        refused = cli("sweep", "sac/pendulum", "--out", place)
        assert refused.code == 2
        assert "a file is in the place of a folder, remove it or choose another" in refused.err
        assert len(refused.err.splitlines()) == 1


def test_another_plan_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    def study(*overrides: str) -> Study:
        return Study(tmp_path / "study", configs_of(plan_of("bc/pendulum", overrides, [0])))

    first = study("total_updates=10,20")
    assert [trial.status for trial in first.trials] == ["waiting", "waiting"]
    study("total_updates=10,20", "device=cpu")  # where it runs is free
    for overrides, words in (
        (("total_updates=10,30",), "has no run"),
        (("total_updates=10",), "has no run"),
        (("total_updates=10,20", "log_interval=3"), "another log_interval"),
    ):
        with pytest.raises(ConfigError, match=words):
            study(*overrides)
    (tmp_path / "study" / "study.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        study("total_updates=10,20")


def test_a_killed_sweep_leaves_no_process_and_ends_as_if_it_had_not_been(
    tmp_path: Path, light_fuse: Callable[[int, str], str]
) -> None:
    """One run is enough: which processes work on it does not matter to the result."""
    keys = [*KNOBS, "total_updates=100", "checkpoint_interval=20", "eval_interval=20"]
    keys += [light_fuse(3, "study")]
    command = [sys.executable, "-m", "rl_training", "sweep", "bc/pendulum", *keys]
    command += ["--out", str(tmp_path / "study"), "--workers", "1"]
    killed = subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    run = tmp_path / "study" / "runs" / "default"
    while is_in_use(run):  # it saves because its study ended
        time.sleep(0.05)
    assert json.loads((run / "result.json").read_text())["status"] == "interrupted"

    said: list[str] = []
    study = Study(tmp_path / "study", configs_of(plan_of("bc/pendulum", keys, None)))
    outcome = StudyRunner(study, LocalProcesses(Slots(1, 1)), said.append).run()
    assert outcome.finished == ["default"]
    assert said[-1].startswith("1/1 default: eval/return_mean")
    assert same_weights(run, trained_whole(keys, tmp_path))
    assert find_runs([tmp_path / "study"])[0].status == "finished"


def test_a_run_that_another_process_begins_is_left_to_it(tmp_path: Path) -> None:
    """From the start of its process on, seconds before the run has a folder."""
    configs = configs_of(plan_of("bc/pendulum", KNOBS, None))
    study, other = (Study(tmp_path / "study", configs) for _ in range(2))
    outcome, waiting = Outcome(), list(study.trials)
    lock = other.held("default")
    assert lock is not None
    with SleepingRuns(Slots(1, 1)) as processes:
        runner = StudyRunner(study, processes, lambda line: None)
        runner.start(waiting, outcome)
        assert processes.running == set()
        lock.close()
        runner.start(waiting, outcome)
        assert processes.running == {"default"}
        assert other.held("default") is None
        processes.end("default")
        assert runner.collect(outcome) == list(study.trials)  # killed: it goes on
        again = other.held("default")
        assert again is not None
        again.close()


def test_a_second_ctrl_c_ends_runs_that_do_not_save_in_time(tmp_path: Path) -> None:
    class Deaf(LocalProcesses):
        def _begin(self, job: Job) -> Process:
            command = ["sh", "-c", "trap '' TERM; sleep 600"]
            return Process(subprocess.Popen(command, start_new_session=True), 0)

        def _outcome(self, handle: Process) -> tuple[int, str] | None:
            raise KeyboardInterrupt  # while the process is given time to save

    study = Study(tmp_path / "study", configs_of(plan_of("bc/pendulum", KNOBS, None)))
    processes = Deaf(Slots(1, 1))
    processes.start(study.trials[0])
    process = processes._started["default"].handle.popen
    with pytest.raises(KeyboardInterrupt):
        processes.stop()
    assert process.poll() is not None
    assert processes.running == set()


def test_a_run_that_fails_is_named_with_its_log(tmp_path: Path) -> None:
    study = Study(tmp_path / "study", configs_of(plan_of("bc/pendulum", KNOBS, None)))
    study.trials[0].config_file.write_text("algo: nothing\n")
    said: list[str] = []
    outcome = StudyRunner(study, LocalProcesses(Slots(1, 1)), said.append).run()
    assert outcome.finished == []
    assert "unknown algorithm" in outcome.failed["default"]
    assert "default.log" in said[-1]


def trained_whole(keys: Sequence[str], folder: Path) -> Path:
    """The run folder of the same training without an interruption."""
    from rl_training import ManagedAlgorithm
    from rl_training.experiment.config import load_config

    whole = ManagedAlgorithm(load_config("bc/pendulum", [*keys, f"output_dir={folder}/whole"]))
    whole.learn(progress=False)
    assert whole.run_dir is not None
    return whole.run_dir


def same_weights(one: Path, other: Path) -> bool:
    """Whether two runs ended with the same state, bit for bit."""
    last = [max((run / "checkpoints").iterdir()) for run in (one, other)]
    assert last[0].name == last[1].name
    states = [torch.load(path / "algorithm.pt", weights_only=True) for path in last]
    return json.dumps(states[0], default=_plain) == json.dumps(states[1], default=_plain)


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, torch.Tensor) else str(value)


def test_runs_get_a_gpu_each_unless_their_config_names_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gpus(*devices: str, named: str | None = None) -> tuple[int, tuple[str, ...]]:
        made = Wanted(LauncherName.LOCAL, gpus=named).launcher(tmp_path, 99, devices)
        assert isinstance(made, LocalProcesses)
        return made.slots.workers, made.slots.gpus

    def found(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    cores = usable_cores()
    for visible, count, known in ((None, 2, ("0", "1")), ("3,5,7", 3, ("3", "5", "7"))):
        found(count)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
        assert gpus("auto") == (count, known)
        assert gpus("cpu", "cuda:1") == (cores, ())
        assert gpus("auto", named=known[1]) == (1, (known[1],))
        with pytest.raises(ConfigError, match="GPU 9 was not found, those there are"):
            gpus("auto", named="9")
    found(0)
    assert gpus("auto") == (cores, ())
