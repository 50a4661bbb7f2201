"""Adam without the wrapper's cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn


class FusedAdam:
    """Adam (Kingma and Ba 2015) over one list of parameters, as one fused kernel call.

    The same kernel as `torch.optim.Adam(fused=True)`; for small networks the wrapper
    around it costs several times the kernel, on every step. The learning rate is a tensor,
    so that a schedule changes it in place, also inside a captured graph.
    """

    BETA1, BETA2, EPS = 0.9, 0.999, 1e-8

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> None:
        self.parameters = list(parameters)
        device = self.parameters[0].device
        self.base_lr = lr
        self.weight_decay = weight_decay
        self.lr = torch.tensor(lr, dtype=torch.float32, device=device)
        self.exp_avg = [torch.zeros_like(p) for p in self.parameters]
        self.exp_avg_sq = [torch.zeros_like(p) for p in self.parameters]
        self.steps = torch.zeros((), dtype=torch.float32, device=device)

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...]) -> None:
        """One step against `gradients`, in the order of the parameters."""
        self.steps += 1
        if torch.compiler.is_compiling():
            self._traceable_step(gradients)
            return
        torch._fused_adam_(
            cast("list[Tensor]", self.parameters),
            gradients,
            self.exp_avg,
            self.exp_avg_sq,
            [],
            [self.steps] * len(self.parameters),
            lr=self.lr,
            beta1=self.BETA1,
            beta2=self.BETA2,
            weight_decay=self.weight_decay,
            eps=self.EPS,
            amsgrad=False,
            maximize=False,
        )

    def _traceable_step(self, gradients: tuple[Tensor, ...]) -> None:
        """The same step in elementary operations, which the compiler fuses by itself."""
        correction1 = 1.0 - self.BETA1**self.steps
        correction2 = (1.0 - self.BETA2**self.steps).sqrt()
        moments = zip(self.parameters, gradients, self.exp_avg, self.exp_avg_sq, strict=True)
        for parameter, gradient, exp_avg, exp_avg_sq in moments:
            if self.weight_decay:
                gradient = gradient + self.weight_decay * parameter
            exp_avg.copy_(exp_avg + (1.0 - self.BETA1) * (gradient - exp_avg))
            exp_avg_sq.copy_(self.BETA2 * exp_avg_sq + (1.0 - self.BETA2) * gradient.square())
            denominator = exp_avg_sq.sqrt() / correction2 + self.EPS
            parameter.sub_(self.lr / correction1 * exp_avg / denominator)

    def move(self, convert: Callable[[Tensor], Tensor]) -> None:
        """Follow the parameters to another device or precision."""
        self.exp_avg = [convert(x) for x in self.exp_avg]
        self.exp_avg_sq = [convert(x) for x in self.exp_avg_sq]
        self.steps, self.lr = convert(self.steps).float(), convert(self.lr).float()

    def training_state(self) -> dict[str, Any]:
        return {
            "exp_avg": self.exp_avg,
            "exp_avg_sq": self.exp_avg_sq,
            "steps": self.steps,
            "lr": self.lr,
        }

    @torch.no_grad()
    def load_training_state(self, state: dict[str, Any]) -> None:
        for name in ("exp_avg", "exp_avg_sq"):
            for own, stored in zip(getattr(self, name), state[name], strict=True):
                own.copy_(stored)
        self.steps.copy_(state["steps"])
        self.lr.copy_(state["lr"])
