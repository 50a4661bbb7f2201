"""A run leaves nothing behind on the algorithm, in other threads or in the process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training import ManagedAlgorithm
from rl_training.algorithms.bc import BCAlgorithm
from rl_training.execution import batching, is_batched, is_traced, tracing
from rl_training.experiment.registry import algorithm_class, register
from rl_training.runtime import build
from rl_training.runtime.agents import SingleLearner
from rl_training.runtime.callbacks import Callback, StepEvent
from rl_training.runtime.engine import Engine

from ..conftest import Command
from ..contract.small_runs import small_config, small_learner


class Breaks(Callback):
    def on_step(self, event: StepEvent) -> None:
        raise ZeroDivisionError


def attributes(algorithm: Any) -> dict[str, Any]:
    """Everything on the object that is not learned; lists and tensors by their identity."""
    kept = {k: v for k, v in vars(algorithm).items() if not isinstance(v, torch.Tensor)}
    return {k: v if isinstance(v, float) else id(v) for k, v in kept.items()}


def test_after_learn_an_algorithm_is_as_it_was_built(tmp_path: Path) -> None:
    """Also after an exception: it can be stepped, and has no attribute that it had not before."""
    for algo in ("crr", "dqn", "rlpd"):
        loop = algorithm_class(algo).loop
        config = small_config(algo, loop=loop, output_dir=str(tmp_path), final_eval=False)
        for callbacks in ((), (Breaks(),)):
            agent = ManagedAlgorithm(config)
            _, table = small_learner(config)
            before = attributes(agent.algorithm)
            if callbacks:
                with pytest.raises(ZeroDivisionError):
                    agent.learn(callbacks=callbacks, progress=False)
            else:
                agent.learn(progress=False)
            assert attributes(agent.algorithm) == before, algo
            count = int(agent.algorithm.update_count)
            agent.algorithm.step(table.sample(config.params.batch_size))
            assert int(agent.algorithm.update_count) == count + 1


def test_compiled_pieces_belong_to_the_run() -> None:
    algorithm, table = small_learner(small_config("rlpd"))
    called = []

    def compiled(function: Any) -> Any:
        def piece(*arguments: Any) -> Any:
            called.append(function.__name__)
            return function(*arguments)

        return piece

    learner = SingleLearner(algorithm, lambda _: table.sample(algorithm.params.batch_size))
    engine = Engine(learner, "eager", 2)
    learner.compile(compiled)
    engine.run(2)
    assert set(called) == set(algorithm.pieces)
    assert not set(algorithm.pieces) & set(vars(algorithm))
    called.clear()
    algorithm.step(table.sample(algorithm.params.batch_size))
    assert not called


def test_switches_are_of_one_context() -> None:
    seen = {}
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        with batching(3), tracing():
            inside.set()
            done.wait(10)
            seen["other"] = (is_batched(), is_traced())

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    assert (is_batched(), is_traced()) == (False, False)
    done.set()
    thread.join()
    assert seen == {"other": (True, True)}


def test_only_the_command_line_changes_the_allocator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Command
) -> None:
    calls = []
    monkeypatch.setattr(build, "keep_freed_memory", lambda: calls.append(1))
    config = small_config("bc", output_dir=str(tmp_path))
    ManagedAlgorithm(config).learn(progress=False)
    assert not calls
    file = tmp_path / "config.yaml"
    file.write_text(config.to_yaml())
    assert cli("train", file, "--quiet").code == 0
    assert calls


class WithATypo(BCAlgorithm):
    def load_training_state(self, state: Any) -> None:
        self.optimisers.load(state)


@pytest.mark.usefixtures("own_names")
def test_a_programming_error_is_not_a_bad_checkpoint(tmp_path: Path) -> None:
    register("with_a_typo", WithATypo)
    agent = ManagedAlgorithm(small_config("with_a_typo", output_dir=str(tmp_path)))
    run_dir = agent.learn(progress=False).run_dir
    for use in (ManagedAlgorithm.load, ManagedAlgorithm.resume):
        with pytest.raises(AttributeError, match="optimisers"):
            use(run_dir)


def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, cli: Command, tmp_path: Path
) -> None:
    command = ("train", "bc/pendulum", "total_updates=-1", f"output_dir={tmp_path}")
    assert "Traceback" not in cli(*command).err
    for shown in (cli("--debug", *command), cli(*command, "--debug")):
        assert shown.code == 2
        assert "Traceback" in shown.err
        assert len(shown.error_lines) == 1
    for value, expected in (("1", True), ("0", False)):
        monkeypatch.setenv("RL_TRAINING_DEBUG", value)
        assert ("Traceback" in cli(*command).err) == expected
