"""One agent for every algorithm: learn, evaluate, predict, save, load, resume."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from typing_extensions import Self

from rl_training.algorithms.base import Algorithm
from rl_training.data.convert import save_dataset
from rl_training.data.dataset import TransitionDataset
from rl_training.data.generation import env_spaces
from rl_training.data.sources import holds_arrays, load_transition_dataset, parse_source
from rl_training.data.spaces import Spaces
from rl_training.experiment.checkpoint import (
    MANIFEST,
    CheckpointInfo,
    CheckpointStore,
    read_checkpoint,
    read_manifest,
    write_checkpoint,
)
from rl_training.experiment.config import (
    CHANGEABLE_ON_RESUME,
    DatasetConfig,
    TrainConfig,
    apply_overrides,
    load_config,
)
from rl_training.experiment.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    EnvironmentSetupError,
    NewerFormatError,
    did_you_mean,
)
from rl_training.experiment.registry import algorithm_class
from rl_training.experiment.tracking import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    DATASET_FILE,
    Console,
    ProgressConsole,
    SilentConsole,
    create_run_folder,
    read_run_config,
    write_run_config,
    written_or_said,
)
from rl_training.runtime.build import build_algorithm, build_loop, run_scope
from rl_training.runtime.callbacks import Callback, TrainResult
from rl_training.runtime.evaluation import EvalResult, Evaluator
from rl_training.runtime.trainer import Trainer, checkpoint_header, policy_function

Array = np.ndarray[Any, Any]


class ManagedAlgorithm:
    """A policy with everything around it.

    Give an environment id and keyword arguments (keys of the configuration or knobs of
    the algorithm), or a `TrainConfig`.
    """

    algo: ClassVar[str] = ""

    def __init__(
        self,
        env_or_config: str | TrainConfig,
        *,
        dataset: DatasetConfig | TransitionDataset | Mapping[str, Any] | str | Path | None = None,
        **options: Any,
    ) -> None:
        self._dataset: TransitionDataset | None = None
        if isinstance(env_or_config, TrainConfig):
            values = env_or_config.to_dict()
        elif isinstance(env_or_config, str):
            values = {"algo": self.algo, "env_id": env_or_config}
        else:
            raise ConfigError(
                "env_id: give the id of an environment, such as 'Pendulum-v1', or a TrainConfig, "
                f"not {type(env_or_config).__name__}; the agent makes environments of its own"
            )
        env_kwargs = options.get("env_kwargs", values.get("env_kwargs"))
        if not isinstance(env_kwargs, Mapping):
            env_kwargs = None  # refused with the rest of the configuration, below
        spaces = env_spaces(str(options.get("env_id", values["env_id"])), env_kwargs)
        if dataset is not None:
            values["dataset"] = self._take_dataset(dataset, str(values["env_id"]), spaces)
        self.config = _with_options(values, options, self.algo or str(values["algo"]))
        if self.algo and self.config.algo != self.algo:
            raise ConfigError(
                f"algo: {type(self).__name__} was given a config for '{self.config.algo}'; "
                f"use algo: {self.algo}, or rl_training.load for any algorithm"
            )
        self._adopt(build_algorithm(self.config, spaces))
        self.run_dir: Path | None = None

    @classmethod
    def from_config(cls, source: str | Path, **options: Any) -> Self:
        """From a packaged config such as "awr/pendulum" or a YAML file."""
        return cls(load_config(source), **options)

    def _take_dataset(self, dataset: Any, env_id: str, spaces: Spaces) -> dict[str, Any]:
        """The configuration of the data; data in memory are kept until the run folder exists."""
        if isinstance(dataset, TransitionDataset) or holds_arrays(dataset):
            self._dataset = load_transition_dataset(dataset, env_id=env_id, spaces=spaces)
            return {"kind": "npz", "path": DATASET_FILE}
        if isinstance(dataset, DatasetConfig):
            return dataset.model_dump(mode="json")
        if isinstance(dataset, Mapping):
            return dict(dataset)
        if isinstance(dataset, (str, Path)):
            return parse_source(dataset).model_dump(mode="json")
        raise DataError(
            f"dataset: a data set cannot be made from {type(dataset).__name__}; give a name such "
            "as 'pendulum-mixed', a path, arrays by name, or the keys of the section 'dataset'"
        )

    def _adopt(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self._fast_policy = _single_observation_policy(algorithm)

    # --- training -------------------------------------------------------------------------------

    def learn(
        self,
        total_updates: int | None = None,
        *,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        **options: Any,
    ) -> TrainResult:
        """Train to the end of the budget.

        Options are run-time keys such as `eval_interval`. Called again, it goes on in the
        same run folder, for example with a larger budget.
        """
        if total_updates is not None:
            options |= {"total_updates": total_updates, "total_epochs": None}
        elif options.get("total_epochs") is not None:
            options = {"total_updates": None, **options}
        if self.run_dir is not None:
            return self._resume(self.run_dir, options, callbacks, progress)
        config = _with_options(self.config.to_dict(), options, self.config.algo)
        free = CHANGEABLE_ON_RESUME | {"output_dir", "engine", "threads"}
        changed = _changes(self.config.to_dict(), config.to_dict(), free)
        if changed:
            raise ConfigError(
                f"learn cannot change what the agent was made with ({'; '.join(changed)}); "
                "give it when making the agent"
            )
        console = ProgressConsole() if progress else SilentConsole()
        with run_scope(config):
            # everything that can be refused is refused before the folder exists
            loop = build_loop(config, self.algorithm, self._dataset)
            run_dir = create_run_folder(config)
            with _removed_on_failure(run_dir):
                if self._dataset is not None:
                    path = Path(save_dataset(self._dataset, run_dir / DATASET_FILE)).resolve()
                    config = config.replace(dataset={"kind": "npz", "path": str(path)})
                write_run_config(run_dir, config)
            self.config, self.run_dir = config, run_dir
            console.say(f"run folder: {run_dir}")
            return Trainer(config, self.algorithm, loop, run_dir, console, callbacks).run()

    @classmethod
    def resume(
        cls,
        run_dir: str | Path,
        *,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        **options: Any,
    ) -> Self:
        """Continue a run exactly where its newest checkpoint left it, to its budget.

        Options may change budgets, evaluation, checkpoint, logging and early stopping;
        anything else is refused. The result is in `agent.result`.
        """
        run_dir = Path(run_dir)
        config = TrainConfig(**read_run_config(run_dir))
        agent: Self = _agent_for(cls, config, None)
        agent.result = agent._resume(run_dir, options, callbacks, progress)
        return agent

    result: TrainResult | None = None

    def _resume(
        self,
        run_dir: Path,
        options: Mapping[str, Any],
        callbacks: Sequence[Callback],
        progress: bool,
    ) -> TrainResult:
        stored = TrainConfig(**read_run_config(run_dir))
        config = _with_options(stored.to_dict(), options, stored.algo)
        _refuse_changes(stored.to_dict(), config)
        console: Console = ProgressConsole() if progress else SilentConsole()
        with run_scope(config):
            loop = build_loop(config, self.algorithm)
            trainer = Trainer(config, self.algorithm, loop, run_dir, console, callbacks)
            _check_checkpoints(trainer.store, config, console)
            with _refused_if_unfit(run_dir):
                trainer.restore()
            started_anew = trainer.resumed_at == -1
            if started_anew and (trainer.store.all() or trainer.store.unreadable()):
                raise CheckpointError(
                    f"run '{run_dir}': none of its checkpoints can be used; remove the folder "
                    f"'{CHECKPOINT_FOLDER}' in it to start the run again"
                )
            with written_or_said(run_dir / CONFIG_FILE):
                write_run_config(run_dir, config)
            self.config, self.run_dir = config, run_dir
            console.say(f"resuming {run_dir} at {loop.tick:,} of {loop.total:,} {loop.unit}")
            return trainer.run()

    # --- using ----------------------------------------------------------------------------------

    def evaluate(self, episodes: int | None = None, seed: int | None = None) -> EvalResult:
        """Whole episodes with the deterministic policy in environments of their own."""
        c = self.config
        if episodes is not None and not (isinstance(episodes, int) and episodes >= 1):
            raise ConfigError(f"episodes: expected a whole number, at least 1, got {episodes!r}")
        evaluator = Evaluator(c.env_id, c.env_kwargs, c.seed if seed is None else seed)
        try:
            return evaluator.run(policy_function(self.algorithm), episodes or c.eval_episodes)
        finally:
            evaluator.close()

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Array, Any]:
        """Action for one observation, or actions for a batch, in the environment's units.

        Signature and return value are those of Stable-Baselines3.
        """
        obs = np.asarray(observation, dtype=np.float32)
        if obs.shape[-1:] != (self.algorithm.spaces.obs_dim,) or obs.ndim > 2:
            raise EnvironmentSetupError(
                f"predict: observations must have the shape ({self.algorithm.spaces.obs_dim},) "
                f"or (n, {self.algorithm.spaces.obs_dim}), got {obs.shape}"
            )
        return self._fast_policy(obs, deterministic), state

    # --- keeping --------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write weights, optimisers, spaces and config as one checkpoint folder."""
        weight = self.algorithm.nonfinite_weight()
        if weight:
            raise CheckpointError(
                f"checkpoint '{path}' was not written: the weight '{weight}' is NaN or infinite; "
                "load an earlier checkpoint of the run"
            )
        tick = int(self.algorithm.update_count)
        header = {"tick": tick, "score": None, **checkpoint_header(self.config, self.algorithm)}
        return write_checkpoint(
            Path(path), {"algorithm": self.algorithm.training_state()}, header
        ).path

    @classmethod
    def load(cls, path: str | Path, *, checkpoint: str = "latest", device: str = "auto") -> Self:
        """An agent from a checkpoint folder, or from a run folder's `latest` or `best` one."""
        info, parts = read_checkpoint(find_checkpoint(Path(path), checkpoint), ("algorithm",))
        with _refused_if_unfit(info.path):
            config = TrainConfig(**{**info.manifest["config"], "device": device})
            agent: Self = _agent_for(cls, config, info)
            agent.algorithm.load_training_state(parts["algorithm"])
        return agent


