"""Diagnostics of imitation: states of expert and policy, and misleading rewards."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from rl_training.runtime.loops import Report


class StateSamples:
    """Recent states of expert and policy per component, as histograms for TensorBoard."""

    NEWEST = 2_048
    MOST_COMPONENTS = 32

    def __init__(self, expert: NDArray[np.float32], active: bool) -> None:
        self.expert, self.active = expert[:, : self.MOST_COMPONENTS], active
        self._seen: deque[NDArray[np.float32]] = deque()
        self._count = 0

    def see(self, obs: NDArray[np.float32]) -> None:
        """Add (B, O) observations of the policy; the oldest are dropped."""
        if not self.active:
            return
        self._seen.append(obs[-self.NEWEST :, : self.MOST_COMPONENTS])
        self._count += len(self._seen[-1])
        while self._count - len(self._seen[0]) >= self.NEWEST:
            self._count -= len(self._seen.popleft())

    def report(self) -> Report:
        if not self._seen:
            return {}
        policy = np.concatenate(self._seen)
        return {
            f"states/{i}/{who}": states[:, i]
            for i in range(policy.shape[1])
            for who, states in (("expert", self.expert), ("policy", policy))
        }


class SurvivalBiasWarning:
    """Warns once if episodes terminate early and the reward has one sign: then even a constant
    reward teaches the policy to survive, or to terminate soon, without any demonstration."""

    def __init__(self, form: str, experts_reach_an_end: bool) -> None:
        self.form, self.success = form, experts_reach_an_end
        self.silent = form == "logit"

    def check(self, terminated: bool, notes: list[str]) -> None:
        """Add the warning to `notes` at the first termination."""
        if self.silent or not terminated:
            return
        self.silent = True
        how = "as most demonstrations do" if self.success else "which most demonstrations do not"
        sign, lesson, proves = {
            ("softplus", False): (
                "never negative",
                "staying alive",
                "a good return then proves no imitation: compare with random demonstrations, or "
                "use an environment of fixed horizon",
            ),
            ("softplus", True): (
                "never negative",
                "never to finish",
                "use algo_kwargs.reward_form=log_sigmoid",
            ),
            ("log_sigmoid", False): (
                "never positive",
                "to fail soon",
                "use algo_kwargs.reward_form=softplus",
            ),
            ("log_sigmoid", True): (
                "never positive",
                "to finish soon",
                "a good return then proves no imitation: compare with random demonstrations, or "
                "use an environment of fixed horizon",
            ),
        }[self.form, self.success]
        notes.append(
            f"algo_kwargs.reward_form: episodes of this environment terminate, {how}, and "
            f"{self.form} is {sign}, so that a constant reward already teaches {lesson}; {proves}"
        )
