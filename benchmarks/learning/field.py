"""Long runs at the scale at which the field compares: each is cut into pieces by exact resume.

    python -m benchmarks.run field_atari --minutes 9 --only 'field_atari/dqn-pong*'

starts a run or goes on with it, and writes its result with the last piece. What is not finished
lies in `benchmarks/unfinished/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import gates
from benchmarks.figures import Other
from benchmarks.gates import Verdict
from benchmarks.jobs import Job, Records
from benchmarks.learning.shared import (
    EVAL_SEED,
    TRAIN,
    details,
    figure,
    on_gpu,
    peer_inputs,
    returns,
)
from benchmarks.markdown import SEED_HEADER, mean, number, seed_columns, table
from benchmarks.peers.environment import SB3, SB3_GAMES, SB3_VERSION, PeerEnvironment
from benchmarks.process import ROOT
from benchmarks.suites import Options, Section, Suite
from rl_training.envs.reference_scores import game_reference

PEER = "benchmarks.peers.sb3_field_job"
UNFINISHED = ROOT / "benchmarks" / "unfinished"
LATE = (
    "*Last quarter* is the mean of the evaluations in the last quarter of the steps, which depends "
    "less than the last policy on when a run ends."
)
HUMAN = "*Human, %* is the mean in percent of the way from random play to a human tester's score."


@dataclass(frozen=True)
class Published:
    """A score that others report."""

    score: float
    origin: str
    """In words, such as version and seeds."""
    same_budget: bool = True
    """Whether it is a score after as many steps, which curves can be compared with."""
    in_training: bool = False
    """Whether it is a score of games while learning."""
    curve: Other | None = None
    """Scores over environment steps, which need not be those of the score's origin."""

    def __str__(self) -> str:
        when = ", in training" if self.in_training else ""
        return f"{self.score:,g} ({self.origin}{when})"


@dataclass(frozen=True)
class Run:
    """One long run, for some seeds."""

    job: str
    title: str
    task: str
    config: str
    """Packaged, of which `changes` and `knobs` change keys and knobs."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    knobs: Mapping[str, Any] = field(default_factory=dict)
    least: float | None = None
    least_in_training: float | None = None
    """Of the score of the last games of the training, where others report theirs."""
    most: float | None = None
    """Of a twin, which must not learn."""
    published: Published | None = None
    prior: Mapping[str, Any] | None = None
    """Data that are made first; see `benchmarks.learning.prior`."""
    share: float | None = None
    """Of the mean return of the prior data, to be reached."""
    sabotage: str | None = None
    drawn: bool = False
    """Whether the last policy draws its actions."""
    peer: PeerEnvironment | None = None
    """Where another library is, in whose environments it runs."""


@dataclass(frozen=True)
class Rival:
    """A run that has to be at least as good as another one."""

    job: str
    than: str
    at: int | None = None
    """Environment steps at which the other one's curve counts; None: its last policy."""
    times: float = 1.0
    in_training: bool = False
    """Whether the scores of the last games of the training are compared."""


@dataclass(frozen=True)
class Beside:
    """Another library's run, from the data and start states of one of ours."""

    job: str
    run: str
    """Our job."""
    kind: str
    """In words, for the gate; of several of a kind the best counts."""
    title: str
    module: str
    peer: PeerEnvironment
    settings: Mapping[str, Any]
    """What the module makes of it; part of the spec."""
    quick: Mapping[str, Any]
    """Settings that differ in a quick run."""
    steps: int | None = None
    """Environment steps, where they are fewer than ours: what counts of ours is its curve there."""


