"""Adam and target updates over lists of tensors, for one agent or many at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rl_training.execution import can_branch_on, is_batched, is_traced, without_gradients
from rl_training.experiment.state import Stored

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class Optimizer:
    """A list of parameters with two moments each, and their update by a gradient.

    The learning rate is a tensor, so that a schedule changes it in place, also inside a
    captured graph.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        self.parameters: list[Tensor] = list(parameters)
        device = self.parameters[0].device
        self.base_lr = lr
        self.lr = torch.tensor(lr, dtype=torch.float32, device=device)
        self.exp_avg = [torch.zeros_like(p) for p in self.parameters]
        self.exp_avg_sq = [torch.zeros_like(p) for p in self.parameters]
        self.steps = torch.zeros((), dtype=torch.float32, device=device)

    def step(self, gradients: Sequence[Tensor], due: Tensor | None = None) -> None:
        """One step against `gradients`, in the order of the parameters.

        `due` is a 0-d mask: if it is False or 0, nothing changes, including the step count.
        """
        raise NotImplementedError

    @torch.no_grad()
    def start_over(self) -> None:
        """Reset the moments and the step count; parameters and learning rate stay."""
        for tensor in (*self.exp_avg, *self.exp_avg_sq, self.steps):
            tensor.zero_()

    def tensors(self) -> list[Tensor]:
        """All tensors that a step or a schedule writes to, except the parameters."""
        return [*self.exp_avg, *self.exp_avg_sq, self.steps, self.lr]

    def replace_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Use other tensors from now on, in the order of `tensors()`."""
        count = len(self.parameters)
        self.exp_avg, self.exp_avg_sq = list(tensors[:count]), list(tensors[count : 2 * count])
        self.steps, self.lr = tensors[2 * count :]

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
    def load_training_state(self, state: dict[str, Any] | Stored) -> None:
        stored = Stored(state)
        for name in ("exp_avg", "exp_avg_sq"):
            own = getattr(self, name)
            for tensor, value in zip(own, stored.tensors_like(name, own), strict=True):
                if bool(torch.isnan(value).any()):
                    raise stored.wrong(name, "numbers, but holds NaN")
                tensor.copy_(value)
        for name in ("steps", "lr"):
            value = stored.tensor_like(name, getattr(self, name))
            if not 0.0 <= float(value) < math.inf:
                raise stored.wrong(name, "a finite number from 0")
            getattr(self, name).copy_(value)


class AdamStep(NamedTuple):
    """One step of Adam for parameters of one weight decay."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]
    steps: Tensor
    """How many steps were taken, this one included."""
    lr: Tensor
    weight_decay: float
    eps: float
    beta1: float
    mask: Tensor | None = None
    """0 or 1, already added to `steps`; nothing changes if it is 0."""

    def decayed_gradients(self) -> list[Tensor]:
        """Gradients with that of the weight decay."""
        if not self.weight_decay:
            return self.gradients
        return list(torch._foreach_add(self.gradients, self.parameters, alpha=self.weight_decay))

    def take(self, rate: Tensor, counted: Tensor) -> None:
        """Move the parameters by the moments, whose bias after `counted` steps is corrected."""
        denominator = torch._foreach_sqrt(self.exp_avg_sq)
        torch._foreach_div_(denominator, (1.0 - BETA2**counted).sqrt())
        torch._foreach_add_(denominator, self.eps)
        change = torch._foreach_div(self.exp_avg, denominator)
        torch._foreach_mul_(change, rate / (1.0 - self.beta1**counted))
        torch._foreach_sub_(self.parameters, change)