def load(path: str | Path, *, checkpoint: str = "latest", device: str = "auto") -> ManagedAlgorithm:
    """An agent of whatever algorithm the checkpoint or run folder holds."""
    return ManagedAlgorithm.load(path, checkpoint=checkpoint, device=device)


def find_checkpoint(path: Path, which: str = "latest") -> Path:
    """The checkpoint folder that a path means: itself, or one of a run's."""
    if not (path / CONFIG_FILE).is_file():
        if which != "latest" and (path / MANIFEST).is_file():
            raise CheckpointError(
                f"'{path}' is one checkpoint already; '{which}' can be chosen of a run folder only"
            )
        return path
    store = CheckpointStore(path / CHECKPOINT_FOLDER, keep_last=1, keep_best=True)
    if which in ("latest", "best"):
        info = store.latest() if which == "latest" else store.best()
    else:
        info = next((i for i in store.all() if str(i.tick) == which), None)
    if info is None:
        for problem in store.unreadable():
            raise problem
        ticks = ", ".join(str(i.tick) for i in store.all())
        if not ticks:
            raise CheckpointError(
                f"run '{path}' has no checkpoint yet; go on with: rl-training resume {path}"
            )
        raise CheckpointError(
            f"run '{path}' has no checkpoint '{which}'; expected latest, best (of those "
            f"evaluated) or one of: {ticks}"
        )
    return info.path


