"""An exported policy that acts in this process, by ONNX Runtime and without PyTorch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.experiment.errors import ConfigError, DataError, ExportError, MissingExtraError, told
from rl_training.export.contract import (
    MODEL,
    MODEL_LIMIT,
    read_contract,
    read_limited,
    refuse_other_model,
)

if TYPE_CHECKING:
    import numpy as np

    from rl_training.export.run_policy import Array, Policy, State

ROOM = 2 << 30
"""Bytes of memory that loading and trying a model may take, beside what its file takes."""


def load_policy(folder: Path, threads: int = 1) -> Policy:
    """The policy of an export folder; refused in one sentence where it cannot be used.

    Nothing in the folder is executed but the model, by ONNX Runtime: no other file is read, no
    operator but ONNX's own is allowed, and a model that asks for more memory than `ROOM` fails.
    """
    contract = read_contract(folder)
    size = len(read_limited(folder / MODEL, MODEL_LIMIT))
    policy_class = _runner()
    try:
        with limited_memory(ROOM + 8 * size):
            policy: Policy = policy_class(folder, threads)
            refuse_other_model(contract, policy.session, folder)
            _try(policy)
    except ExportError:
        raise
    except ValueError as error:
        raise ExportError(f"'{folder}' cannot be used: {error}; export the policy again") from None
    except MemoryError:
        raise ExportError(
            f"'{folder / MODEL}' asks for more memory than a policy of its size needs; do not use it"
        ) from None
    except Exception as error:  # noqa: BLE001  (ONNX Runtime has an exception of its own per kind)
        text = told(error)
        if "allocat" in text.lower() or "bad_alloc" in text:
            raise ExportError(
                f"'{folder / MODEL}' asks for more memory than a policy of its size needs; do not "
                "use it"
            ) from None
        raise ExportError(
            f"'{folder / MODEL}' cannot be run by ONNX Runtime ({text[:200]}); export the policy "
            "again, or use a newer onnxruntime"
        ) from None
    return policy


@functools.cache
def _runner() -> type[Policy]:
    try:
        from rl_training.export.run_policy import Policy
    except ImportError as error:
        raise MissingExtraError(str(error.name), "serve", "an exported policy") from None
    return Policy


def _try(policy: Policy) -> None:
    """One call with a row of zeros, so that what fails fails here."""
    import numpy as np

    rows = np.zeros((1, *policy.shape), policy.dtype)
    noise = {
        port["name"]: np.full((1, *port["shape"][1:]), 0.5, np.float32) for port in policy.noises
    }
    outputs = policy.outputs(rows, policy.initial_state(1), noise)
    for port in policy.contract["outputs"]:
        found = outputs[port["name"]]
        if found.shape != (1, *port["shape"][1:]):
            raise ValueError(f"its output '{port['name']}' has the shape {found.shape}")
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            raise ValueError(f"its output '{port['name']}' is NaN or infinite")


@contextmanager
def limited_memory(room: int) -> Iterator[None]:
    """Let this process take at most `room` bytes more inside; only where Linux can say so."""
    if not sys.platform.startswith("linux"):
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    limits = [n for n in (taken + room, soft, hard) if n != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def predicted(
    policy: Policy,
    observation: Any,
    state: State | None = None,
    episode_start: Any = None,
    rng: np.random.Generator | None = None,
) -> tuple[Array, State]:
    """`predict` of an exported policy: rows that begin an episode get the initial state."""
    import numpy as np

    try:
        rows = policy.batch(observation)
    except ValueError as error:
        raise DataError(f"predict: {error}") from None
    if state:
        state = dict(state)
        if any(len(kept) != len(rows) for kept in state.values()):
            raise ConfigError(
                f"predict: expected the state that the call before returned, for {len(rows)} "
                "observations; give state=None where all episodes begin"
            )
        if episode_start is not None:
            first = np.broadcast_to(np.asarray(episode_start, np.bool_), (len(rows),))
            state = begun(policy, state, first)
    return policy(observation, state or None, rng)


def begun(policy: Policy, state: Mapping[str, Array], first: Array) -> State:
    """The state with the rows of the mask `first` at the beginning of an episode."""
    state = {name: kept.copy() for name, kept in state.items()}
    for name, initial in policy.initial_state(1).items():
        state[name][first] = initial
    return state
