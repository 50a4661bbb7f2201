"""Gymnasium's `VectorEnv`s, which hold many environments already: simulators of others.

They are made by a function with a parameter `num_envs`, or are a class of them, which `env_id`
names as `package.module:make_vec`. One of them alone evaluates and is asked for its spaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rl_training.envs.contract import FOREIGN_ERRORS, WrongAnswerError, success_in, what_it_did
from rl_training.envs.flat_actions import BOUNDS
from rl_training.envs.make import env_spaces
from rl_training.envs.named import maker_named
from rl_training.envs.one_of_many import (
    info_of,
    made_vectors,
    reset_mode,
    takes_numbers,
)
from rl_training.envs.repeatability import Repeatability, repeatability
from rl_training.envs.spaces import Spaces
from rl_training.envs.vector import Replayed, StepArrays, VectorEnvs
from rl_training.experiment.errors import (
    EnvironmentSetupError,
    RLTrainingError,
    describe_exception,
)
from rl_training.experiment.trust import WRAPPERS


class ManyEnvs(VectorEnvs):
    """The environments of a `VectorEnv`.

    Where it can reset some of them with seeds, runs resume exactly, as those of other
    environments do. Where it resets them itself, or by their numbers as EnvPool does, seeds are its
    own, and a resumed run begins new episodes.
    """

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any] | None, num_envs: int) -> None:
        maker = maker_named(env_id)
        assert maker is not None
        kwargs = dict(env_kwargs or {})
        spaces = env_spaces(env_id, kwargs)
        _refuse_other_forms(env_id, spaces, kwargs)
        tried = repeatability(env_id, kwargs)
        own = {key: value for key, value in kwargs.items() if key != BOUNDS}
        try:
            # seeds of its resets are typed as one number, and may be a list
            self._many: Any = made_vectors(maker, env_id, num_envs, own)
        except RLTrainingError:
            raise
        except FOREIGN_ERRORS as error:
            raise EnvironmentSetupError(
                f"env_id: '{env_id}' cannot make {num_envs:,} environments "
                f"({describe_exception(error)}); correct it, or num_envs"
            ) from None
        super().__init__(env_id, spaces, num_envs)
        self._resets_itself = reset_mode(self._many) == AutoresetMode.SAME_STEP
        self._takes_numbers = takes_numbers(self._many)
        self._fresh: NDArray[Any] | None = None
        """First observations of new episodes, where environments were reset by a step."""
        try:
            self._takes_masks = not self._takes_numbers and (num_envs == 1 or self._honours_masks())
        except FOREIGN_ERRORS as error:
            self._fail(0, what_it_did(error), cause=error)
        if not (self._takes_masks or self._takes_numbers or self._resets_itself):
            self.close()
            raise EnvironmentSetupError(
                f"env_id: '{env_id}' neither resets some of its environments alone "
                "(options['reset_mask'] or env_id) nor all that end in the same step "
                "(AutoresetMode.SAME_STEP), so that a step would be lost at every end of an "
                "episode; make it with one of these"
            )
        self.repeatability = tried
        if not self._takes_masks:
            self.repeatability = Repeatability(
                inexact=f"'{env_id}' resets its environments itself, with seeds of its own, so "
                "that a resumed run begins new episodes"
            )

    def _honours_masks(self) -> bool:
        """Whether a reset of one environment leaves the others, which took a step, alone."""
        seeds = list(range(self.num_envs))
        self._many.reset(seed=seeds)
        self._many.single_action_space.seed(0)
        actions = [self._many.single_action_space.sample() for _ in seeds]
        before = self._seen(self._many.step(np.stack(actions))[0])
        mask = np.arange(self.num_envs) == 0
        after = self._seen(self._many.reset(seed=seeds, options={"reset_mask": mask})[0])
        return bool((after[1:] == before[1:]).all())

    def _seen(self, obs: Any) -> NDArray[Any]:
        """Observations of all, checked and copied: a simulator may use its arrays again."""
        array = np.array(obs)
        expected = (self.num_envs, *self.contract.shape)
        if array.shape != expected or array.dtype.kind not in "fiub":
            raise WrongAnswerError(
                f"returned observations of {array.dtype} and the shape {array.shape}, expected "
                f"{expected}"
            )
        return array.astype(self.contract.dtype, copy=False)

    def step(self, actions: NDArray[Any]) -> StepArrays:
        self._clock += 1
        self._fresh = None
        try:
            seen, paid, ends, cuts, info = self._many.step(actions)
            obs = self._seen(seen)
            reward = np.array(paid, np.float32).reshape(self.num_envs)
            terminated, truncated = (
                np.array(flags, np.bool_).reshape(self.num_envs) for flags in (ends, cuts)
            )
            truncated &= ~terminated
            ended = terminated | truncated
            if ended.any():
                if self._resets_itself:
                    self._fresh, obs = obs, self._with_final(obs, ended, info)
                for i in np.flatnonzero(ended):
                    self.successes[i] = success_in(info_of(info, int(i)))
        except FOREIGN_ERRORS as error:
            self._fail(0, what_it_did(error), cause=error)
        if not (np.isfinite(obs).all() and np.isfinite(reward).all()):
            self._fail_not_finite(obs, reward, actions)
        self.obs = obs
        return obs, reward, terminated, truncated

    def _with_final(self, obs: NDArray[Any], ended: NDArray[Any], info: Any) -> NDArray[Any]:
        final = info.get("final_obs") if isinstance(info, Mapping) else None
        if final is None:
            raise WrongAnswerError(
                "resets itself in the same step without info['final_obs'], the last observations"
            )
        whole = obs.copy()
        for i in np.flatnonzero(ended):
            whole[i] = np.asarray(final[i], self.contract.dtype)
        return whole

    def _reset(self, mask: NDArray[Any], obs: NDArray[Any]) -> None:
        try:
            if not self._takes_masks and self._fresh is not None:
                obs[mask] = self._fresh[mask]
                return
            obs[mask] = self._reset_some(mask)[mask]
        except FOREIGN_ERRORS as error:
            self._fail(int(np.argmax(mask)), what_it_did(error), cause=error)

    def _reset_some(self, mask: NDArray[Any]) -> NDArray[Any]:
        """Observations of all after a reset of those in `mask`, with their seeds if possible."""
        if self._takes_numbers:
            numbers = np.flatnonzero(mask).astype(np.int32)
            first, info = self._many.reset(numbers)
            whole = self.obs.copy()
            # in an order of its own
            whole[np.asarray(info.get("env_id", numbers))] = np.asarray(first)
            return whole
        options = None if mask.all() else {"reset_mask": np.array(mask, np.bool_)}
        return self._seen(self._many.reset(seed=list(self._seeds), options=options)[0])

    def _replay(self, actions: Sequence[NDArray[Any]]) -> list[Replayed | None]:
        """All at once: environments with fewer actions begin later, so that all end together."""
        if not self._takes_masks:
            return [None] * self.num_envs
        lengths = np.asarray([len(taken) for taken in actions])
        longest, count = int(lengths.max()), self.num_envs
        returns, broken = np.zeros(count), np.zeros(count, np.bool_)
        try:
            obs = self._seen(self._many.reset(seed=list(self._seeds))[0])
            for clock in range(longest):
                begins = np.asarray(clock == longest - lengths)
                if clock and begins.any():
                    obs = self._reset_some(begins)
                waiting = np.asarray(clock < longest - lengths)
                own = [clock - longest + len(taken) for taken in actions]
                rows = [
                    taken[at] if at >= 0 else _any_of(actions, longest)
                    for taken, at in zip(actions, own, strict=True)
                ]
                seen, paid, ends, cuts, _ = self._many.step(np.stack(rows))
                obs, ended = self._seen(seen), np.logical_or(ends, cuts)
                returns += np.where(waiting, 0.0, np.asarray(paid, np.float32))
                broken |= ended & ~waiting
                if ended.any():
                    self._reset_some(ended)
            late = np.asarray(lengths == 0)
            if longest and late.any():
                obs = self._reset_some(late)
        except FOREIGN_ERRORS:  # it did not raise the first time
            return [None] * count
        return [None if broken[i] else Replayed(obs[i], float(returns[i])) for i in range(count)]

    def close(self) -> None:
        with suppress(*FOREIGN_ERRORS):  # errors harm nothing that was done
            self._many.close()


def _any_of(actions: Sequence[NDArray[Any]], longest: int) -> NDArray[Any]:
    """Some action, for environments that wait."""
    return next(taken[0] for taken in actions if len(taken) == longest)


def _refuse_other_forms(env_id: str, spaces: Spaces, env_kwargs: Mapping[str, Any]) -> None:
    if env_kwargs.get(WRAPPERS):
        raise EnvironmentSetupError(
            f"wrappers: '{env_id}' makes many environments at once, which wrappers do not fit; "
            "wrap them in the function that makes them"
        )
    if spaces.layout is not None or spaces.has_mask or spaces.action_shape is not None:
        raise EnvironmentSetupError(
            f"env_id: '{env_id}' makes many environments at once, which must have "
            "vectors or images as observations, and flat actions; wrap them in the "
            "function that makes them"
        )
