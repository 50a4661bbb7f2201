"""Tasks and knobs that an algorithm cannot learn with are refused before anything is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_training.algorithms.loops import LOOPS
from rl_training.algorithms.params import without_knob
from rl_training.envs.spaces import ACTION_NAMES, Spaces
from rl_training.experiment.errors import ConfigError, EnvironmentSetupError
from rl_training.experiment.registry import working_algorithms

if TYPE_CHECKING:
    from rl_training.algorithms.base import Algorithm


def refuse_unfit(
    algorithm: type[Algorithm], spaces: Spaces, params: Any, normalize_observations: bool
) -> None:
    """Refuse actions, masks and observations that the algorithm does not take, and knobs that it
    would not read."""
    name = algorithm.name()
    if spaces.action_kind not in algorithm.action_kinds:
        kinds = " or ".join(ACTION_NAMES[kind] for kind in sorted(algorithm.action_kinds))
        raise EnvironmentSetupError(
            f"algo: {name} takes {kinds} actions, but the task has {spaces.describe()}; choose "
            f"{_one_of(_others_for(algorithm, spaces))}"
        )
    for knob in () if spaces.is_box else algorithm.box_knobs:
        if getattr(params, knob) != type(params).model_fields[knob].default:
            raise ConfigError(
                f"algo_kwargs.{knob}: {name} reads this key for Box actions alone, but the task "
                f"has {spaces.describe()}; {without_knob(type(params), knob)}"
            )
    if spaces.has_mask and not algorithm.takes_masks:
        raise EnvironmentSetupError(
            f"algo: {name} does not support action masks, which the task has; choose "
            f"{_one_of(_others_for(algorithm, spaces))}, or wrap the environment so that it "
            "gives none"
        )
    if not spaces.is_image:
        return
    if "image" not in algorithm.observation_kinds:
        raise EnvironmentSetupError(
            f"algo: {name} takes vector observations, but the task has {spaces.describe()}; choose "
            f"an algorithm for images ({', '.join(_others_for(algorithm, spaces))}), or wrap the "
            "environment"
        )
    if normalize_observations:
        own = "normalize_observations" in params.model_fields_set
        raise ConfigError(
            f"{'algo_kwargs' if own else 'dataset'}.normalize_observations: images are divided by "
            "255 and need no statistics; remove this key"
        )


def _one_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def _others_for(algorithm: type[Algorithm], spaces: Spaces) -> list[str]:
    """The algorithms that take such a task; where there are any, those alone that learn from what
    this one is given."""
    fitting = {n: other for n, other in working_algorithms().items() if other.takes_task(spaces)}
    given = _needs(algorithm)
    able = (n for n, other in fitting.items() if any(a <= b for a in _needs(other) for b in given))
    return list(able) or list(fitting)


def _needs(algorithm: type[Algorithm]) -> list[set[str]]:
    """What each of its loops learns from: data, an environment or both."""
    known = (LOOPS[name] for name in algorithm.loops() if name in LOOPS)
    sources = ({"data": loop.needs_data, "environment": loop.needs_env} for loop in known)
    return [{name for name, needed in source.items() if needed} for source in sources]
