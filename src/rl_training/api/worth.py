"""The value of policies estimated from a log: estimates, selection among runs, records."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rl_training.api.support import find_checkpoint
from rl_training.data.beside import read_beside
from rl_training.data.dataset import TransitionDataset
from rl_training.data.episodes import chosen_episodes
from rl_training.data.sources import (
    READING,
    holds_frame,
    in_memory,
    load_transition_dataset,
    parse_source,
)
from rl_training.data.table_files import is_frame
from rl_training.experiment.config import TABLE_KINDS, DatasetConfig
from rl_training.experiment.console import Console, ProgressConsole
from rl_training.experiment.errors import ConfigError, RLTrainingError, did_you_mean
from rl_training.experiment.tracking import CHECKPOINT_FOLDER, OPE_FILE, write_json
from rl_training.ope.behaviour import recorded_behaviour
from rl_training.ope.evaluate import Log, evaluate, prepare_log
from rl_training.ope.found import Evaluation
from rl_training.ope.options import Options
from rl_training.ope.support import Abstaining, Support, fit_support

if TYPE_CHECKING:
    from rl_training.api.acting import Acting

__all__ = ["Abstaining", "Evaluation", "Support", "estimate", "record", "select", "support_of"]

Data = TransitionDataset | DatasetConfig | Mapping[str, Any] | str | Path
"""Whatever `load_transition_dataset` takes."""


def _options(agent: Acting, given: Mapping[str, Any]) -> Options:
    known = {one.name for one in fields(Options)}
    for key in given:
        if key not in known:
            raise ConfigError(
                f"{key}: unknown option of an estimate{did_you_mean(key, known)}; known are "
                f"{', '.join(sorted(known))}"
            )
    values = dict(given)
    if isinstance(values.get("estimators"), str):
        values["estimators"] = values["estimators"].replace(" ", "").split(",")
    for key in ("estimators", "value_range", "hidden_sizes"):
        if isinstance(values.get(key), Iterable):
            values[key] = tuple(values[key])
    gamma = agent.algorithm.gamma
    own = {"gamma": 0.99 if gamma == 1.0 else gamma, "device": agent.config.device}
    device = "cuda" if agent.algorithm.update_count.is_cuda else "cpu"
    options = replace(Options(), **{**own, "device": device, **values})
    options.check()
    return options


def _source(agent: Acting, data: Data) -> Any:
    """The data; of a table with the keys that the run's own was read with, where none are given."""
    if is_frame(data):
        section: dict[str, Any] = {"frame": data}
    elif holds_frame(data):
        section = dict(data)
    elif in_memory(data):
        return data
    else:
        config = parse_source(cast(Any, data))
        section = config.model_dump(mode="json", exclude_unset=True)
        if config.kind not in TABLE_KINDS:
            return section
    own = agent.config.dataset
    if own is None:
        return section
    known = own.model_dump(mode="json", include={"spaces"}, exclude_unset=True)
    table = own if own.kind in TABLE_KINDS else own.read_as
    if table is not None:
        known |= table.model_dump(mode="json", include=set(READING), exclude_unset=True)
    return {**known, **section}


def _read(agent: Acting, source: Any) -> TransitionDataset:
    if agent.algorithm.recurrent or agent.algorithm.spaces.is_image:
        raise ConfigError(
            f"estimate: {agent.algorithm.name()} looks at whole episodes or at images, and logs "
            "hold single vectors; evaluate it in its environment"
        )
    if agent.algorithm.spaces.action_choices:
        raise ConfigError(
            f"estimate: the policy has {agent.algorithm.spaces.describe()}, and estimators take "
            "Box or Discrete ones; use held-out episodes (dataset.split) instead"
        )
    return load_transition_dataset(source, spaces=agent.algorithm.spaces).in_memory()


def _log(
    agent: Acting, data: Data, behaviour: NDArray[Any] | str | None, options: Options, shown: Any
) -> Log:
    """The log, with its own probabilities or with estimated ones."""
    source = _source(agent, data)
    dataset, known = _read(agent, source), None
    if behaviour is not None:
        named = isinstance(behaviour, str)
        given = read_beside(source, str(behaviour)) if named else np.asarray(behaviour)
        known = recorded_behaviour(dataset, given)
    fit = shown.fit("behaviour")
    return prepare_log(dataset, known, seed=options.seed, device=options.device, on_update=fit)


