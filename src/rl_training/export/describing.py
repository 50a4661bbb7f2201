"""The contract of a policy: what it takes, what it gives and where it comes from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rl_training.envs.layout import Part
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.tracking import versions
from rl_training.export.contract import EPISODE_START, FORMAT, MODEL, VERSION
from rl_training.export.graph import MASK, OPSET, PolicyGraph, Port, packed_frames
from rl_training.export.observations import Seen, Task


def contract_of(
    graph: PolicyGraph, config: TrainConfig, task: Task, seen: Seen, weights: str
) -> dict[str, Any]:
    """Everything but what is known only when the file is written."""
    algorithm, spaces = graph.algorithm, graph.algorithm.spaces
    normalizer = algorithm.normalizer
    return {
        "format": FORMAT,
        "format_version": VERSION,
        "model": {"file": MODEL, "opset": OPSET, "weights": weights, "arithmetic": "float32"},
        "inputs": [*_seen(graph, seen), *_states(graph), *_noises(graph)],
        "outputs": [
            _action(graph),
            *(
                _port(Port(f"next_{port.name}", port.dtype, port.shape))
                | {"role": "state", "meaning": f"'{port.name}' of the next step of the episode"}
                for port in graph.states
            ),
            *(
                _port(Port(output.name, "float32", output.shape))
                | {"role": "further", "meaning": output.meaning}
                for output in graph.further
            ),
        ],
        "acts": "drawn by the noise inputs" if graph.draws else "the likeliest action",
        "recurrent": bool(graph.states),
        "episode_start": EPISODE_START if graph.states else "Nothing is kept between calls.",
        "normalization": {
            "inside": True,
            "active": normalizer.active,
            "mean": normalizer.mean.tolist() if normalizer.active else None,
            "std": normalizer.std.tolist() if normalizer.active else None,
            "clipped_to": 10.0 if normalizer.active else None,
        },
        "task": {
            "env_id": task.env_id,
            "env_kwargs": task.env_kwargs,
            "eval_episodes": config.eval_episodes,
            "eval_max_steps": config.eval_max_steps,
            "spaces": _plain(spaces.to_dict()),
        },
        "algorithm": {
            "name": config.algo,
            "paper": algorithm.paper,
            "updates": int(algorithm.update_count),
            "config_hash": config.hash(),
        },
        "versions": versions(),
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _port(port: Port) -> dict[str, Any]:
    return {"name": port.name, "dtype": port.dtype, "shape": ["batch", *port.shape]}


def _seen(graph: PolicyGraph, seen: Seen) -> list[dict[str, Any]]:
    """The observation, or each of its parts, and the mask."""
    spaces, found, at = graph.algorithm.spaces, [], 0
    frames = packed_frames(spaces)
    stacked = "" if frames == 1 else _stacked(frames)
    for port in graph.seen:
        entry = _port(port)
        if port.name == MASK:
            entry |= {"role": "mask", "meaning": "true for every action that is allowed now"}
        elif port.dtype == "uint8":
            entry |= _image(spaces)
        elif port.part is not None and port.part.choices:
            entry |= {"role": "observation", **_choice(port.part, frames)}
            entry["meaning"] += stacked
        else:
            numbers = slice(at, at + math.prod(port.shape) // frames)
            low, high = (
                _bounds(None if bound is None else np.tile(np.ravel(bound)[numbers], frames))
                for bound in (seen.low, seen.high)
            )
            what = "the observation" if port.part is None else f"'{port.part.name}'"
            inside = "; it is normalised inside" if graph.algorithm.normalizer.active else ""
            entry |= {
                "role": "observation",
                "units": "the environment's",
                "low": low,
                "high": high,
                "meaning": f"{what} as the environment gives it{inside}{stacked}",
            }
        if port.part is not None and port.part.path:
            entry["path"] = list(port.part.path)
        at += math.prod(port.shape) if port.part is None else port.part.width
        found.append(entry)
    return found


def _image(spaces: Spaces) -> dict[str, Any]:
    frames = _stacked(spaces.frame_stack) if spaces.frame_stack > 1 else ""
    return {
        "role": "observation",
        "units": "the environment's",
        "low": 0,
        "high": 255,
        "frame_stack": spaces.frame_stack,
        "meaning": f"the image as the environment gives it, divided by 255 inside{frames}",
    }


def _stacked(frames: int) -> str:
    return (
        f"; its first axis holds the newest {frames} frames, the oldest first, which the caller "
        "keeps"
    )


def _choice(part: Part, frames: int) -> dict[str, Any]:
    """Whole numbers that the graph writes one-hot."""
    choices = part.choices * frames
    starts = (part.starts or (0,) * len(part.choices)) * frames
    ends = [start + count - 1 for start, count in zip(starts, choices, strict=True)]
    entry: dict[str, Any] = {"choices": list(choices), "low": list(starts), "high": ends}
    if len(ends) == 1:
        entry |= {"low": starts[0], "high": ends[0]}
    if part.labels:
        return entry | {
            "categories": list(part.labels),
            "meaning": f"the category of '{part.name}', as its place in 'categories'",
        }
    return entry | {"meaning": f"the choice '{part.name}' as the environment gives it"}


def _bounds(bound: Any) -> Any:
    """One number for all, one per component, null where there is none."""
    if bound is None:
        return None
    values = [float(x) if np.isfinite(x) else None for x in np.ravel(bound)]
    return values[0] if len(set(values)) == 1 else values


def _states(graph: PolicyGraph) -> list[dict[str, Any]]:
    return [
        _port(port)
        | {
            "role": "state",
            "initial": 0,
            "next": f"next_{port.name}",
            "meaning": "what the policy keeps from step to step of an episode",
        }
        for port in graph.states
    ]


def _noises(graph: PolicyGraph) -> list[dict[str, Any]]:
    return [
        _port(port)
        | {
            "role": "noise",
            "distribution": port.distribution,
            "meaning": "independent random numbers, new ones for every call",
        }
        for port in graph.noises
    ]


def _action(graph: PolicyGraph) -> dict[str, Any]:
    spaces = graph.algorithm.spaces
    if spaces.is_discrete:
        first, last = spaces.action_start, spaces.action_start + spaces.action_dim - 1
        return _port(Port("action", "int64", ())) | {
            "role": "action",
            "kind": "discrete",
            "low": first,
            "high": last,
            "meaning": f"the number of the action, {first} to {last}, for the environment",
            **({"categories": list(spaces.action_labels)} if spaces.action_labels else {}),
        }
    shape = (spaces.action_dim,) if spaces.action_shape is None else spaces.action_shape
    if not spaces.is_box:
        ends = [first + n - 1 for first, n in zip(spaces.starts, spaces.choices, strict=True)]
        return _port(Port("action", "int64", shape)) | {
            "role": "action",
            "kind": "multi_discrete",
            "choices": list(spaces.choices),
            "low": list(spaces.starts),
            "high": ends,
            "meaning": "the number of every part's choice, for the environment",
        }
    return _port(Port("action", "float32", shape)) | {
        "role": "action",
        "kind": "box",
        "low": list(spaces.action_low),
        "high": list(spaces.action_high),
        "units": "the environment's",
        "meaning": "the action for the environment, inside its bounds",
    }
