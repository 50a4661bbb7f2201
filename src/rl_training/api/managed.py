"""One agent for every algorithm: learn, evaluate, predict, save, load, resume."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

import numpy as np
import torch

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.fqe import evaluated_policy
from rl_training.api import insight, worth
from rl_training.api.initial import start_policy
from rl_training.api.support import (
    PREPARATION,
    Array,
    announce,
    changes,
    check_checkpoints,
    find_checkpoint,
    how_to_name,
    preparation,
    refuse_changes,
    refuse_misplaced,
    refused_if_unfit,
    removed_on_failure,
    state_before,
    store_in,
    stored_config,
    version_note,
    with_absolute_paths,
    with_options,
    with_paths_found,
)
from rl_training.data.dataset import TransitionDataset
from rl_training.data.inference import spaces_section
from rl_training.data.sources import (
    holds_frame,
    in_memory,
    load_transition_dataset,
    parse_source,
)
from rl_training.envs.global_random import refuse_beside_learning
from rl_training.envs.make import env_spaces
from rl_training.envs.masks import with_mask
from rl_training.envs.spaces import Spaces
from rl_training.experiment.checkpoint import (
    CheckpointInfo,
    CheckpointStore,
    read_checkpoint,
    write_checkpoint,
)
from rl_training.experiment.config import (
    CHANGEABLE_ON_RESUME,
    DatasetConfig,
    SpacesConfig,
    TrainConfig,
    load_config,
    whole_number,
)
from rl_training.experiment.console import Console, ProgressConsole, SilentConsole
from rl_training.experiment.errors import (
    CheckpointError,
    ConfigError,
    DataError,
)
from rl_training.experiment.lock import working_in
from rl_training.experiment.registry import algorithm_class
from rl_training.experiment.sinks import make_sinks
from rl_training.experiment.state import Stored
from rl_training.experiment.tracking import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    DATASET_FILE,
    create_run_folder,
    read_run_config,
    reraise_os_error,
    resume_command,
    write_run_config,
)
from rl_training.experiment.trust import refuse_unknown_modules
from rl_training.runtime.build import (
    build_algorithm,
    build_loop,
    run_scope,
    spaces_in_full,
    task_spaces,
)
from rl_training.runtime.callbacks import Callback, TrainResult, checked_callbacks
from rl_training.runtime.collection import Behaviour, StepWatcher, collect
from rl_training.runtime.evaluation import HELD_OUT_STATES, EvalResult, evaluate_once
from rl_training.runtime.loops import Loop
from rl_training.runtime.loops.data import read_data
from rl_training.runtime.policy import ActingPolicy, env_actions
from rl_training.runtime.saving import checkpoint_header
from rl_training.runtime.trainer import Trainer, one_agent
from rl_training.runtime.video import record_episode

if TYPE_CHECKING:
    from rl_training.export.write import ExportResult


class ManagedAlgorithm:
    """A policy with everything around it.

    Give an environment id and keyword arguments (keys of the configuration or knobs of
    the algorithm), or a `TrainConfig`. Algorithms that learn from data alone need no
    environment but a `dataset`: a path, the keys of the section `dataset`, arrays by name, a data
    frame, a list of episodes or a `TransitionDataset`; `spaces`, the section `dataset.spaces`,
    says what its data cannot show.
    """

    algo: ClassVar[str] = ""
    _loaded = False
    _dataset: TransitionDataset | None = None
    """Data that were given in memory, and have to be written into the run folder."""
    _read: TransitionDataset | None = None
    """Data that were read to learn about the spaces of a task without an environment."""

    def __init__(
        self,
        env_or_config: str | TrainConfig | None = None,
        *misplaced: Any,
        dataset: Any = None,
        spaces: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        refuse_misplaced(type(self).__name__, env_or_config, misplaced)
        base: TrainConfig | dict[str, Any]
        if isinstance(env_or_config, TrainConfig):
            base, values = env_or_config, dict(env_or_config)
        elif env_or_config is None or isinstance(env_or_config, str):
            base = {"algo": self.algo or options.pop("algo", ""), "env_id": env_or_config}
            values = base
        else:
            raise ConfigError(how_to_name(env_or_config))
        env_id = options.get("env_id", values["env_id"])
        env_kwargs = options.get("env_kwargs", values.get("env_kwargs"))
        if not isinstance(env_kwargs, Mapping):
            env_kwargs = None  # refused with the rest of the configuration, below
        made_for = None if env_id is None else env_spaces(str(env_id), env_kwargs)
        if dataset is not None:
            algo = str(options.get("algo", values["algo"]))
            needs_rewards = algorithm_class(algo).needs_rewards
            given = made_for or SpacesConfig.parse(spaces or {}, prefix="spaces.")
            section = self._take_dataset(dataset, env_id, given, needs_rewards)
            # other data through the same preparation, unless it says its own
            options["dataset"] = preparation(values.get("dataset")) | section
            if spaces is not None:
                options["dataset"]["spaces"] = dict(spaces)
        self.config = with_options(base, options, self.algo or str(values["algo"]))
        if self.algo and self.config.algo != self.algo:
            raise ConfigError(
                f"algo: {type(self).__name__} was given a config for '{self.config.algo}'; "
                f"use algo: {self.algo}, or rl_training.load for any algorithm"
            )
        self.config = _with_evaluated_policy(self.config)
        self._adopt(build_algorithm(self.config, made_for or self._spaces_of_data()))
        self._start()
        self.run_dir: Path | None = None

    @classmethod
    def from_config(cls, source: str | Path, **options: Any) -> Self:
        """From a packaged config such as "awr/pendulum" or a YAML file."""
        return cls(load_config(source), **options)

    def _take_dataset(
        self, dataset: Any, env_id: str | None, spaces: Spaces | SpacesConfig, needs_rewards: bool
    ) -> dict[str, Any]:
        """The configuration of the data; data in memory are kept until the run folder exists."""
        if in_memory(dataset):
            kept = {}
            if holds_frame(dataset):  # what is done to the data is the run's, not the file's
                kept = {key: dataset[key] for key in PREPARATION if key in dataset}
                dataset = {key: value for key, value in dataset.items() if key not in kept}
            self._dataset = load_transition_dataset(
                dataset,
                env_id=env_id,
                spaces=spaces,
                needs_rewards=needs_rewards,
                widen_constants=False,
            )
            return {"kind": "npz", "path": DATASET_FILE, **kept}
        if isinstance(dataset, DatasetConfig):
            return dataset.model_dump(mode="json", exclude_unset=True)
        if isinstance(dataset, Mapping):
            return dict(dataset)
        if isinstance(dataset, (str, Path)):
            return parse_source(dataset).model_dump(mode="json", exclude_unset=True)
        raise DataError(
            f"dataset: a data set cannot be made from {type(dataset).__name__}; give a name such "
            "as 'pendulum-mixed', a path, arrays by name, a data frame, a list of episodes, or the "
            "keys of the section 'dataset'"
        )

    def _spaces_of_data(self) -> Spaces:
        """The spaces of a task without an environment, which the config has in full from here on.

        Data that have to be read for them are kept for `learn`.
        """
        data = self._dataset
        spaces = data.spaces if data is not None else spaces_in_full(self.config)
        if spaces is None:
            self._read = data = read_data(self.config, None)
            spaces = data.spaces
        section = {**dict(self.config.dataset or {}), "spaces": spaces_section(spaces)}
        self.config = self.config.settled(dataset=DatasetConfig.parse(section, "dataset."))
        return spaces

    @property
    def data_in_memory(self) -> TransitionDataset | None:
        """Data that need not be read: given as such, or read for their spaces."""
        return self._read if self._dataset is None else self._dataset

    def _adopt(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self._policy = ActingPolicy(algorithm)

    def __repr__(self) -> str:
        config, learner = self.config, self.algorithm
        given = [repr(config.env_id), f"seed={config.seed}"]
        for name, field in type(config.params).model_fields.items():
            if getattr(config.params, name) != field.default:
                given.append(f"{name}={config.algo_kwargs[name]!r}")
        done = f"{int(learner.update_count):,} updates on {learner.update_count.device.type}"
        where = "" if self.run_dir is None else f", in {self.run_dir}"
        return f"<{type(self).__name__}({', '.join(given)}) after {done}{where}>"

    def __getstate__(self) -> dict[str, Any]:
        """For copies and worker processes: the learner as its class and its plain state.

        It is built anew at the other end, so that nothing in it still works for this agent. The
        run folder stays with the original: `learn` of a copy starts a run of its own.
        """
        kept = {k: value for k, value in vars(self).items() if k not in ("algorithm", "_policy")}
        kept["run_dir"] = kept["_read"] = None
        learner, learned = self.algorithm, io.BytesIO()
        # as bytes, because worker processes would share the memory of tensors with this one
        torch.save(learner.training_state(), learned)
        return {**kept, "_learner": (type(learner), learner.spaces, learned.getvalue())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        _, spaces, learned = state.pop("_learner")  # its class: its module registers the name
        vars(self).update(state)
        algorithm = build_algorithm(self.config, spaces)
        algorithm.load_training_state(
            torch.load(io.BytesIO(learned), map_location="cpu", weights_only=True)
        )
        self._adopt(algorithm)

    def _start(self) -> None:
        """Take over what the config wants to begin with."""
        self._beginning = begin(self.config, [self.algorithm], self.data_in_memory)

    _beginning: str | None = None
    """What was taken over, as a sentence."""

    # --- training -------------------------------------------------------------------------------

    def learn(
        self,
        total_updates: int | None = None,
        *,
        total_timesteps: int | None = None,
        more_updates: int | None = None,
        more_timesteps: int | None = None,
        callbacks: Callback | Sequence[Callback] = (),
        progress: bool = True,
        **options: Any,
    ) -> TrainResult:
        """Train to the end of the budget.

        Options are run-time keys such as `eval_interval`. Called again, it goes on in the
        same run folder. The budget is a total over all calls: `more_updates` and
        `more_timesteps` add to what is done so far instead, and a budget that is spent
        already is refused. Ctrl-C raises KeyboardInterrupt and SIGTERM ends the program,
        once the run is saved.
        """
        callbacks = checked_callbacks(callbacks)
        if "seeds" in options or self.config.seeds is not None:
            raise ConfigError(
                "seeds: an agent is one policy, so learn trains one seed; train several with "
                "rl_training.learn_seeds"
            )
        budget = {
            "total_updates": self._budget("updates", total_updates, more_updates),
            "total_epochs": options.pop("total_epochs", None),
            "total_timesteps": self._budget("timesteps", total_timesteps, more_timesteps),
        }
        if any(value is not None for value in budget.values()):
            options |= budget  # in the place of the config's, of whichever kind
        if self.run_dir is not None:
            return self._resume(self.run_dir, options, callbacks, progress, again=True)
        self._check_modules()
        config = with_options(self.config, options, self.config.algo)
        free = CHANGEABLE_ON_RESUME | {"output_dir", "engine", "threads"}
        changed = changes(self.config.to_dict(), config.to_dict(), free)
        if changed:
            raise ConfigError(
                f"learn cannot change what the agent was made with ({'; '.join(changed)}); "
                "give it when making the agent"
            )
        if self._loaded and config.env_id is not None:  # its spaces come from the checkpoint
            found = env_spaces(config.env_id, config.env_kwargs)
            self.algorithm.spaces.refuse_other(found, f"environment '{config.env_id}'")
        console = ProgressConsole() if progress else SilentConsole()
        with run_scope(config, self.algorithm.spaces):
            # everything that can be refused is refused before the folder exists
            make_sinks(config)
            loop = build_loop(config, self.algorithm, self.data_in_memory)
            self._read = None  # the loop has what it needs of them
            # kept, whatever a resume changes, and wherever it is made
            config = with_absolute_paths(config.settled(engine=loop.engine.mode))
            run_dir = create_run_folder(config)
            with removed_on_failure(run_dir):
                if self._dataset is not None and config.dataset is not None:
                    section = preparation(config.dataset, same_data=True)
                    section |= store_in(run_dir, self._dataset)
                    config = config.settled(dataset=DatasetConfig.parse(section, "dataset."))
                write_run_config(run_dir, config)
            self.config, self.run_dir = config, run_dir
            announce(console, run_dir, loop)
            if self._beginning is not None:
                console.say(self._beginning)
            with working_in(run_dir):
                return self._trainer(config, loop, run_dir, console, callbacks).run()

    def _trainer(
        self,
        config: TrainConfig,
        loop: Loop,
        run_dir: Path,
        console: Console,
        callbacks: Sequence[Callback],
    ) -> Trainer[TrainResult]:
        return one_agent(config, self.algorithm, loop, run_dir, console, callbacks, agent=self)

    def _budget(self, unit: str, total: int | None, more: int | None) -> int | None:
        """A budget in total, given as such or as what to add to what the run has done."""
        if more is None:
            return total
        if total is not None:
            raise ConfigError(f"learn: give total_{unit} or more_{unit}, not both")
        more = whole_number(more)
        if isinstance(more, bool) or not isinstance(more, int) or more < 1:
            raise ConfigError(f"more_{unit}: expected a whole number, at least 1, got {more!r}")
        if self.run_dir is None:
            return more
        config = TrainConfig.stored(read_run_config(self.run_dir))
        latest = CheckpointStore(
            self.run_dir / CHECKPOINT_FOLDER, config.keep_last, config.keep_best
        ).latest()
        key = "env_steps" if unit == "timesteps" else unit
        return more + (0 if latest is None else int(latest.manifest["progress"][key]))

    @classmethod
    def resume(
        cls,
        run_dir: str | Path,
        *,
        callbacks: Callback | Sequence[Callback] = (),
        progress: bool = True,
        trust: bool = False,
        **options: Any,
    ) -> Self:
        """Continue a run exactly where its newest checkpoint left it, to its budget.

        Options may change budgets, evaluation, checkpoint, logging and early stopping;
        anything else is refused. Modules that the run names are imported only from known
        packages, unless `trust`. The result is in `agent.result`.
        """
        run_dir, callbacks = Path(run_dir), checked_callbacks(callbacks)
        config = TrainConfig.stored(read_run_config(run_dir))
        if not trust:
            refuse_unknown_modules(config.to_dict(), f"run '{run_dir}'")
        if config.seeds is not None:
            raise ConfigError(
                f"'{run_dir}' is a run of several seeds; go on with rl_training.resume_seeds, or "
                f"with: {resume_command(run_dir)}"
            )
        agent: Self = _agent_for(cls, config, None)
        agent.result = agent._resume(run_dir, options, callbacks, progress)
        return agent

    result: TrainResult | None = None
    checkpoint: CheckpointInfo | None = None
    """What the agent was loaded from."""
    _source: str | None = None
    """The file whose word alone there is for the modules that the config names; None where the
    user gave the config, or trusts it."""

    def _check_modules(self) -> None:
        """Refuse to import what only a file names; called before environments are made."""
        if self._source is not None:
            refuse_unknown_modules(self.config.to_dict(), self._source)

    def _resume(
        self,
        run_dir: Path,
        options: Mapping[str, Any],
        callbacks: Sequence[Callback],
        progress: bool,
        again: bool = False,
    ) -> TrainResult:
        """Go on with a run; `again` refuses one with nothing left to do."""
        stored = TrainConfig.stored(read_run_config(run_dir))
        config = with_options(stored, options, stored.algo)
        refuse_changes(stored, config)
        console: Console = ProgressConsole() if progress else SilentConsole()
        if "graph" in config.engine and self.algorithm.update_count.device.type != "cuda":
            console.say("warning: the run began on a GPU; without one it goes on, not bit for bit")
            config = config.settled(engine="auto")
        config = with_paths_found(config, run_dir)
        with working_in(run_dir), run_scope(config, self.algorithm.spaces):
            make_sinks(config)
            loop = build_loop(config, self.algorithm)
            trainer = self._trainer(config, loop, run_dir, console, callbacks)
            (record,) = trainer.records
            check_checkpoints(record.store, config, self.algorithm.spaces, console)
            with refused_if_unfit(run_dir):
                trainer.restore()
            started_anew = trainer.started_anew
            if started_anew and (record.store.all() or record.store.unreadable()):
                raise CheckpointError(
                    f"run '{run_dir}': none of its checkpoints can be used; remove the folder "
                    f"'{CHECKPOINT_FOLDER}' in it to start the run again"
                )
            if again and record.is_over():
                loop.close()
                more = "more_updates" if loop.unit == "updates" else "more_timesteps"
                fix = f"train on with learn({more}=...), or with a larger total"
                if record.stop_reason:
                    fix = "train on with other early_stopping, such as early_stopping=None"
                raise ConfigError(
                    f"learn: the run in '{run_dir}' is complete after {loop.tick:,} {loop.unit} "
                    f"({record.stop_reason or f'its budget is {loop.total:,}'}); {fix}"
                )
            if started_anew:
                self._start()
            with reraise_os_error(run_dir / CONFIG_FILE):
                write_run_config(run_dir, config)
            self.config, self.run_dir = config, run_dir
            if note := version_note(record.last_saved):
                console.say(note)
            console.say(f"resuming {run_dir} at {loop.tick:,} of {loop.total:,} {loop.unit}")
            return trainer.run()

    # --- using ----------------------------------------------------------------------------------

    def evaluate(
        self,
        episodes: int | None = None,
        seed: int | None = None,
        *,
        deterministic: bool = True,
        env_id: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> EvalResult:
        """Whole episodes in environments of their own, of the likeliest actions or of drawn ones.

        `seed` decides the start states and the draws. By default they are held out: no
        evaluation during training, by which `best` is chosen, uses them, and they are the same
        for every run of the task. `env_id` and `env_kwargs` take the place of the run's; the
        spaces have to be the same, and with another `env_id` the run's arguments do not count.
        """
        c = self.config
        return evaluate_once(
            ActingPolicy(self.algorithm, deterministic),
            self._task(env_id, env_kwargs),
            self.algorithm.spaces,
            episodes=c.eval_episodes if episodes is None else whole_number(episodes),
            max_steps=c.eval_max_steps,
            seed=seed,
        )

    def _task(
        self, env_id: str | None, env_kwargs: Mapping[str, Any] | None
    ) -> tuple[str, dict[str, Any]]:
        """The run's environment, or another; another one has no arguments but those given."""
        c = self.config
        if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
            raise ConfigError(f"env_kwargs: expected keyword arguments by name, got {env_kwargs!r}")
        if env_id is None:
            self._check_modules()  # another environment is the caller's own word
        own = c.env_kwargs if env_id is None else {}
        return env_id or c.environment, dict(own if env_kwargs is None else env_kwargs)

    def collect(
        self,
        episodes: int | None = None,
        steps: int | None = None,
        *,
        noise: float = 0.0,
        epsilon: float = 0.0,
        deterministic: bool = True,
        seed: int = 0,
        on_step: StepWatcher | None = None,
    ) -> TransitionDataset:
        """Transitions of whole `episodes`, or of exactly `steps` steps, in the task's environment.

        Box actions get Gaussian `noise` of that standard deviation in [-1, 1] and are clipped; with
        probability `epsilon` an action is uniformly random instead. Episode i is decided by
        (seed, i) alone. `on_step` gets each reward, and whether the episode ended with it.
        """
        c = self.config
        behaviour = Behaviour(deterministic, noise, epsilon)
        behaviour.check(self.algorithm)
        self._check_modules()
        return collect(
            lambda obs, mode, state: self.predict(obs, state, deterministic=mode),
            behaviour,
            self.algorithm,
            c.environment,
            c.env_kwargs,
            name=c.algo,
            episodes=episodes,
            steps=steps,
            max_steps=c.eval_max_steps,
            seed=seed,
            on_step=on_step,
        )

    def record_video(
        self,
        path: str | Path,
        *,
        seed: int | None = None,
        overwrite: bool = False,
        deterministic: bool = True,
        env_id: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> EvalResult:
        """Write a video, .mp4 or .gif, of the first episode of `evaluate`; what it earned.

        With drawn actions it begins like that episode, but is another one.
        """
        c = self.config
        return record_episode(
            ActingPolicy(self.algorithm, deterministic),
            *self._task(env_id, env_kwargs),
            self.algorithm.spaces,
            HELD_OUT_STATES if seed is None else seed,
            Path(path),
            max_steps=c.eval_max_steps,
            overwrite=overwrite,
        )

    @overload
    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_mask: Any = None,
        with_support: Literal[False] = False,
    ) -> tuple[Array, Any]: ...
    @overload
    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_mask: Any = None,
        *,
        with_support: Literal[True],
    ) -> tuple[Array, Any, Array]: ...
    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_mask: Any = None,
        with_support: bool = False,
    ) -> tuple[Array, Any] | tuple[Array, Any, Array]:
        """Action for one observation, or actions for a batch, in the environment's units.

        Observations of several parts are given by name: a mapping, as the environment has it, or
        a data frame with the columns of the training data. Actions with names are given by name.

        Signature and return value are those of Stable-Baselines3. A recurrent policy (Dreamer)
        returns what it carries as the state: hand it to the next call, with `episode_start`
        true for the observations that begin an episode; without a state all of them do. Other
        policies return `state` as they got it. Where the task has action masks, observations end
        with them, or the masks are given apart, as `action_mask`. `with_support` adds what
        `support` says of the actions.
        """
        if action_mask is not None:
            observation = with_mask(observation, action_mask, self.algorithm.spaces)
        obs, alone = insight.observation_rows(self.algorithm, observation, "predict")
        if not deterministic:
            refuse_beside_learning()
        recurrent = self.algorithm.recurrent
        policy = self._policy if deterministic else ActingPolicy(self.algorithm, False)
        carry = None
        if recurrent:
            carry = state_before(self.algorithm, state, episode_start, len(obs))
        actions, carry = policy(obs, carry)
        taken = actions[0] if alone else actions
        actions = insight.user_actions(self.algorithm, actions)
        chosen, kept = (actions[0] if alone else actions), carry if recurrent else state
        if with_support:
            return chosen, kept, self.support(observation, taken)
        return chosen, kept

    def action_probabilities(self, observation: Any) -> Array | list[Array]:
        """The policy's probability of every Discrete action; `predict` takes the likeliest. One
        array for each part of MultiDiscrete actions."""
        return insight.action_probabilities(self.algorithm, observation)

    def log_prob(self, observation: Any, action: Any) -> Array:
        """Log-probability, or log-density in the environment's units, of given actions."""
        return insight.log_prob(self.algorithm, observation, action)

    def value(self, observation: Any) -> Array:
        """Expected discounted return from an observation, in units of the processed rewards: by
        the algorithm's own estimate of V, or else Q of the policy's likeliest action."""
        return insight.value(self.algorithm, observation)

    def q_values(self, observation: Any, action: Any | None = None) -> Array:
        """Expected discounted return of given actions, or of every Discrete one; the smallest
        among the critics, in units of the processed rewards."""
        return insight.q_values(self.algorithm, observation, action)

    def explain(self, observation: Any) -> dict[str, Any]:
        """The action that `predict` gives, under "action", with everything the algorithm can say
        about it: those of the four questions above that it has an answer to."""
        action, _ = self.predict(observation)
        known = insight.everything_known(self.algorithm, observation, action)
        return {"action": action, **known}

    # --- without a simulator --------------------------------------------------------------------

    def estimate(
        self,
        data: worth.Data,
        *,
        behaviour: Any = None,
        progress: bool = True,
        **options: Any,
    ) -> worth.Evaluation:
        """What the policy is worth on a log that it was not trained on, with intervals.

        `behaviour` are probabilities of the logged actions, (N,), or of all Discrete actions,
        (N, actions), or the name of such an array in an .npz file; else they are estimated.
        Options are those of `ope.options.Options`: estimators, gamma, horizon, stochastic,
        value_range, replicates, updates and more. See docs/off_policy_evaluation.md.
        """
        return worth.estimate(self, data, behaviour, progress, **options)

    _support: worth.Support | None = None

    def fit_support(self, data: worth.Data) -> None:
        """Learn from a log which actions it supports, for `support` and `abstaining`."""
        self._support = worth.support_of(data, self)

    def support(self, observation: Any, action: Any) -> Array:
        """How usual actions are in the log that `fit_support` was given, as quantiles.

        0.05 means that of the log's own actions one in twenty is as unusual.
        """
        rows, alone = insight.observation_rows(self.algorithm, observation, "support")
        inner = insight.inner_actions(self.algorithm, action, len(rows), "support").cpu().numpy()
        found = self._known_support("support").quantile(rows, inner)
        return np.asarray(found[0] if alone else found)

    def _known_support(self, asked: str) -> worth.Support:
        if self._support is None:
            raise ConfigError(f"{asked}: first give fit_support(data) the log to compare with")
        return self._support

    def abstaining(self, below: float = 0.05) -> AbstainingPolicy:
        """The policy with the log's likeliest action where its own has less support than `below`.

        `predict` of it is this agent's; `fallbacks` and `decisions` count.
        """
        return AbstainingPolicy(self, self._known_support("abstaining"), below)

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

    def export(
        self,
        path: str | Path,
        *,
        stochastic: bool = False,
        further: Sequence[str] = (),
        weights: str = "float32",
        program: bool = False,
        episodes: int = 20,
        overwrite: bool = False,
        intended_use: str = "",
        limits: str = "",
        strict: bool = False,
        compare: Sequence[str | Path] = (),
        progress: bool = False,
    ) -> ExportResult:
        """Write the policy as a folder that acts without PyTorch and this package.

        The export is compared with `predict` and refused where it acts otherwise. `further`
        names outputs beside the action: value, q, density, support. With `stochastic` actions
        are drawn by noise that is an input. Intended use and limits are for the card.
        """
        from rl_training.api.export import export_agent

        return export_agent(
            self,
            Path(path),
            compare=[Path(run) for run in compare],
            progress=progress,
            stochastic=stochastic,
            further=tuple(further),
            weights=weights,
            program=program,
            episodes=episodes,
            overwrite=overwrite,
            intended_use=intended_use,
            limits=limits,
            strict=strict,
        )

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        checkpoint: str = "latest",
        device: str = "auto",
        trust: bool = False,
    ) -> Self:
        """An agent from a checkpoint folder, or from a run folder's `latest` or `best` one.

        Nothing that the checkpoint names is imported, except a factory of its networks, and that
        only of known packages, of modules that are imported already, or with `trust`. So are
        environments made later, and runs of the agent go to the default `output_dir`.
        """
        info, parts = read_checkpoint(find_checkpoint(Path(path), checkpoint), ("algorithm",))
        with refused_if_unfit(info.path):
            here = {"device": device, "output_dir": TrainConfig.model_fields["output_dir"].default}
            config = stored_config(info, **here)
            source = f"checkpoint '{info.path}'"
            if not trust:
                refuse_unknown_modules(config.to_dict(), source, only_networks=True)
            agent: Self = _agent_for(cls, config, info)
            agent.algorithm.load_training_state(Stored(parts)["algorithm"])
        weight = agent.algorithm.nonfinite_weight()
        if weight:
            raise CheckpointError(
                f"checkpoint '{info.path}': the weight '{weight}' is NaN or infinite; use an "
                "earlier checkpoint"
            )
        agent._source = None if trust else source
        agent.checkpoint = info
        return agent


