"""An export folder, whole or absent: the model, its contract, a sample, a runner and a card."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.algorithms.base import Algorithm
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError, ExportError
from rl_training.experiment.files import put_in_place
from rl_training.export.card import CardText, Origin, card_of, refuse_gaps, rendered
from rl_training.export.contract import (
    CARD,
    CARD_DATA,
    CONTRACT,
    MODEL,
    PROGRAM,
    RUNNER,
    SAMPLE,
    is_export,
)
from rl_training.export.describing import contract_of
from rl_training.export.evidence import Evidence
from rl_training.export.exported import load_policy
from rl_training.export.further import further_outputs
from rl_training.export.graph import (
    PolicyGraph,
    half_or_refuse,
    onnx_model,
    save_program,
    traced,
    with_half_weights,
)
from rl_training.export.observations import Seen, Task, evaluate, observe
from rl_training.export.parity import STEPS, Parity, Predict, check
from rl_training.export.vectors import VectorPolicy, feeds_of
from rl_training.runtime.evaluation import EvalResult

SAMPLE_ROWS = 64


@dataclass(frozen=True)
class Trained:
    """The agent that is exported."""

    config: TrainConfig
    algorithm: Algorithm
    predict: Predict
    task: Task
    origin: Origin
    evidence: Evidence | None = None
    """From the run's data, where they are at hand."""


@dataclass(frozen=True)
class ExportOptions:
    """What an export holds beside the policy."""

    stochastic: bool = False
    further: Sequence[str] = ()
    weights: str = "float32"
    program: bool = False
    episodes: int = 20
    overwrite: bool = False
    text: CardText = field(default_factory=CardText)
    strict: bool = False


@dataclass(frozen=True)
class ExportResult:
    """What was written, and how it compared with the agent."""

    folder: Path
    parity: Parity
    returns: EvalResult | None
    """Of the agent; None where its environment could not be made."""
    exported_returns: EvalResult | None
    problem: str | None


def export_policy(
    trained: Trained,
    folder: Path,
    options: ExportOptions,
    say: Callable[[str], None] = lambda text: None,
) -> ExportResult:
    """Write an export folder after the proof that it acts as the agent does."""
    algorithm = trained.algorithm
    half = half_or_refuse(options.weights)
    _refuse_place(folder, options.overwrite)
    refuse_unfit(algorithm)
    if options.strict:
        refuse_gaps(options.text)
    evidence = trained.evidence
    further = further_outputs(algorithm, options.further, evidence.support if evidence else None)
    graph = PolicyGraph(algorithm, options.stochastic, further).eval()
    say(f"tracing the policy of {algorithm.name()}")
    program = traced(graph)
    model = onnx_model(program, graph)
    if half:
        with_half_weights(model)
    say("acting in the environment")
    logged = None if evidence is None else evidence.dataset.observations
    seen = observe(trained.config, algorithm, trained.task, options.episodes, logged)
    contract = contract_of(graph, trained.config, trained.task, seen, options.weights)
    contract["origin"] = trained.origin.identity()
    with _draft(folder, options.overwrite) as draft:
        _write_model(draft, model, contract)
        policy = load_policy(draft)
        total = sum(len(rows) for rows in seen.by_kind.values())
        say(f"comparing the export with the agent on {total:,} observations")
        parity = check(graph, trained.predict, policy, seen.by_kind, half)
        again = None
        if seen.returns is not None and not graph.draws:
            again = evaluate(
                trained.config,
                algorithm,
                trained.task,
                VectorPolicy(policy),
                len(seen.returns.returns),
            )
        contract["parity"] = parity.to_dict() | _compared(seen, again)
        _write_model(draft, model, contract, made_at=_now())
        _write_sample(draft, graph, trained.predict, seen, policy)
        runner = Path(__file__).with_name(RUNNER).read_text(encoding="utf-8")
        (draft / RUNNER).write_text(runner, encoding="utf-8")
        if options.program:
            save_program(program, draft / PROGRAM)
        returns = again or seen.returns
        origin = replace(trained.origin, returns=returns.returns if returns else ())
        if evidence is not None:
            origin = origin.with_evidence(evidence, trained.predict)
        card = card_of(origin, contract, options.text)
        _write_json(draft / CARD_DATA, card)
        (draft / CARD).write_text(rendered(card), encoding="utf-8")
    return ExportResult(folder, parity, seen.returns, again, seen.problem)


