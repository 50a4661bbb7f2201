"""An exported policy that acts in this process, by ONNX Runtime and without PyTorch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.experiment.errors import (
    ConfigError,
    DataError,
    ExportError,
    MissingExtraError,
    UnfitStateError,
    describe_exception,
)
from rl_training.experiment.trust import refuse_unknown_modules
from rl_training.export.contract import (
    CONTRACT,
    MODEL,
    MODEL_LIMIT,
    read_contract,
    read_limited,
    refuse_other_model,
)
from rl_training.runtime.playing import Playable

if TYPE_CHECKING:
    from rl_training.envs.spaces import Spaces
    from rl_training.export.run_policy import Array, Policy, State
    from rl_training.runtime.evaluation import ActFunction

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
    except Exception as error:  # noqa: BLE001  (ONNX Runtime has an exception of its own per kind)
        text = describe_exception(error)
        if isinstance(error, MemoryError) or "alloc" in text.lower():
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

    feeds = trial_feeds(policy)
    noise = {
        port["name"]: np.full((1, *port["shape"][1:]), 0.5, np.float32) for port in policy.noises
    }
    outputs = policy.outputs(feeds, policy.initial_state(1), noise)
    for port in policy.contract["outputs"]:
        found = outputs[port["name"]]
        if found.shape != (1, *port["shape"][1:]):
            raise ValueError(f"its output '{port['name']}' has the shape {found.shape}")
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            raise ValueError(f"its output '{port['name']}' is NaN or infinite")


def trial_feeds(policy: Policy) -> State:
    """One row: zeros, first choices, and a mask that allows everything."""
    import numpy as np

    found = {}
    for part in policy.seen:
        row = np.full((1, *part.shape), part.role == "mask", part.dtype)
        found[part.name] = part.first.reshape(row.shape) if part.chosen else row
    return found


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


@dataclass(frozen=True)
class ExportedTask:
    """What an exported policy was trained for."""

    algo: str
    env_id: str | None
    env_kwargs: dict[str, Any]
    eval_episodes: int
    eval_max_steps: int


class ExportedPolicy(Playable):
    """An export folder used like an agent: `predict`, `evaluate` and `record_video`.

    Environments of unknown packages are made only with `trust`.
    """

    def __init__(self, folder: str | Path, *, trust: bool = False) -> None:
        self.folder, self._trust = Path(folder), trust
        self.policy = load_policy(self.folder)
        contract = self.policy.contract
        task, algorithm = contract["task"], contract.get("algorithm")
        name = algorithm.get("name") if isinstance(algorithm, Mapping) else None
        self.config = ExportedTask(
            str(name or "policy"),
            task["env_id"],
            dict(task["env_kwargs"]),
            task["eval_episodes"],
            task["eval_max_steps"],
        )

    @property
    def contract(self) -> dict[str, Any]:
        """What the policy takes and gives, and where it comes from."""
        contract: dict[str, Any] = self.policy.contract
        return contract

    def predict(
        self,
        observation: Any,
        state: State | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_mask: Any = None,
    ) -> tuple[Array, State | None]:
        """`predict` of the agent that was exported; drawn or not, as it was exported."""
        import numpy as np

        self._refuse_other_mode(deterministic)
        feeds, alone = self._feeds(observation, action_mask)
        rows = len(next(iter(feeds.values())))
        if state and any(len(kept) != rows for kept in state.values()):
            raise ConfigError(
                f"predict: expected the state that the call before returned, for {rows} "
                "observations; give state=None where all episodes begin"
            )
        if state and episode_start is not None:
            first = np.broadcast_to(np.asarray(episode_start, np.bool_), (rows,))
            state = begun(self.policy, state, first)
        outputs = self.policy.run(feeds, state or None)
        names = self.policy.label(outputs["action"])
        actions = outputs["action"] if names is None else names
        return actions[0] if alone else actions, (
            self.policy.next_state(outputs) if self.policy.states else state
        )

    def explain(self, observation: Any, action_mask: Any = None) -> dict[str, Array]:
        """The action under "action", with the further outputs that were exported with it."""
        if self.policy.states:
            raise ConfigError("explain: a policy that keeps a state exports nothing but actions")
        self._refuse_other_mode(deterministic=True)
        feeds, alone = self._feeds(observation, action_mask)
        outputs = self.policy.run(feeds)
        names = self.policy.label(outputs["action"])
        outputs |= {} if names is None else {"action": names}
        return {name: (values[0] if alone else values) for name, values in outputs.items()}

    def _feeds(self, observation: Any, action_mask: Any) -> tuple[State, bool]:
        """Inputs from parts by name, or from the vector that stands for them."""
        from rl_training.export.vectors import as_vectors, feeds_of

        try:
            given = None if action_mask is not None else as_vectors(self.policy, observation)
            if given is None:
                return self.policy.feeds(observation, action_mask)
            rows, alone = given
            return feeds_of(self.policy, rows), alone
        except ValueError as error:
            raise DataError(f"predict: {error}") from None

    def _acting(self, deterministic: bool, seed: int | None) -> ActFunction:
        import numpy as np

        from rl_training.export.vectors import VectorPolicy

        self._refuse_other_mode(deterministic)
        return VectorPolicy(self.policy, np.random.default_rng(0 if seed is None else seed))

    def _task_spaces(self) -> Spaces:
        from rl_training.envs.spaces import Spaces

        try:
            return Spaces.from_dict(self.contract["task"]["spaces"])
        except UnfitStateError as error:
            raise ExportError(f"'{self.folder / CONTRACT}' is damaged: {error}") from None

    def _own_task(self) -> tuple[str, dict[str, Any]]:
        own = self.config
        if own.env_id is None:
            raise ConfigError(
                f"env_id: the policy in '{self.folder}' was trained without an environment; "
                "give one with the same spaces"
            )
        if not self._trust:
            named = {"env_id": own.env_id, "env_kwargs": own.env_kwargs}
            refuse_unknown_modules(named, f"export '{self.folder}'")
        return own.env_id, own.env_kwargs

    def _eval_lengths(self) -> tuple[int, int]:
        return self.config.eval_episodes, self.config.eval_max_steps

    def _refuse_other_mode(self, deterministic: bool) -> None:
        draws = bool(self.policy.noises)
        if deterministic == draws:
            how = "without --stochastic" if not draws else "with --stochastic"
            raise ConfigError(
                f"deterministic: the policy in '{self.folder}' was exported {how}; use it that "
                "way, or export it again"
            )


def begun(policy: Policy, state: Mapping[str, Array], first: Array) -> State:
    """The state with the rows of the mask `first` at the start of an episode."""
    state = {name: kept.copy() for name, kept in state.items()}
    for name, initial in policy.initial_state(1).items():
        state[name][first] = initial
    return state
