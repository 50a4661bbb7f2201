"""The result of one agent's run, as an object and as result.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl_training.envs.atari_rules import protocol_of
from rl_training.experiment.storage import publish
from rl_training.experiment.tracking import RESULT_FILE, hardware, versions, write_json
from rl_training.runtime.callbacks import TrainResult

if TYPE_CHECKING:
    from rl_training.runtime.record import Record


def train_result(record: Record) -> TrainResult:
    """The result of the run so far."""
    found = record.selection
    return TrainResult(
        run_dir=record.run_dir,
        stop_reason=record.stop_reason or "",
        signal=record.signal,
        updates=record.loop.progress.updates,
        env_steps=record.loop.progress.env_steps,
        wall_seconds=record.elapsed(),
        last_eval=found.last,
        best_score=found.best_score if found.best_tick >= 0 else None,
        best_tick=found.best_tick if found.best_tick >= 0 else None,
        data_notes=record.loop.data_notes,
        held_out=found.held_out,
        best_held_out=found.best_held_out,
        metrics=found.last_metrics,
        best_metric=found.best_metric(found.last_metrics) if found.best_tick >= 0 else None,
    )


def write_result(record: Record, status: str) -> None:
    """Write result.json."""
    result = train_result(record)
    config = record.config
    protocol = protocol_of(config.env_id, config.env_kwargs, config.train_env_kwargs)
    held_out, best = result.held_out, result.best_held_out
    write_json(
        record.run_dir / RESULT_FILE,
        {
            "status": status,
            "stop_reason": result.stop_reason,
            **record.loop.progress.to_dict(),
            "last_eval": dict(result.metrics) or None,
            "last_eval_tick": record.selection.last_tick,
            "best": {
                "tick": result.best_tick,
                "score": result.best_score,
                "metric": result.best_metric,
            },
            **({"protocol": protocol} if protocol else {}),
            "data_notes": list(result.data_notes),
            "warnings": list(record.console.warnings),
            "held_out": {
                "last": held_out.metrics() if held_out else None,
                "best": best.metrics() if best else None,
            },
            **record.exactness(),
            "wall_seconds": round(result.wall_seconds, 3),
            "profile": record.profile.to_dict() if record.profile else None,
            "config_hash": record.config.hash(),
            "versions": versions(),
            "hardware": hardware(),
        },
    )
    publish(record.run_dir)