@dataclass(frozen=True)
class Field:
    """A suite of long runs."""

    name: str
    title: str
    text: str
    """What runs, how it is scored, and what the gates ask."""
    runs: Sequence[Run]
    seeds: int
    episodes: int
    rivals: Sequence[Rival] = ()
    peers: Sequence[str] = ()
    """Jobs that Stable-Baselines3 runs, too, which ours have to be as good as."""
    besides: Sequence[Beside] = ()
    """Runs of other libraries; ours has to be as good as the best of a kind."""
    training: bool = False
    """Whether the tasks are Atari games, whose scores during training are shown, in a column and
    as curves, and compared with the peer's; human-normalised scores are shown, too."""
    headline: str = ""
    """Begins the sentence that sums the suite up: what is compared with what."""
    notes: Sequence[str] = ()
    """Settings, origins of published figures, what was tried: a list below the table."""

    def suite(self) -> Suite:
        return Suite(self.name, self.title, self.jobs, self.report, long=True)

    def jobs(self, options: Options) -> list[Job]:
        seeds = options.seeds[: self.seeds]
        jobs = [self._job(options, run, seed) for run in self.runs for seed in seeds]
        others = [
            self._beside(options, beside, job)
            for beside in self.besides
            for job in jobs
            if job.name == beside.run
        ]
        peers = [self._peer(options, job) for job in jobs if job.name in self.peers]
        return [*jobs, *peers, *others]

    def _beside(self, options: Options, beside: Beside, job: Job) -> Job:
        """In one piece, on the CPU."""
        config, prior = job.spec["config"], job.spec.get("prior")
        settings = {**beside.settings, **(beside.quick if options.quick else {})}
        spec = {"env_id": config["env_id"], "settings": settings, "prior": prior}
        steps = config["total_timesteps"] if options.quick else beside.steps
        spec["total_timesteps"] = steps or config["total_timesteps"]
        spec["eval_interval"] = config["eval_interval"]
        inputs = peer_inputs(options, config["eval_episodes"])
        inputs["reset_seeds"] = inputs["reset_seeds"][: job.spec["final_episodes"]]
        return replace(
            job,
            name=beside.job,
            module=beside.module,
            spec=spec,
            inputs=inputs,
            peer=beside.peer,
            gpu=_has_to_learn(prior),
        )

    def _peer(self, options: Options, job: Job) -> Job:
        """The same run of Stable-Baselines3, in one piece."""
        own = job.spec["config"]
        keys = ["algo", "env_id", "env_kwargs", "total_timesteps", "eval_interval"]
        config = {key: own[key] for key in keys if key in own}
        starts = peer_inputs(options, job.spec["config"]["eval_episodes"])
        starts["reset_seeds"] = starts["reset_seeds"][: self.episodes]
        return replace(
            job,
            name=peer_of(job.name),
            module=PEER,
            spec={"config": config, "stable-baselines3": SB3_VERSION},
            inputs=starts,
            peer=SB3_GAMES if self.training else SB3,
        )

    def _job(self, options: Options, run: Run, seed: int) -> Job:
        steps = {"total_timesteps": 300, "eval_interval": 150, "eval_episodes": 1}
        config = on_gpu(run.config, options, run.changes, steps, None)
        config["algo_kwargs"] |= run.knobs
        if options.quick:
            config["algo_kwargs"] |= _quick_knobs(config["algo"], config["algo_kwargs"])
        config = {"checkpoint_minutes": 10.0, **config}
        episodes = 1 if options.quick else self.episodes
        spec: dict[str, Any] = {"config": config, "eval_seed": EVAL_SEED}
        spec["final_episodes"] = episodes
        if run.drawn:
            spec["drawn"] = True
        if run.prior is not None:
            spec["prior"] = _quick_prior(run.prior) if options.quick else dict(run.prior)
        if run.sabotage is not None:
            spec["sabotage"] = run.sabotage
        gpu = config["device"] != "cpu" or _has_to_learn(spec.get("prior"))
        job = Job(self.name, run.job, seed, TRAIN, spec, peer=run.peer, gpu=gpu)
        job = replace(job, cost=3600.0, timeout=10 * 3600.0)
        root = options.scratch if options.quick else UNFINISHED
        folder = root / self.name / f"{job.key}-{job.config_hash}"
        return replace(job, inputs={"folder": str(folder), "minutes": options.minutes})

    def report(self, records: Records, figures: Path) -> Section:
        verdicts: list[Verdict] = []
        rows = []
        for run in self.runs:
            verdict = self._verdict(records, run)
            if verdict is not None:
                verdicts.append(verdict)
            cells = self._cells(records, run.job, run.task)
            text = verdict.text if verdict is not None else ""
            if not records.of(run.job):
                text = "not run"
            known = "" if run.published is None else str(run.published)
            rows.append([run.task, run.title, *cells, known, text])
        verdicts += [self._rivalry(records, rival) for rival in self.rivals]
        same = [Rival(job, peer_of(job), in_training=self.training) for job in self.peers]
        verdicts += [self._rivalry(records, rival) for rival in same]
        verdicts += self._beside_verdicts(records)
        for run in self.runs:
            if run.job in self.peers:
                own = peer_of(run.job)
                cells = self._cells(records, own, run.task)
                text = "" if records.of(own) else "not run"
                rows.append([run.task, _peer_title(run), *cells, "", text])
        tasks = {run.job: run.task for run in self.runs}
        for beside in self.besides:
            cells = self._cells(records, beside.job, tasks[beside.run])
            text = "" if records.of(beside.job) else "not run"
            rows.append([tasks[beside.run], beside.title, *cells, "", text])
        measured = ("last quarter", "best evaluation", "env steps", "seconds")
        played = ("in training", "human, %") if self.training else ()
        header = ("task", "run", *SEED_HEADER, *played, *measured)
        parts = [self.text, f"{HUMAN} {LATE}" if self.training else LATE]
        parts += [self._figure(records, task, figures) for task in dict.fromkeys(tasks.values())]
        parts.append(table((*header, "published", "gate"), rows))
        parts.append("\n".join(f"- {note}" for note in self.notes))
        parts.append(gates.listing(verdicts))
        text = "\n\n".join(part for part in parts if part)
        return Section(text, tuple(verdicts), self._short(records))

    def _short(self, records: Records) -> str:
        """A sentence with the scores that can be compared with others'."""
        beside = [(run, pair) for run in self.runs if (pair := self._pair(records, run))]
        several = len({run.title for run, _ in beside}) > 1
        said = [
            f"{run.title} on {run.task} {pair}" if several else f"{run.task} {pair}"
            for run, pair in beside
        ]
        return f"{self.headline}: {', '.join(said)}." if said else ""

    @staticmethod
    def _pair(records: Records, run: Run) -> str:
        """A run's score, and in brackets what it compares with."""
        stored, known = records.of(run.job), run.published
        if not stored:
            return ""
        if run.share is not None:
            worth = fmean(record.result["prior"]["return_mean"] for record in stored)
            return f"{mean(returns(records, run.job))} ({number(worth)})"
        if known is None or not known.same_budget:
            return ""
        scores = _in_training(records, run.job) if known.in_training else ()
        return f"{mean(scores or returns(records, run.job))} ({known.score:,g})"

    def _cells(self, records: Records, job: str, task: str) -> list[str]:
        """What is measured of a job's runs, for a row of the table."""
        late = [_late(record.result["curve"]) for record in records.of(job)]
        own = seed_columns(returns(records, job), 1)
        played = []
        if self.training:  # of an Atari game
            scale, found = game_reference(task), returns(records, job)
            human = scale.normalized(fmean(found)) if found and scale else None
            played = [mean(_in_training(records, job)), number(human)]
        return [*own, *played, mean(late), *details(records, job, "env_steps")]

    def _figure(self, records: Records, task: str, figures: Path) -> str:
        """Curves of one task, of other libraries, too, and the published scores."""
        runs = [run for run in self.runs if run.task == task]
        labels = {run.job: run.title for run in runs}
        labels |= {peer_of(run.job): _peer_title(run) for run in runs}
        labels |= {x.job: x.title for x in self.besides if x.run in labels}
        drawn = {job: label for job, label in labels.items() if records.of(job)}
        if not drawn:
            return ""
        beside = {run.title: self._others(records, run) for run in runs if run.job in drawn}
        name = f"{self.name}-{task.lower().replace(' ', '_')}.png"
        kind = "training_curve" if self.training else "curve"
        return figure(figures / name, records, drawn, task, kind=kind, beside=beside)

    @staticmethod
    def _others(records: Records, run: Run) -> list[Other]:
        """What others report of such a run: a score as a level line, and a curve; and what the
        demonstrations that it imitates are worth."""
        known, stored = run.published, records.of(run.job)
        steps = max(max(r.result["curve"]["env_steps"]) for r in stored)
        if run.share is not None:
            worth = fmean(r.result["prior"]["return_mean"] for r in stored)
            return [Other(f"demonstrations: {number(worth)}", ([0, steps], [worth] * 2))]
        if known is None:
            return []
        level = Other(f"{run.title}: {known}", ([0, steps], [known.score] * 2))
        if known.curve is None:
            return [level] if known.same_budget else []
        ends_there = round(known.curve.curve[1][-1]) == known.score
        return [level, known.curve] if known.same_budget and not ends_there else [known.curve]

    def _verdict(self, records: Records, run: Run) -> Verdict | None:
        found, name = returns(records, run.job), f"{run.title} on {run.task}"
        if run.most is not None:
            return gates.at_most(name, found, run.most)
        if run.least is not None:
            return gates.at_least(name, found, run.least)
        if run.least_in_training is not None:
            played = _in_training(records, run.job)
            return gates.at_least(f"{name}, in training,", played, run.least_in_training)
        if run.share is not None:
            shown = [float(r.result["prior"]["return_mean"]) for r in records.of(run.job)]
            what = f"{name}: share of the expert's return"
            values = [x / expert for x, expert in zip(found, shown, strict=True)]
            return gates.at_least(what, values, run.share)
        return None

    def _beside_verdicts(self, records: Records) -> list[Verdict]:
        """One per run of ours and kind."""
        names = {run.job: f"{run.title} on {run.task}" for run in self.runs}
        kinds: dict[tuple[str, str], list[Beside]] = {}
        for beside in self.besides:
            kinds.setdefault((beside.run, beside.kind), []).append(beside)
        verdicts = []
        for (job, kind), others in kinds.items():
            found = [x for x in (returns(records, other.job) for other in others) if x]
            ours, when, steps = returns(records, job), "", others[0].steps
            if steps is not None:
                when = f" after {number(steps)} steps"
                ours = [_at(record.result["curve"], steps) for record in records.of(job)]
            name = f"{names[job]} beside {kind}{when}"
            verdicts.append(gates.not_worse(name, ours, max(found, key=fmean, default=[])))
        return verdicts

    def _rivalry(self, records: Records, rival: Rival) -> Verdict:
        names = {run.job: f"{run.title} on {run.task}" for run in self.runs}
        names |= {peer_of(job): "Stable-Baselines3's" for job in self.peers}
        scores = _in_training if rival.in_training else returns
        ours, theirs = (scores(records, job) for job in (rival.job, rival.than))
        when = ", in training" if rival.in_training else ""
        if rival.at is not None:
            when = f" after {number(rival.at)} steps"
            theirs = [_at(record.result["curve"], rival.at) for record in records.of(rival.than)]
        name = f"{names[rival.job]} beside {names[rival.than]}{when}"
        if rival.times != 1.0:
            return gates.times(name, ours, theirs, rival.times)
        return gates.not_worse(name, ours, theirs)