def _agent_for(
    cls: type[ManagedAlgorithm], config: TrainConfig, info: CheckpointInfo | None
) -> Any:
    """An untrained agent of the config's algorithm, as `cls` or the class that fits.

    With a checkpoint's manifest the spaces come from there, and no environment is made.
    """
    from rl_training.api.algorithms import MANAGED

    if cls.algo and cls.algo != config.algo:
        raise CheckpointError(
            f"{cls.__name__} cannot load a checkpoint of '{config.algo}'; "
            "use rl_training.load, which finds the right class"
        )
    chosen = cls if cls.algo else MANAGED.get(config.algo, cls)
    agent = chosen.__new__(chosen)
    agent._dataset, agent.run_dir, agent.config = None, None, config
    if info is None:
        spaces = env_spaces(config.env_id, config.env_kwargs)
    else:
        spaces = Spaces.from_dict(info.manifest["spaces"])
    agent._adopt(build_algorithm(config, spaces))
    return agent


def _with_options(values: Mapping[str, Any], options: Mapping[str, Any], algo: str) -> TrainConfig:
    """Sort loose keyword arguments into run keys and knobs, and check the whole."""
    merged = dict(values)
    loose: dict[str, Any] = {}
    unknown = []
    known_knobs = algorithm_class(algo).Params.model_fields
    for key, value in options.items():
        if key in TrainConfig.model_fields:
            merged[key] = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
        elif key in known_knobs:
            loose[key] = value
        else:
            known = [*TrainConfig.model_fields, *known_knobs]
            unknown.append(f"{key}: unknown option for {algo}{did_you_mean(key, known)}")
    if unknown:
        raise ConfigError("\n".join(unknown))
    given = merged.get("algo_kwargs", {})
    if isinstance(given, Mapping):  # anything else is refused with the rest
        merged["algo_kwargs"] = {**values.get("algo_kwargs", {}), **given, **loose}
    return TrainConfig(**merged)