class _Progress:
    """Shows several fits, one after the other."""

    def __init__(self, shown: bool) -> None:
        self.console = ProgressConsole() if shown else Console()
        self.title = ""

    def fit(self, title: str) -> Any:
        def show(done: int, total: int) -> None:
            if self.title != title:
                self.stop()
                self.title = title
                self.console.start(title, total, 0, "epochs" if title == "model" else "updates")
            self.console.advance(done)

        return show

    def stop(self) -> None:
        if self.title:
            self.console.stop()
            self.title = ""


def estimate(
    agent: Acting,
    data: Data,
    behaviour: NDArray[Any] | str | None = None,
    progress: bool = True,
    log: Log | None = None,
    **options: Any,
) -> Evaluation:
    """See `ManagedAlgorithm.estimate`; a `log` that is ready takes the place of `data`."""
    chosen = _options(agent, options)
    shown = _Progress(progress)
    try:
        if log is None:
            log = _log(agent, data, behaviour, chosen, shown)
        found = evaluate(agent.config, agent.algorithm, log, chosen, shown.fit)
    finally:
        shown.stop()
    overlap = _trained_on(agent, log.dataset)
    notes, extra = found.notes, {"rows_trained_on": overlap}
    if overlap:
        notes = (
            f"{overlap:.0%} of the rows are ones that the policy was trained on, so the estimate "
            "is too good; judge it on episodes that no run has seen",
            *notes,
        )
    elif overlap is None:
        notes = ("whether the policy was trained on these data is not known", *notes)
    return replace(found, notes=notes, extra=extra)


def _trained_on(agent: Acting, dataset: TransitionDataset) -> float | None:
    """Fraction of the rows that the run learned from; None where that cannot be known."""
    config = agent.config
    if config.dataset is None:
        return 0.0
    held: TransitionDataset | None = getattr(agent, "_dataset", None)  # given as arrays
    try:
        if held is not None:
            return trained_share(chosen_episodes(held, config.dataset).in_memory(), dataset)
        learned = load_transition_dataset(
            config.dataset, env_id=config.env_id, spaces=dataset.spaces, needs_rewards=False
        )
    except (RLTrainingError, OSError):
        return None
    return trained_share(learned.in_memory(), dataset)


MOSTLY = 0.5
"""Share of rows, or of episodes, of one log that coincide, above which that says nothing."""


def trained_share(learned: TransitionDataset, asked: TransitionDataset) -> float | None:
    """Fraction of the rows of `asked` that `learned` holds, too.

    Where rows of different episodes coincide anyway, because there are few distinct ones, whole
    episodes are compared. As many as coincide among those of `learned` themselves are chance and
    do not count; None if most of them do.
    """
    for keys_of in (_row_keys, _episode_keys):
        own = keys_of(learned)
        holders = Counter(key for key, _ in {(key, episode) for key, episode, _ in own})
        chance = sum(size for key, _, size in own if holders[key] > 1) / len(learned)
        if chance > MOSTLY:
            continue
        same = sum(size for key, _, size in keys_of(asked) if key in holders) / len(asked)
        noise = 3.0 * math.sqrt(chance * (1.0 - chance) / asked.num_episodes)
        if same <= chance + min(noise, 0.5 * (1.0 - chance)):
            return 0.0
        return (same - chance) / (1.0 - chance)
    return None


Keyed = list[tuple[bytes, int, int]]
"""What is compared, the episode that it is in, and its number of rows."""


def _row_keys(dataset: TransitionDataset) -> Keyed:
    actions = np.asarray(dataset.actions, np.float32).reshape(len(dataset), -1)
    wide = np.ascontiguousarray(np.concatenate([dataset.observations, actions], 1))
    episodes = np.repeat(np.arange(dataset.num_episodes), dataset.episode_lengths()).tolist()
    return [(row.tobytes(), episode, 1) for row, episode in zip(wide, episodes, strict=True)]