def _compared(seen: Seen, again: EvalResult | None) -> dict[str, Any]:
    if seen.returns is None:
        return {"environment": None, "environment_problem": seen.problem}
    return {
        "environment": {
            "episodes": len(seen.returns.returns),
            "agent_return": seen.returns.return_mean,
            "export_return": None if again is None else again.return_mean,
        }
    }


def refuse_unfit(algorithm: Algorithm) -> None:
    """Refuse a policy that was not trained, or whose weights are NaN or infinite."""
    if int(algorithm.update_count) == 0:
        raise ExportError(
            "export: the policy has not been trained (0 updates); call learn first, or export a "
            "checkpoint"
        )
    weight = algorithm.nonfinite_weight()
    if weight:
        raise ExportError(
            f"export: the weight '{weight}' is NaN or infinite; export an earlier checkpoint"
        )


def _refuse_place(folder: Path, overwrite: bool) -> None:
    if os.path.lexists(folder) and not (overwrite and is_export(folder)):
        instead = "choose another folder" + (", or --overwrite" if is_export(folder) else "")
        raise ConfigError(f"--out: '{folder}' exists already; {instead}")


@contextmanager
def _draft(folder: Path, overwrite: bool) -> Iterator[Path]:
    """A folder beside `folder` that takes its place when the block ends well."""
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.absolute().parent))
    except OSError as error:
        raise ConfigError(
            f"--out: '{folder}' cannot be written ({error.strerror or error}); choose another one"
        ) from None
    try:
        yield draft
        umask = os.umask(0)
        os.umask(umask)
        draft.chmod(0o777 & ~umask)
        _refuse_place(folder, overwrite)
        if folder.exists():
            put_in_place(draft, folder)
        else:
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write_model(
    folder: Path, model: Any, contract: Mapping[str, Any], made_at: str | None = None
) -> None:
    """The model with the contract in its metadata, and the contract with the model's hash.

    The time is in the contract's file alone, so that the same policy is the same model.
    """
    del model.metadata_props[:]
    model.metadata_props.add(key="contract", value=json.dumps(contract, sort_keys=True))
    data = model.SerializeToString(deterministic=True)
    (folder / MODEL).write_bytes(data)
    identity = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    whole = {**contract, "model": {**contract["model"], **identity}}
    if made_at is not None:
        whole["made_at"] = made_at
    _write_json(folder / CONTRACT, whole)


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _write_sample(
    folder: Path, graph: PolicyGraph, predict: Predict, seen: Seen, policy: Any
) -> None:
    """(steps, rows, ...) of every input by its name, and the actions that the agent takes."""
    rows = next(iter(seen.by_kind.values()))
    steps = STEPS if graph.states else 1
    index = np.linspace(0, len(rows) - 1, SAMPLE_ROWS).astype(np.int64)
    if graph.states:
        index = np.arange(steps * 4) % len(rows)
    observations = rows[index].reshape(steps, -1, *rows.shape[1:])
    actions, noises, state = [], [], None
    rng, exported = np.random.default_rng(0), VectorPolicy(policy)
    for obs in observations:
        noise = policy.drawn(len(obs), rng)
        if graph.draws:  # compared with the agent's by the check before
            action, state = exported(obs, state, noise)
        else:
            action, state = predict(obs, state)
        actions.append(action)
        noises.append(noise)
    shape = (steps, -1, *policy.action["shape"][1:])
    arrays: dict[str, Any] = {"actions": np.stack(actions).reshape(shape)}
    feeds = [feeds_of(policy, obs) for obs in observations]
    arrays |= {part.name: np.stack([one[part.name] for one in feeds]) for part in policy.seen}
    for port in graph.noises:
        arrays[port.name] = np.stack([noise[port.name] for noise in noises])
    np.savez(folder / SAMPLE, **arrays)