class FusedAdam(Optimizer):
    """Adam (Kingma and Ba 2015) as one fused kernel call.

    The same kernel as `torch.optim.Adam(fused=True)`; for small networks the wrapper
    around it costs several times the kernel, on every step. Weight decay is that of Adam, the
    gradient of weight_decay / 2 times the square, and may differ by parameter; `decay` is
    decoupled (Loshchilov and Hutter 2019): it shrinks every parameter by lr * decay before the
    step. After it the `on_sphere` get the length 1 over their second to last axis.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float | Sequence[float] = 0.0,
        eps: float = EPS,
        beta1: float = BETA1,
        decay: float = 0.0,
        on_sphere: Iterable[nn.Parameter] = (),
    ) -> None:
        super().__init__(parameters, lr)
        self.eps, self.beta1, self.decay = eps, beta1, decay
        projected = {id(parameter) for parameter in on_sphere}
        self._projected = [i for i, p in enumerate(self.parameters) if id(p) in projected]
        count = len(self.parameters)
        decays = [weight_decay] * count if isinstance(weight_decay, float) else list(weight_decay)
        assert len(decays) == count, (len(decays), count)
        self._groups = [
            (decay, [i for i in range(count) if decays[i] == decay])
            for decay in dict.fromkeys(decays)
        ]
        """Weight decays and the parameters that have them."""

    @without_gradients
    def step(self, gradients: Sequence[Tensor], due: Tensor | None = None) -> None:
        if due is not None and can_branch_on(due):
            if not due:
                return
            due = None
        mask = None if due is None else due.to(self.steps.dtype)
        self.steps += 1 if mask is None else mask
        if self.decay:
            share = self.lr * self.decay
            kept = 1.0 - (share if mask is None else share * mask)
            if is_batched():
                for parameter in self.parameters:
                    parameter.mul_(kept)
            else:
                torch._foreach_mul_(self.parameters, kept)
        for weight_decay, group in self._groups:
            every = (self.parameters, list(gradients), self.exp_avg, self.exp_avg_sq)
            if len(self._groups) == 1:
                own, given, first, second = every
            else:
                own, given, first, second = ([tensors[i] for i in group] for tensors in every)
            step = AdamStep(
                own,
                given,
                first,
                second,
                self.steps,
                self.lr,
                weight_decay,
                self.eps,
                self.beta1,
                mask,
            )
            if is_batched():
                _adam_of_agents(*step)
            else:
                adam(step)
        for i in self._projected:
            weight = self.parameters[i]
            length = torch.linalg.vector_norm(weight, dim=-2, keepdim=True).clamp(min=1e-8)
            weight.div_(length if mask is None else torch.where(mask > 0, length, 1.0))


class LaProp(Optimizer):
    """Adam with its momentum taken after the division (Ziyin, Wang and Ueda 2020), behind a clip
    of each gradient at a share of its parameter's norm (Brock et al. 2021); DreamerV3's choice.

    The learning rate rises from 0 over the first `warmup` steps.
    """

    EPS = 1e-20
    LEAST_NORM = 1e-3
    LEAST_ROOT = 4e-18  # floor of sqrt(v): with denormals flushed, smaller squares underflow

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, clip: float, warmup: int
    ) -> None:
        super().__init__(parameters, lr)
        self.clip, self.warmup = clip, warmup

    @without_gradients
    def step(self, gradients: Sequence[Tensor], due: Tensor | None = None) -> None:
        assert due is None, "LaProp steps at every update"
        self.steps += 1
        norms = torch.stack(torch._foreach_norm(self.parameters)).clamp(min=self.LEAST_NORM)
        given = torch.stack(torch._foreach_norm(list(gradients)))
        factors = (self.clip * norms / given.clamp(min=self.EPS)).clamp(max=1.0)
        clipped = torch._foreach_mul(list(gradients), list(factors.unbind()))
        torch._foreach_mul_(self.exp_avg_sq, BETA2)
        torch._foreach_addcmul_(self.exp_avg_sq, clipped, clipped, 1.0 - BETA2)
        root = torch._foreach_sqrt(self.exp_avg_sq)
        torch._foreach_div_(root, (1.0 - BETA2**self.steps).sqrt())
        torch._foreach_clamp_min_(root, self.LEAST_ROOT)
        torch._foreach_lerp_(self.exp_avg, torch._foreach_div(clipped, root), 1.0 - BETA1)
        rate = self.lr * (self.steps / self.warmup).clamp(max=1.0) / (1.0 - BETA1**self.steps)
        torch._foreach_sub_(self.parameters, torch._foreach_mul(self.exp_avg, rate))


def adam(step: AdamStep) -> None:
    """Move parameters and moments in place."""
    if step.mask is not None:
        _masked_adam(step, step.mask)
    elif is_traced():
        # the same step in operations that a compiler fuses with each other
        gradients = step.decayed_gradients()
        torch._foreach_lerp_(step.exp_avg, gradients, 1.0 - step.beta1)
        torch._foreach_mul_(step.exp_avg_sq, BETA2)
        torch._foreach_addcmul_(step.exp_avg_sq, gradients, gradients, 1.0 - BETA2)
        step.take(step.lr, step.steps)
    else:
        torch._fused_adam_(
            step.parameters,
            [gradient.contiguous() for gradient in step.gradients],
            step.exp_avg,
            step.exp_avg_sq,
            [],
            [step.steps] * len(step.parameters),
            lr=step.lr,
            beta1=step.beta1,
            beta2=BETA2,
            weight_decay=step.weight_decay,
            eps=step.eps,
            amsgrad=False,
            maximize=False,
        )


def _masked_adam(step: AdamStep, mask: Tensor) -> None:
    gradients = step.decayed_gradients()
    for average, power, beta in ((step.exp_avg, 1, step.beta1), (step.exp_avg_sq, 2, BETA2)):
        share = mask * (1.0 - beta)
        torch._foreach_mul_(average, 1.0 - share)
        terms = gradients if power == 1 else torch._foreach_mul(gradients, gradients)
        torch._foreach_add_(average, torch._foreach_mul(terms, share))
    # before the first step there is nothing to correct
    step.take(mask * step.lr, step.steps.clamp(min=1.0))


def move_towards(
    targets: list[Tensor], sources: list[Tensor], share: float, due: Tensor | None = None
) -> None:
    """targets <- targets + share * (sources - targets), all at once and in place.

    Where the 0-d mask `due` is False or 0, nothing moves.
    """
    if due is not None and can_branch_on(due):
        if not due:
            return
        due = None
    mask = None if due is None else due.to(targets[0].dtype)
    (_move_agents_towards if is_batched() else _lerp)(targets, sources, share, mask)


def _lerp(
    targets: list[Tensor], sources: list[Tensor], share: float, mask: Tensor | None = None
) -> None:
    if mask is None:
        torch._foreach_lerp_(targets, sources, share)
        return
    change = torch._foreach_sub(sources, targets)
    torch._foreach_mul_(change, share * mask)
    torch._foreach_add_(targets, change)


# Functions over lists know no axis of agents. They are elementwise, so with all agents they are
# the same functions of the tensors that hold every agent; schedules are common to all.


@torch.library.custom_op(  # with a schema, because PyTorch 2.6 reads none from annotations as text
    "rl_training::adam_of_agents",
    mutates_args=("parameters", "exp_avg", "exp_avg_sq"),
    schema="(Tensor(a0!)[] parameters, Tensor[] gradients, Tensor(a2!)[] exp_avg, "
    "Tensor(a3!)[] exp_avg_sq, Tensor steps, Tensor lr, float weight_decay, float eps, "
    "float beta1, Tensor? mask=None) -> ()",
)
def _adam_of_agents(*step: Any) -> None:
    adam(AdamStep(*step))


@torch.library.custom_op(
    "rl_training::move_agents_towards",
    mutates_args=("targets",),
    schema="(Tensor(a0!)[] targets, Tensor[] sources, float share, Tensor? mask=None) -> ()",
)
def _move_agents_towards(
    targets: list[Tensor], sources: list[Tensor], share: float, mask: Tensor | None = None
) -> None:
    _lerp(targets, sources, share, mask)


def _agents_first(tensors: list[Tensor], axes: list[int | None], agents: int) -> list[Tensor]:
    return [
        x.expand(agents, *x.shape) if axis is None else x.movedim(axis, 0)
        for x, axis in zip(tensors, axes, strict=True)
    ]


def _common(masks: Sequence[Tensor | None]) -> Tensor | None:
    """The mask of all agents, who count their updates together; a default is not passed on."""
    return None if not masks or masks[0] is None else masks[0][0]


@_adam_of_agents.register_vmap
def _(info: Any, in_dims: Any, *arguments: Any) -> tuple[None, None]:
    lists, (steps, lr, weight_decay, eps, beta1, *masks) = arguments[:4], arguments[4:]
    of_all = [
        _agents_first(tensors, axes, info.batch_size)
        for tensors, axes in zip(lists, in_dims[:4], strict=True)
    ]
    rest = (steps[0], lr[0], weight_decay, eps, beta1, _common(masks))
    adam(AdamStep._make((*of_all, *rest)))
    return None, None


@_move_agents_towards.register_vmap
def _(info: Any, in_dims: Any, *arguments: Any) -> tuple[None, None]:
    targets, sources, share, *masks = arguments
    targets = _agents_first(targets, in_dims[0], info.batch_size)
    sources = _agents_first(sources, in_dims[1], info.batch_size)
    _lerp(targets, sources, share, _common(masks))
    return None, None
