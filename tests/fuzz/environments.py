"""Environments that misbehave, each in one way: what it does, and what has to be said of it.

`python -m tests.fuzz environments` meets every kind in every form: training in this process and in
workers, evaluation only, data collection. `test_environments.py` takes all kinds through the quick
forms.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import math
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from tests.fuzz.runner import Verdict

ENV_ID = "test/Misbehaving-v0"
FORMS = ("sync", "async", "evaluate", "collect")
FAILS_AT = 5
"""The step at which an environment misbehaves, where it does so in a step."""
LIMIT_S = 120.0


class Stop(BaseException):
    """What no environment should raise."""


@dataclass(frozen=True)
class Kind:
    """One way to misbehave."""

    name: str
    says: str | None
    """A part of the sentence that refuses it; None where it has to be lived with."""
    observation: Callable[[Any], Any] | None = None
    reward: Callable[[], Any] | None = None
    terminated: Callable[[], Any] | None = None
    truncated: Callable[[], Any] | None = None
    step: Callable[[], Any] | None = None
    """Replaces the whole answer of a step, or raises."""
    reset: Callable[[Any], Any] | None = None
    """Makes the whole answer of a reset of the first observation."""
    observation_space: Any = "own"
    action_space: Any = "own"
    make: Callable[[], Any] | None = None
    close: Callable[[], Any] | None = None
    ends: bool = True
    forms: tuple[str, ...] = FORMS
    """In which it leaves the process alive, or its habit is seen."""


def _raise(error: BaseException) -> Any:
    raise error


def _segfault() -> None:
    faulthandler.disable()  # pytest's would print pages about a crash that is meant
    os.kill(os.getpid(), signal.SIGSEGV)


def _mask(obs: Any) -> Any:
    return np.ma.masked_array(obs, [True, False, False])


OBS = "as the observation, expected float32 numbers of shape (3,)"
SHAPE = "expected (3,)"
NUMBER = "expected a number"
FLAG = "expected True or False"
OTHER_PROCESS = ("async",)
SEEN_IN_TRAINING = ("sync", "async")

KINDS = [
    # --- observations
    Kind("observation None", f"returned None {OBS}", observation=lambda o: None),
    Kind("observation dict", f"returned a dict {OBS}", observation=lambda o: {"obs": o}),
    Kind("observation str", f"returned a str {OBS}", observation=lambda o: "abc"),
    Kind("observation bytes", f"returned a bytes {OBS}", observation=lambda o: b"abc"),
    Kind("observation number", "of shape ()", observation=lambda o: 0.5),
    Kind("observation (1, 3)", "of shape (1, 3)", observation=lambda o: o[None]),
    Kind("observation (3, 1)", "of shape (3, 1)", observation=lambda o: o[:, None]),
    Kind("observation longer", "of shape (4,)", observation=lambda o: np.append(o, 1)),
    Kind("observation shorter", "of shape (2,)", observation=lambda o: o[:2]),
    Kind("observation empty", "of shape (0,)", observation=lambda o: o[:0]),
    Kind("observation ragged", "which is not an array", observation=lambda o: [[1], [1, 2], 3]),
    Kind("observation tuple with info", "which is not an array", observation=lambda o: (o, {})),
    Kind("observation of words", "of <U1", observation=lambda o: np.array(["a", "b", "c"])),
    Kind("observation of digits", "of <U1", observation=lambda o: np.array(["1", "2", "3"])),
    Kind("observation of objects", "of object", observation=lambda o: np.array([1, None, 2])),
    Kind("observation complex", "of complex64", observation=lambda o: o + 1j),
    Kind("observation of dates", "of datetime64", observation=lambda o: o.astype("datetime64[s]")),
    Kind("observation masked", "masked numbers", observation=_mask),
    Kind("observation NaN", "returned the observation [nan", observation=lambda o: o * math.nan),
    Kind("observation inf", "returned the observation [inf", observation=lambda o: o + math.inf),
    Kind("observation 1e300", "returned the observation", observation=lambda o: o * 0 + 1e300),
    Kind("observation list", None, observation=lambda o: o.tolist()),
    Kind("observation float64", None, observation=lambda o: o.astype(np.float64)),
    Kind("observation integers", None, observation=lambda o: np.array([1, 2, 3])),
    Kind("observation flags", None, observation=lambda o: o > 0),
    Kind("observation tensor", None, observation=torch.from_numpy),
    Kind("observation out of bounds", None, observation=lambda o: o + 1e6),
    # --- rewards
    Kind("reward None", f"the reward None, {NUMBER}", reward=lambda: None),
    Kind("reward str", f"the reward '1.0', {NUMBER}", reward=lambda: "1.0"),
    Kind("reward of two", NUMBER, reward=lambda: np.array([1.0, 2.0])),
    Kind("reward dict", NUMBER, reward=dict),
    Kind("reward complex", NUMBER, reward=lambda: 1j),
    Kind("reward NaN", "returned the reward nan", reward=lambda: math.nan),
    Kind("reward inf", "returned the reward inf", reward=lambda: math.inf),
    Kind("reward 10**400", NUMBER, reward=lambda: 10**400),
    Kind("reward 1e300", "returned the reward inf", reward=lambda: 1e300, forms=SEEN_IN_TRAINING),
    Kind("reward int", None, reward=lambda: 1),
    Kind("reward bool", None, reward=lambda: True),
    Kind("reward array of one", None, reward=lambda: np.array([1.0])),
    Kind("reward tensor", None, reward=lambda: torch.tensor(1.0)),
    # --- flags
    Kind("terminated 'False'", f"'False' as 'terminated', {FLAG}", terminated=lambda: "False"),
    Kind("terminated NaN", f"nan as 'terminated', {FLAG}", terminated=lambda: math.nan),
    Kind("terminated None", f"None as 'terminated', {FLAG}", terminated=lambda: None),
    Kind("terminated array", FLAG, terminated=lambda: np.array([False, False])),
    Kind("terminated 2", FLAG, terminated=lambda: 2),
    Kind("truncated info", f"as 'truncated', {FLAG}", truncated=dict),
    Kind("truncated 'True'", f"'True' as 'truncated', {FLAG}", truncated=lambda: "True"),
    Kind("flags 0 and 0.0", None, terminated=lambda: 0, truncated=lambda: 0.0),
    Kind("flag of no dimension", None, terminated=lambda: np.array(False)),
    # --- whole answers
    Kind("old step of 4", "a tuple of 4 from step", step=lambda: (np.zeros(3), 0.0, False, {})),
    Kind("step None", "returned None from step", step=lambda: None),
    Kind("step of 6", "a tuple of 6 from step", step=lambda: (0, 0, 0, 0, 0, 0)),
    Kind("step an array", "from step", step=lambda: np.zeros(3)),
    Kind("old reset", "an array of shape (3,) from reset", reset=lambda o: o),
    Kind("reset None", "returned None from reset", reset=lambda o: None),
    Kind("reset of 3", "a tuple of 3 from reset", reset=lambda o: (o, {}, 1)),
    Kind("reset a dict", "a dict from reset", reset=lambda o: {"obs": o}),
    Kind("reset another shape", SHAPE, reset=lambda o: (o[:1], {})),
    Kind("reset NaN", "returned the observation [nan", reset=lambda o: (o * math.nan, {})),
    # --- raising and ending
    Kind("raises in step", "raised ValueError: no", step=lambda: _raise(ValueError("no."))),
    Kind("raises without a word", "raised KeyError", step=lambda: _raise(KeyError())),
    Kind("raises in reset", "raised OSError: gone", reset=lambda o: _raise(OSError("gone"))),
    Kind("asserts", "raised AssertionError", step=lambda: _raise(AssertionError("a\nb"))),
    Kind("recurses", "raised RecursionError", step=lambda: _raise(RecursionError("deep"))),
    Kind("out of memory", "raised MemoryError", step=lambda: _raise(MemoryError())),
    Kind("stops iteration", "raised StopIteration", step=lambda: _raise(StopIteration())),
    Kind("sys.exit in step", "raised SystemExit: 3", step=lambda: sys.exit(3)),
    Kind("sys.exit in reset", "raised SystemExit: 3", reset=lambda o: sys.exit(3)),
    Kind("exits in step", "exit code 3", step=lambda: os._exit(3), forms=OTHER_PROCESS),
    Kind("exits in reset", "exit code 3", reset=lambda o: os._exit(3), forms=OTHER_PROCESS),
    Kind(
        "is killed",
        "killed by signal SIGKILL",
        step=lambda: os.kill(os.getpid(), signal.SIGKILL),
        forms=OTHER_PROCESS,
    ),
    Kind(
        "segfaults",
        "killed by signal SIGSEGV",
        step=_segfault,
        forms=OTHER_PROCESS,
    ),
    Kind(
        "raises what no one catches",
        "raised Stop",
        step=lambda: _raise(Stop("now")),
        forms=OTHER_PROCESS,
    ),
    # --- spaces
    Kind("no observation space", "observation space None is not", observation_space=None),
    Kind("no action space", "action space None is not supported", action_space=None),
    Kind("text as observations", "is not supported", observation_space=gym.spaces.Text(3)),
    Kind(
        "observations of no component",
        "is not supported: expected a flat Box",
        observation_space=gym.spaces.Box(-1.0, 1.0, (0,), np.float32),
    ),
    Kind(
        "unbounded actions",
        "every bound must be finite",
        action_space=gym.spaces.Box(-np.inf, np.inf, (1,), np.float32),
    ),
    Kind(
        "actions of no component",
        "is not supported",
        action_space=gym.spaces.Box(-1.0, 1.0, (0,), np.float32),
    ),
    Kind(
        "a sequence of actions",
        "is not supported",
        action_space=gym.spaces.Sequence(gym.spaces.Discrete(2)),
    ),
    # --- making and closing
    Kind("raises when made", "cannot be made: no", make=lambda: _raise(ValueError("no"))),
    Kind("sys.exit when made", "cannot be made: 3", make=lambda: sys.exit(3)),
    Kind("raises in close", None, close=lambda: _raise(RuntimeError("stuck"))),
    Kind("sys.exit in close", None, close=lambda: sys.exit(3)),
    Kind("never ends", None, ends=False),
    Kind("draws from Python's generator", None, reward=random.random),
    Kind("draws from NumPy's generator", None, reward=lambda: np.random.random()),
    Kind("seeds torch", None, reset=lambda o: (torch.manual_seed(1), (o, {}))[1]),
    Kind("sets floating-point errors", None, step=None, make=lambda: np.seterr(all="raise")),
    Kind("warns", None, make=lambda: __import__("warnings").warn("odd", stacklevel=1)),
    Kind("prints", None, make=lambda: print("hello")),
]
BY_NAME = {kind.name: kind for kind in KINDS}
CASES = [(kind.name, form) for kind in KINDS for form in kind.forms]
LONG, SHORT = len(CASES), 0  # the short form is a test of its own


class Misbehaving(gym.Env[Any, Any]):
    """Three numbers, two actions, ten steps; `kind` is what it does wrong."""

    def __init__(self, kind: str) -> None:
        self.kind = BY_NAME[kind]
        if self.kind.make:
            self.kind.make()
        own = gym.spaces.Box(-9.0, 9.0, (3,), np.float32)
        given = self.kind.observation_space
        self.observation_space = own if isinstance(given, str) else given
        given = self.kind.action_space
        self.action_space = gym.spaces.Discrete(2) if isinstance(given, str) else given
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        obs = self.np_random.normal(size=3).astype(np.float32)
        return self.kind.reset(obs) if self.kind.reset else (obs, {})

    def step(self, action: Any) -> Any:
        self.steps += 1
        obs = self.np_random.normal(size=3).astype(np.float32)
        over = self.steps >= 10 and self.kind.ends
        if self.steps < FAILS_AT:
            return obs, 1.0, False, False, {}
        if self.kind.step:
            return self.kind.step()
        return (
            self.kind.observation(obs) if self.kind.observation else obs,
            self.kind.reward() if self.kind.reward else 1.0,
            self.kind.terminated() if self.kind.terminated and not over else over,
            self.kind.truncated() if self.kind.truncated else False,
            {},
        )

    def close(self) -> None:
        if self.kind.close:
            self.kind.close()


def register() -> None:
    if ENV_ID not in gym.registry:
        gym.register(id=ENV_ID, entry_point=Misbehaving, disable_env_checker=True)


def prepare(folder: Path) -> None:
    """Nothing is needed."""


def attempt(case: tuple[str, str], prepared: Path, folder: Path) -> Verdict:
    name, form = case
    register()
    kind = BY_NAME[name]
    problem = verdict(kind, form, folder / "runs")
    outcome = "refused" if kind.says else "lived with"
    return Verdict(f"{name}, {form}", outcome, problem or None)


def use(kind: Kind, form: str, folder: Path) -> None:
    """Meet an environment of a kind in one form; what is wrong is raised."""
    from rl_training import DQN

    options: dict[str, Any] = {
        "device": "cpu",
        "tensorboard": False,
        "hidden_sizes": [4],
        "batch_size": 4,
        "total_timesteps": 40,
        "learning_starts": 10,
        "eval_episodes": 1,
        "eval_max_steps": 60,
        "output_dir": str(folder),
        "env_kwargs": {"kind": kind.name},
    }
    if form in ("sync", "async"):
        more = {"vectorization": form, "num_envs": 2, "final_eval": False}
        DQN(ENV_ID, **options, **more).learn(progress=False)
        return
    agent = DQN(ENV_ID, **options)
    if form == "evaluate":
        agent.evaluate(2)
    else:
        agent.collect(episodes=2)


def verdict(kind: Kind, form: str, folder: Path) -> str:
    """What is wrong with how an environment of a kind was met; nothing where all is well."""
    from rl_training.experiment.errors import RLTrainingError

    began, floating = time.monotonic(), np.geterr()
    sentence: str | None = None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            use(kind, form, folder)
    except RLTrainingError as error:
        sentence = str(error)
    except BaseException:  # noqa: BLE001  (whatever else is what is looked for)
        return f"traceback: {traceback.format_exc().splitlines()[-1]}"
    finally:
        np.seterr(**floating)
    seconds = time.monotonic() - began
    children = multiprocessing.active_children()
    if children:
        return f"{len(children)} processes left"
    if seconds > LIMIT_S:
        return f"took {seconds:.0f} s"
    if kind.says is None:
        return f"refused: {sentence}" if sentence else ""
    if sentence is None:
        return "taken in silence"
    if "\n" in sentence or kind.says not in sentence:
        return f"other words: {sentence}"
    refused_at_the_door = "is kept in" not in sentence
    if refused_at_the_door and form in ("sync", "async") and any(folder.glob("*")):
        return f"left behind: {[path.name for path in folder.glob('*')]}"
    return ""