class AbstainingPolicy:
    """See `ManagedAlgorithm.abstaining`."""

    def __init__(
        self, agent: ManagedAlgorithm, support: worth.Support, below: float = 0.05
    ) -> None:
        self.agent = agent
        spaces = agent.algorithm.spaces
        self._choose = worth.Abstaining(
            lambda obs: np.asarray(spaces.from_env(agent._policy(obs)[0])), support, below
        )

    @property
    def decisions(self) -> int:
        """Actions that were asked for."""
        return self._choose.decisions

    @property
    def fallbacks(self) -> int:
        """Actions of the log instead of the policy's own."""
        return self._choose.fallbacks

    def predict(self, observation: Any, state: Any = None) -> tuple[Array, Any]:
        """As `ManagedAlgorithm.predict`, without chance."""
        rows, alone = insight.observation_rows(self.agent.algorithm, observation, "predict")
        taken = env_actions(self.agent.algorithm, self._choose(rows))
        actions = insight.user_actions(self.agent.algorithm, taken)
        return (actions[0] if alone else actions), state


def load(
    path: str | Path, *, checkpoint: str = "latest", device: str = "auto", trust: bool = False
) -> ManagedAlgorithm:
    """An agent of whatever algorithm the checkpoint or run folder holds.

    `trust` lets it import modules of unknown packages, for networks of the user's own and for
    its environment, when it needs one.
    """
    return ManagedAlgorithm.load(path, checkpoint=checkpoint, device=device, trust=trust)