def _episode_keys(dataset: TransitionDataset) -> Keyed:
    rows = [key for key, _, _ in _row_keys(dataset)]
    bounds = zip(dataset.episode_starts.tolist(), dataset.episode_lengths().tolist(), strict=True)
    return [
        (b"".join(rows[first : first + count]), episode, count)
        for episode, (first, count) in enumerate(bounds)
    ]


# --- what is left behind ------------------------------------------------------------------------


def run_of(path: Path) -> Path:
    """The run folder of a run or of one of its checkpoints; any other folder itself."""
    return path.parent.parent if path.parent.name == CHECKPOINT_FOLDER else path


def record(path: Path, found: Evaluation) -> int:
    """Add an evaluation to ope.json beside result.json; how often these data were looked at."""
    file = run_of(path) / OPE_FILE
    entries: list[Any] = []
    if file.is_file():
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
            entries = stored["evaluations"] if isinstance(stored["evaluations"], list) else []
        except (OSError, ValueError, KeyError, TypeError):
            entries = []  # damaged: written anew
    entry = {"checkpoint": path.name, **found.to_dict()}
    entries.append(entry)
    looks = [one for one in entries if isinstance(one, dict) and one.get("data") == found.data]
    write_json(file, {"evaluations": entries})
    return len(looks)


# --- selection ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Candidate:
    """A run or checkpoint with its estimated value."""

    path: Path
    evaluation: Evaluation
    rank: int


@dataclass(frozen=True, eq=False)
class Selection:
    """Candidates, the best first."""

    candidates: tuple[Candidate, ...]
    looks: int
    """How often the data have been looked at for these runs, this time included."""

    @property
    def best(self) -> Candidate:
        """The best candidate that the data support; the first of all if they support none."""
        supported = [one for one in self.candidates if one.evaluation.supported]
        return (supported or list(self.candidates))[0]

    @property
    def caution(self) -> str:
        """A warning about selecting by these data."""
        return (
            f"these data have now been looked at {self.looks:,} times for these runs: the chosen "
            "one's estimate is too good by what choosing gained, so quote one from other episodes"
        )


def select(
    runs: Sequence[str | Path],
    data: Data,
    *,
    behaviour: NDArray[Any] | str | None = None,
    checkpoint: str = "latest",
    progress: bool = True,
    **options: Any,
) -> Selection:
    """Rank runs or checkpoints by what their policies are worth on data that trained none.

    Each run folder's ope.json gets its estimate. Options are those of `estimate`.
    """
    from rl_training.api.managed import load

    if isinstance(runs, (str, Path)) or len(runs) < 2:
        raise ConfigError("runs: give at least two runs or checkpoints to choose among")
    paths = [find_checkpoint(Path(one), checkpoint) for one in runs]
    for i, path in enumerate(paths):
        if path in paths[:i]:
            raise ConfigError(f"runs: '{path}' is given twice; give each candidate once")
    agents = [load(path) for path in paths]
    first = agents[0]
    for path, agent in zip(paths[1:], agents[1:], strict=True):
        agent.algorithm.spaces.refuse_other(first.algorithm.spaces, f"'{paths[0]}'", f"'{path}'")
    options.setdefault("gamma", _options(first, options).gamma)  # one for all
    shown = _Progress(progress)
    try:
        log = _log(first, data, behaviour, _options(first, options), shown)
    finally:
        shown.stop()
    found = [estimate(agent, data, None, progress, log, **options) for agent in agents]
    order = sorted(range(len(found)), key=lambda i: -found[i].value.value)
    # checkpoints of one run share its ope.json, whose last count holds the others
    by_run = {run_of(path): record(path, one) for path, one in zip(paths, found, strict=True)}
    looks = sum(by_run.values())
    ranked = [Candidate(paths[i], found[i], rank) for rank, i in enumerate(order, 1)]
    return Selection(tuple(ranked), looks)


def support_of(data: Data, agent: Acting) -> Support:
    """The support of a log, for the agent's spaces."""
    return fit_support(_read(agent, _source(agent, data)))