def _in_training(records: Records, job: str) -> list[float]:
    """Scores of the last games of the training; in a quick run no game may have ended."""
    key = "training_score"
    return [float(r.result[key]) for r in records.of(job) if key in r.result]


def _has_to_learn(prior: Mapping[str, Any] | None) -> bool:
    """Whether a GPU is needed, on which the policy learns whose data are wanted."""
    if prior is None or "config" not in prior:
        return False
    from benchmarks.learning.prior import kept_at

    return not kept_at(prior).is_file()


def _late(curve: Mapping[str, Sequence[float]]) -> float:
    """The mean of the evaluations in the last quarter of the steps."""
    since = 0.75 * max(curve["env_steps"])
    points = zip(curve["env_steps"], curve["return"], strict=True)
    return fmean(y for x, y in points if x > since)


def _quick_knobs(algo: str, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Knobs of a run of a few hundred steps."""
    if algo == "gail":  # they are its generator's
        name = knobs.get("generator", "ppo")
        own = knobs.get(name, {})
        return {name: {**own, **_quick_knobs(name, own)}}
    if algo == "ppo":
        return {"rollout_length": 8, "batch_size": 64}
    return {"learning_starts": 200}


def _quick_prior(prior: Mapping[str, Any]) -> dict[str, Any]:
    """Data of a policy that has hardly learned, or those at hand as they are."""
    if "config" not in prior:
        return dict(prior)
    config = {**prior["config"], "total_timesteps": 300, "eval_interval": 150, "eval_episodes": 1}
    config["algo_kwargs"] = {**config["algo_kwargs"], "learning_starts": 200}
    return {**prior, "config": config, **({"steps": 300} if "steps" in prior else {})}


def _peer_title(run: Run) -> str:
    return f"{run.title} of Stable-Baselines3"


def peer_of(job: str) -> str:
    """The name of a job as the peer runs it."""
    return f"sb3-{job}"


def _at(curve: Mapping[str, Sequence[float]], steps: int) -> float:
    """The last evaluation up to a number of steps."""
    seen = [y for x, y in zip(curve["env_steps"], curve["return"], strict=True) if x <= steps]
    return float(seen[-1]) if seen else float(curve["return"][0])