def _refuse_changes(stored: Mapping[str, Any], wanted: TrainConfig) -> None:
    """Refuse a config that would learn, or choose the best checkpoint, differently."""
    changed = _changes(stored, wanted.to_dict(), CHANGEABLE_ON_RESUME)
    # data may move: that they are the same is checked by their fingerprint
    changed = [text for text in changed if not re.match(r"dataset(\.mix\.\d+)?\.path: ", text)]
    for key, default in (("metric", "eval/return_mean"), ("mode", "max")):
        old = (stored["early_stopping"] or {}).get(key, default)
        new = getattr(wanted.early_stopping, key, default)
        if old != new:  # evaluations so far were compared by it
            changed.append(f"early_stopping.{key}: {old!r} -> {new!r}")
    if changed:
        raise ConfigError(
            "resume cannot change what is learned (" + "; ".join(changed) + "); "
            "start a new run with the changed config"
        )


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], free: frozenset[str]) -> list[str]:
    """`key: old -> new` for every difference between two configs outside the `free` keys."""
    return [
        f"{key}: {before!r} -> {after!r}"
        for key, before, after in _differences(old, new)
        if key.partition(".")[0] not in free
    ]


def _differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(key, old value, new value) wherever two nested configs differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**old, **new}:
            below = f"{key}.{name}" if key else str(name)
            yield from _differences(old.get(name), new.get(name), below)
    elif _parts(old) and _parts(new) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(one, other, f"{key}.{index}")
    elif old != new:
        yield key, old, new


def _parts(value: Any) -> bool:
    """Whether a value is a list of sections, as the parts of a mix are."""
    return isinstance(value, list) and all(isinstance(part, Mapping) for part in value)


def _check_checkpoints(store: CheckpointStore, config: TrainConfig, console: Console) -> None:
    """Refuse to resume from checkpoints that are not this run's; name those left out."""
    for problem in store.unreadable():
        if isinstance(problem, NewerFormatError):
            raise problem
        console.say(f"warning: {problem}")
    for info in store.all():
        with _refused_if_unfit(info.path):
            algo = info.manifest["algo"]
            if algo != config.algo:
                raise CheckpointError(
                    f"checkpoint '{info.path}' is of '{algo}', but the run trains "
                    f"'{config.algo}'; remove it, or restore the run's own checkpoints"
                )
            _refuse_changes(info.manifest["config"], config)


@contextmanager
def _refused_if_unfit(path: Path) -> Iterator[None]:
    """Turn what fails while a checkpoint is put to use into a sentence about it."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint '{path}' does not fit: it lacks something, or was written for other "
            "networks or by another version; use one that belongs to this run"
        ) from error


@contextmanager
def _removed_on_failure(run_dir: Path) -> Iterator[None]:
    """Leave no run folder behind when it cannot be filled."""
    try:
        yield
    except OSError as error:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise ConfigError(
            f"output_dir: the run folder '{run_dir}' cannot be filled: "
            f"{error.strerror or error}; make room or choose another folder with --output-dir"
        ) from None
    except BaseException:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise


def _single_observation_policy(algorithm: Algorithm) -> Callable[[Array, bool], Array]:
    """The policy as a function of one array, with nothing looked up per call."""
    device, spaces = algorithm.update_count.device, algorithm.spaces
    on_host = device.type == "cpu"
    if spaces.is_discrete:
        start = spaces.action_start
    else:
        low = np.asarray(spaces.action_low, np.float32)
        high = np.asarray(spaces.action_high, np.float32)
        scale, centre = (high - low) * np.float32(0.5), (high + low) * np.float32(0.5)

    def policy(obs: Array, deterministic: bool) -> Array:
        with torch.inference_mode():
            tensor = torch.from_numpy(obs)
            if not on_host:
                tensor = tensor.to(device)
            tensor = algorithm.normalizer(tensor) if algorithm.normalizer.active else tensor
            head = algorithm.policy
            action = head.mode(tensor) if deterministic else head.sample(tensor)
            inner: Array = (action if on_host else action.cpu()).numpy()
        # tanh keeps inner actions within [-1, 1], so no clip is needed here
        return inner + start if spaces.is_discrete else inner * scale + centre

    return policy


def apply_text_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts applied to plain config values."""
    return apply_overrides(values, list(overrides))


def checkpoint_details(path: Path) -> CheckpointInfo:
    """The manifest behind a checkpoint or run folder."""
    return read_manifest(find_checkpoint(path))
