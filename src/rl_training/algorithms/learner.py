"""The learning machinery of an algorithm: random numbers, optimisers, state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, Self

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from rl_training.algorithms.functional import Loss, Metrics, clipped_gradients, gradients_of
from rl_training.algorithms.optim import Optimizer
from rl_training.algorithms.params import AnyParams
from rl_training.algorithms.swap import replaced
from rl_training.execution import current_phase, is_batched
from rl_training.experiment.state import Stored

P = TypeVar("P", bound=AnyParams, default=Any)
"""The knobs of an algorithm."""

RandomRows = Callable[[torch.Generator | None, int], Tensor]
"""Maps (generator, n) to n rows of random numbers on the device; None is the default generator."""


Due = Tensor | bool | None
"""Whether a step is taken: a 0-d mask, or what is known before the update; None is True."""


class DrawnAhead(Protocol):
    """Random numbers that were sampled before the update that uses them."""

    def take(self, rows: RandomRows) -> Tensor: ...


class Learner(nn.Module, Generic[P]):
    """A module with named optimisers, of which `minimize` steps some, and with complete state."""

    losses: ClassVar[tuple[str, ...]] = ()
    """Metrics of `update` that are watched for NaN and infinity."""

    params: P
    optimizers: dict[str, Optimizer]
    drawn_ahead: DrawnAhead | None
    update_count: Tensor
    nonfinite_at: Tensor

    def random(self, rows: RandomRows) -> Tensor:
        """One row of random numbers: the next of those sampled ahead, if there are any."""
        return rows(None, 1)[0] if self.drawn_ahead is None else self.drawn_ahead.take(rows)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal noise."""
        device = self.update_count.device
        return self.random(lambda g, n: torch.randn(n, *shape, generator=g, device=device))

    def uniform(self, *shape: int) -> Tensor:
        """Noise in [0, 1)."""
        device = self.update_count.device
        return self.random(lambda g, n: torch.rand(n, *shape, generator=g, device=device))

    def minimize(self, loss: Callable[[], Loss], *names: str, due: Due = None) -> Metrics:
        """One backward pass and one step of each named optimiser.

        The only place where gradients are taken. Gradients reach the parameters of the
        named optimisers and no others, and are clipped per optimiser. `due` is for steps that
        are not taken at every update, as `is_due` gives it; if it is False, nothing is computed
        and there are no metrics.
        """
        if due is False:
            return {}
        optimizers = [self.optimizers[name] for name in names]
        parameters = [p for optimizer in optimizers for p in optimizer.parameters]
        gradients, metrics = self._gradients(loss, parameters)
        start, clip = 0, self.params.clip_norm
        for optimizer in optimizers:
            own = gradients[start : start + len(optimizer.parameters)]
            start += len(own)
            if clip is not None:
                own = clipped_gradients(own, clip)
            optimizer.step(own, due if isinstance(due, Tensor) else None)
        return {key: x.detach() if x.requires_grad else x for key, x in metrics.items()}

    def is_due(self, interval: int) -> Due:
        """Whether a step that is taken in the first of every `interval` updates is due.

        Where the run knows the place of the update in the algorithm's `cycle`, that is True or
        False, else a 0-d mask; None if it always is.
        """
        if interval == 1:
            return None
        phase = current_phase()
        return (self.update_count - 1) % interval == 0 if phase is None else phase % interval == 0

    def _gradients(
        self, loss: Callable[[], Loss], parameters: list[Tensor]
    ) -> tuple[list[Tensor], Metrics]:
        if not is_batched():
            total, metrics = loss()
            return gradients_of(total, parameters), metrics

        def of(values: list[Tensor]) -> Loss:
            with replaced(self, parameters, values):
                return loss()

        gradients, metrics = torch.func.grad(of, has_aux=True)(parameters)
        return gradients, metrics

    def state_tensors(self) -> list[Tensor]:
        """All tensors that an update writes to."""
        optimizers = self.optimizers.values()
        own = [*self.parameters(), *self.buffers()]
        return own + [x for optimizer in optimizers for x in optimizer.tensors()]

    def set_lr_factor(self, factor: float, only: tuple[str, ...] | None = None) -> None:
        """Set each scheduled optimiser's learning rate to its base times `factor`."""
        for name, optimizer in self.optimizers.items():
            if only is None or name in only:
                optimizer.lr.fill_(optimizer.base_lr * factor)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Behind `.to()` and its like: the optimisers follow their parameters."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers.values():
            optimizer.move(fn)
        return self

    def count_as(self, other: Learner[P]) -> None:
        """Take over what agents in one batched update have in common: how many updates and steps
        they have made, and the learning rates."""
        self.update_count.copy_(other.update_count)
        for name, optimizer in self.optimizers.items():
            optimizer.steps.copy_(other.optimizers[name].steps)
            optimizer.lr.copy_(other.optimizers[name].lr)

    def training_state(self) -> dict[str, Any]:
        """The complete state for an exact resume."""
        return {
            "modules": self.state_dict(),
            "optimizers": {name: opt.training_state() for name, opt in self.optimizers.items()},
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        stored = Stored(state, "algorithm")
        load_module(self, stored.section("modules"))
        optimizers = stored.section("optimizers")
        for name, optimizer in self.optimizers.items():
            optimizer.load_training_state(optimizers.section(name))

    def first_nonfinite(self) -> tuple[str, int] | None:
        """The losses that were NaN or infinite first, in words, and the update at which."""
        found = dict(zip(self.losses, self.nonfinite_at.tolist(), strict=True))
        bad = [at for at in found.values() if at >= 0]
        if not bad:
            return None
        blamed = " and ".join(name for name, at in found.items() if at == min(bad))
        return blamed.replace("_", " "), min(bad)

    def nonfinite_weight(self) -> str | None:
        """Name of a weight or statistic that is NaN or infinite."""
        for name, tensor in self.state_dict().items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                return name
        return None


def load_module(module: nn.Module, stored: Stored) -> None:
    """Copy stored weights and buffers into a module after checking every one.

    `load_state_dict` alone would convert whatever numbers it finds.
    """
    own = module.state_dict()
    module.load_state_dict({name: stored.tensor_like(name, value) for name, value in own.items()})