def begin(
    config: TrainConfig, agents: Sequence[Algorithm], dataset: TransitionDataset | None
) -> str | None:
    """Let untrained agents start from the policy in `init_from`; what they took, as a sentence.

    `dataset` is the run's data where they are in memory.
    """
    if config.init_from is None:
        return None
    source = _initial(config.init_from, str(agents[0].update_count.device))
    return start_policy(config, agents, source.config, source.algorithm, dataset)


def _initial(path: str, device: str) -> ManagedAlgorithm:
    try:
        return load(path, device=device)
    except CheckpointError as error:
        raise ConfigError(f"init_from: {error}") from None


def _with_evaluated_policy(config: TrainConfig) -> TrainConfig:
    """The config of an algorithm that evaluates another run's policy, which it then describes."""
    if config.init_from is None or "policy" not in type(config.params).model_fields:
        return config
    if getattr(config.params, "policy", None) is not None:
        return config
    source = _initial(config.init_from, "cpu")
    policy = evaluated_policy(source.config, source.algorithm).model_dump(mode="json")
    knobs = {**config.to_dict()["algo_kwargs"], "policy": policy}
    return config.replace(algo_kwargs=knobs)


def _agent_for(
    cls: type[ManagedAlgorithm], config: TrainConfig, info: CheckpointInfo | None
) -> Any:
    """An untrained agent of the config's algorithm, as `cls` or the class that fits.

    With a checkpoint's manifest the spaces come from there, and no environment is made.
    """
    from rl_training.api.algorithms import managed_class

    if cls.algo and cls.algo != config.algo:
        raise CheckpointError(
            f"{cls.__name__} cannot load a checkpoint of '{config.algo}'; "
            "use rl_training.load, which finds the right class"
        )
    chosen = cls if cls.algo else managed_class(config.algo)
    agent = chosen.__new__(chosen)
    agent.run_dir, agent.config = None, config
    if info is None:
        spaces = task_spaces(config)
    else:
        spaces = Spaces.from_dict(Stored(info.manifest)["spaces"])
    agent._loaded = info is not None
    try:
        agent._adopt(build_algorithm(config, spaces))
    except (RuntimeError, MemoryError) as error:
        if info is None or (isinstance(error, RuntimeError) and "allocate" not in str(error)):
            raise
        raise CheckpointError(
            f"checkpoint '{info.path}' describes networks that do not fit into memory"
        ) from None
    return agent
