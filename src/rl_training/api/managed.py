"""One agent for every algorithm: learn, evaluate, predict, save, load, resume."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from rl_training.algorithms.fqe import evaluated_policy
from rl_training.api.initial import initial_agent
from rl_training.api.options import refuse_misplaced, with_options
from rl_training.api.run_folders import PREPARATION, preparation
from rl_training.api.support import find_checkpoint, refused_if_unfit, stored_config
from rl_training.api.training import Training
from rl_training.data.inference import spaces_section
from rl_training.data.sources import (
    FRAME,
    READING,
    holds_frame,
    in_memory,
    load_transition_dataset,
    parse_source,
)
from rl_training.envs.make import env_spaces
from rl_training.envs.named import Environment, name_of
from rl_training.envs.spaces import Spaces
from rl_training.experiment.checkpoint import (
    CheckpointInfo,
    read_checkpoint,
    write_checkpoint,
)
from rl_training.experiment.config import (
    DatasetConfig,
    SpacesConfig,
    TrainConfig,
    load_config,
    parsed_wrappers,
    with_wrappers,
)
from rl_training.experiment.errors import (
    CheckpointError,
    ConfigError,
    DataError,
)
from rl_training.experiment.registry import algorithm_class
from rl_training.experiment.state import Stored
from rl_training.experiment.storage import local_run
from rl_training.experiment.tracking import (
    DATASET_FILE,
    read_run_config,
    resume_command,
)
from rl_training.experiment.trust import WRAPPERS, refuse_unknown_modules
from rl_training.runtime.build import (
    build_algorithm,
    spaces_in_full,
    task_spaces,
)
from rl_training.runtime.callbacks import Callback, checked_callbacks
from rl_training.runtime.loops.data import read_data
from rl_training.runtime.saving import checkpoint_header

if TYPE_CHECKING:
    from rl_training.export.write import ExportResult


class ManagedAlgorithm(Training):
    """A policy with everything around it.

    Give an environment (its id, its class, a function that makes it at the top of a module, or an
    instance that Gymnasium made) and keyword arguments (keys of the configuration or knobs of
    the algorithm), or a `TrainConfig`. Algorithms that learn from data alone need no
    environment but a `dataset`: a path, the keys of the section `dataset`, arrays by name, a data
    frame, a list of episodes or a `TransitionDataset`; `spaces`, the section `dataset.spaces`,
    says what its data cannot show.
    """

    algo: ClassVar[str] = ""

    def __init__(
        self,
        env_or_config: Environment | TrainConfig | None = None,
        *misplaced: Any,
        dataset: Any = None,
        spaces: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        refuse_misplaced(type(self).__name__, env_or_config, misplaced)
        if not isinstance(env_or_config, (str, TrainConfig, type(None))):
            env_or_config, own = name_of(env_or_config)
            around = own.pop(WRAPPERS, [])
            options["env_kwargs"] = {**own, **options.get("env_kwargs", {})}
            if around:
                options[WRAPPERS] = [*around, *options.get(WRAPPERS, ())]
        base: TrainConfig | dict[str, Any]
        if isinstance(env_or_config, TrainConfig):
            base, values = env_or_config, dict(env_or_config)
        else:
            base = {"algo": self.algo or options.pop("algo", ""), "env_id": env_or_config}
            values = base
        env_id = options.get("env_id", values["env_id"])
        env_kwargs = options.get("env_kwargs", values.get("env_kwargs"))
        if not isinstance(env_kwargs, Mapping):
            env_kwargs = None  # refused with the rest of the configuration, below
        wrappers = parsed_wrappers(options.get(WRAPPERS, values.get(WRAPPERS, ())))
        making = with_wrappers(env_kwargs or {}, wrappers)
        made_for = None if env_id is None else env_spaces(str(env_id), making)
        if dataset is not None:
            algo = str(options.get("algo", values["algo"]))
            needs_rewards = algorithm_class(algo).needs_rewards
            said = SpacesConfig.parse(spaces, prefix="spaces.") if spaces is not None else None
            given = made_for or said  # without either, what the data section says counts
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
        """Make an agent from a packaged config such as "awr/pendulum" or a YAML file."""
        return cls(load_config(source), **options)

    def _take_dataset(
        self,
        dataset: Any,
        env_id: str | None,
        spaces: Spaces | SpacesConfig | None,
        needs_rewards: bool,
    ) -> dict[str, Any]:
        """The configuration of the data; data in memory are kept until the run folder exists."""
        if in_memory(dataset):
            kept = {}
            if holds_frame(dataset):  # what is done to the data is the run's, not the file's
                kept = {key: dataset[key] for key in PREPARATION if key in dataset}
                dataset = {key: value for key, value in dataset.items() if key not in kept}
                kept["read_as"] = {**FRAME, **{k: dataset[k] for k in READING if k in dataset}}
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
        run_dir, callbacks = local_run(run_dir), checked_callbacks(callbacks)
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


def load(
    path: str | Path, *, checkpoint: str = "latest", device: str = "auto", trust: bool = False
) -> ManagedAlgorithm:
    """Load an agent of any algorithm from a checkpoint or run folder.

    `trust` lets it import modules of unknown packages, for networks of the user's own and for
    its environment, when it needs one.
    """
    return ManagedAlgorithm.load(path, checkpoint=checkpoint, device=device, trust=trust)


def _with_evaluated_policy(config: TrainConfig) -> TrainConfig:
    """The config of an algorithm that evaluates another run's policy, which it then describes."""
    if config.init_from is None or "policy" not in type(config.params).model_fields:
        return config
    if getattr(config.params, "policy", None) is not None:
        return config
    source = initial_agent(config.init_from, "cpu")
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
            f"checkpoint '{info.path}' describes networks that do not fit into memory; load it on "
            "a machine with more"
        ) from None
    return agent
