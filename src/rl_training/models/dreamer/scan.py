"""The sequence model over time: a chain of steps with its gradient written out.

Every step of a chain waits for the one before, so on a GPU the number of kernels decides, not their
work. Products that share their input are joined, what lies between two products is one function
that a compiler fuses, and gradients of weights are computed for all steps at once after the chain,
which autograd would add up step by step. Products are computed in the precision of the weights,
all else in that of the scales of the norms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rl_training.models.dreamer.latents import UNIMIX, mixed_with_uniform, sample_one_hot
from rl_training.models.dreamer.layers import NORM_EPS


class CellWeights(NamedTuple):
    """Weights of the block-GRU, with D units in G blocks of k, U hidden units and S latent ones."""

    stoch: Tensor  # (U, S)
    input_bias: Tensor  # (2, U) of what reads the two parts of the state
    input_scale: Tensor  # (2, U)
    mixing: Tensor  # (G, k, k)
    inputs: Tensor  # (D, 2 U)
    mixing_scale: Tensor  # (D,)
    gates: Tensor  # (G, k, 3 k)
    gate_bias: Tensor  # (G, 1, 3 k)


class ScanWeights(NamedTuple):
    """Weights of the chain of cell and posterior."""

    state: Tensor  # (2 U, D): of the next step's input, and of the posterior
    posterior_scale: Tensor  # (U,)
    out: Tensor  # (S, U)
    out_bias: Tensor  # (S,)


class ChainInputs(NamedTuple):
    """(T, B, ...) inputs of a chain of T steps."""

    going: Tensor  # (T, B, 1): 0 where the state before counts as zero
    fed: Tensor  # (T, B, D): products of the actions with the mixing layer, and its bias
    looked: Tensor  # (T, B, U): products of the observations with the posterior's layer
    wait: Tensor  # (T, B, latents, classes): exponential noise


class CellStep(NamedTuple):
    """What one step of the block-GRU computes, for B rows."""

    deter: Tensor  # (B, D)
    rounded: Tensor  # the same in the precision of the weights
    read: Tensor  # (B, 2, U) before the norm
    inputs: Tensor  # (B, 2 U)
    mixing: Tensor  # (B, D) before the norm
    mixed: Tensor  # (B, D)
    gates: Tensor  # (G, B, 3 k)


class Seen(NamedTuple):
    """What the posterior of one step computes."""

    joint: Tensor  # (B, 2 U): products of the state with `ScanWeights.state`
    hidden: Tensor  # (B, U) before the norm
    activated: Tensor  # (B, U)
    soft: Tensor  # (B, latents, classes) without the uniform part
    probs: Tensor  # (B, latents, classes)
    stoch: Tensor  # (B, latents, classes), one-hot, in the precision of the weights


class Chain(NamedTuple):
    """Gradients that go from a step to the one before."""

    deter: Tensor  # (B, D), without the next two
    blocks: Tensor  # (G, B, k), to be masked
    read: Tensor  # (B, U), of the product with the state
    stoch: Tensor  # (B, S)


class StepGrads(NamedTuple):
    """Gradients of one step from which those of the weights are computed."""

    logits: Tensor  # (B, S)
    activated: Tensor  # (B, U)
    hidden: Tensor  # (B, U)
    gates: Tensor  # (G, B, 3 k)
    mixed: Tensor  # (G, B, k)
    mixing: Tensor  # (B, D)
    inputs: Tensor  # (B, 2 U)
    read: Tensor  # (B, 2, U), masked


class Kernels(NamedTuple):
    """The functions of a chain, which an engine may compile."""

    forward: Callable[..., tuple[CellStep, Seen]]
    backward: Callable[..., tuple[StepGrads, Chain]]
    weights: Callable[..., tuple[Tensor, ...]]


def activated(x: Tensor, scale: Tensor) -> Tensor:
    """SiLU of the RMS norm over the last axis."""
    last = scale.shape[-1:]
    if scale.dim() == 1:
        return F.silu(F.rms_norm(x, last, scale, NORM_EPS))
    return F.silu(F.rms_norm(x, last, None, NORM_EPS) * scale)


def activated_grads(x: Tensor, scale: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `activated` with respect to `x`, and to the scale before the sum over rows."""
    size = torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS)
    normed = x * size
    scaled = normed * scale
    gate = torch.sigmoid(scaled)
    grad = grad.to(x.dtype) * gate * (1.0 + scaled * (1.0 - gate))
    of_normed = grad * scale
    of_x = size * (of_normed - normed * (of_normed * normed).mean(-1, keepdim=True))
    return of_x, grad * normed


def in_blocks(x: Tensor, blocks: int) -> Tensor:
    """(blocks, rows, width / blocks) of (rows, width)."""
    return x.view(x.shape[0], blocks, -1).transpose(0, 1)


def out_of_blocks(x: Tensor) -> Tensor:
    """(rows, width) of (blocks, rows, width / blocks)."""
    return x.transpose(0, 1).flatten(-2)


def cell_step(
    w: CellWeights,
    state: tuple[Tensor, Tensor, Tensor, Tensor],
    going: Tensor | None,
    fed: Tensor,
) -> CellStep:
    """The next deterministic state.

    `state` is the one before: (B, D), the same in the precision of the weights, its product with
    the input layer, (B, U), and the latents, (B, S). Where `going`, (B, 1), is 0, it counts as
    zero; without it, nowhere. `fed` is the product of the action with the mixing layer, with its
    bias.
    """
    deter, rounded, read, stoch = state
    wide, blocks = w.mixing_scale.dtype, w.mixing.shape[0]
    pair = torch.stack([read, stoch @ w.stoch.t()], 1).to(wide)
    before_norm = _masked(pair, going) + w.input_bias
    inputs = activated(before_norm, w.input_scale).flatten(1).to(rounded.dtype)
    of_blocks = out_of_blocks(torch.bmm(in_blocks(rounded, blocks), w.mixing))
    mixing = _masked(of_blocks.to(wide), going) + (inputs @ w.inputs.t()).to(wide) + fed.to(wide)
    mixed = activated(mixing, w.mixing_scale).to(rounded.dtype)
    gates = torch.bmm(in_blocks(mixed, blocks), w.gates)
    _, candidate, update = _opened(gates, w)
    before = in_blocks(_masked(deter, going), blocks)
    after = out_of_blocks(torch.lerp(before, candidate, update))
    return CellStep(after, after.to(rounded.dtype), before_norm, inputs, mixing, mixed, gates)


def _masked(x: Tensor, going: Tensor | None) -> Tensor:
    """Rows of (B, ...) numbers, 0 where `going` is."""
    return x if going is None else x * going.view(-1, *[1] * (x.dim() - 1))


def _opened(gates: Tensor, w: CellWeights) -> tuple[Tensor, Tensor, Tensor]:
    """Reset gate, candidate and update gate, (G, B, k) each."""
    reset, candidate, update = (gates.to(w.gate_bias.dtype) + w.gate_bias).chunk(3, -1)
    reset = torch.sigmoid(reset)
    return reset, torch.tanh(reset * candidate), torch.sigmoid(update - 1.0)


def forward_step(
    cell: CellWeights,
    w: ScanWeights,
    state: tuple[Tensor, Tensor, Tensor, Tensor],
    given: tuple[Tensor, Tensor, Tensor, Tensor],
) -> tuple[CellStep, Seen]:
    """One step of the chain; `given` is one step of its `ChainInputs`."""
    going, fed, looked, wait = given
    step = cell_step(cell, state, going, fed)
    joint = step.rounded @ w.state.t()
    units = joint.shape[-1] // 2
    wide = w.posterior_scale.dtype
    hidden = joint[:, units:].to(wide) + looked.to(wide)
    active = activated(hidden, w.posterior_scale).to(w.out.dtype)
    logits = (active @ w.out.t()).to(wide) + w.out_bias
    soft = torch.softmax(logits.view_as(wait), -1)
    probs = mixed_with_uniform(soft)
    stoch = sample_one_hot(probs, wait).to(joint.dtype)
    return step, Seen(joint, hidden, active, soft, probs, stoch)


def backward_step(
    cell: CellWeights,
    w: ScanWeights,
    step: CellStep,
    seen: Seen,
    before: Tensor,
    masks: tuple[Tensor, Tensor],
    outer: tuple[Tensor, Tensor, Tensor],
    chain: Chain,
) -> tuple[StepGrads, Chain]:
    """The gradients of one step.

    `before` is the deterministic state before it, `masks` are `going` of this step and of the
    next, and `outer` gradients of state, latents and probabilities from outside the chain.
    """
    going, going_next = masks
    blocks, narrow = cell.mixing.shape[0], w.state.dtype
    of_probs = outer[1] + outer[2] + chain.stoch.view_as(seen.soft).to(seen.soft.dtype)
    of_soft = (1.0 - UNIMIX) * of_probs
    of_logits = seen.soft * (of_soft - (seen.soft * of_soft).sum(-1, keepdim=True))
    logits = of_logits.flatten(1).to(w.out.dtype)
    of_active = logits @ w.out
    hidden = activated_grads(seen.hidden, w.posterior_scale, of_active)[0].to(narrow)
    of_deter = torch.cat([chain.read, hidden], -1) @ w.state
    of_deter = outer[0] + chain.deter + of_deter.to(before.dtype)
    of_deter = of_deter + going_next * out_of_blocks(chain.blocks).to(before.dtype)

    of_after, masked = in_blocks(of_deter, blocks), in_blocks(before * going, blocks)
    reset, candidate, update = _opened(step.gates, cell)
    raw = (step.gates.to(before.dtype) + cell.gate_bias).chunk(3, -1)[1]
    of_update = of_after * (candidate - masked) * update * (1.0 - update)
    of_product = of_after * update * (1.0 - candidate.square())
    of_reset = of_product * raw * reset * (1.0 - reset)
    gates = torch.cat([of_reset, of_product * reset, of_update], -1).to(narrow)
    of_before = out_of_blocks(of_after * (1.0 - update)) * going
    mixed = torch.bmm(gates, cell.gates.transpose(1, 2))
    of_mixing = activated_grads(step.mixing, cell.mixing_scale, out_of_blocks(mixed))[0]
    mixing = of_mixing.to(narrow)
    of_blocks = torch.bmm(in_blocks(mixing, blocks), cell.mixing.transpose(1, 2))
    inputs = mixing @ cell.inputs
    of_read = activated_grads(step.read, cell.input_scale, inputs.view_as(step.read))[0]
    read = (of_read * going.unsqueeze(-1)).to(narrow)
    of_stoch = read[:, 1] @ cell.stoch
    grads = StepGrads(logits, of_active, hidden, gates, mixed, mixing, inputs, read)
    return grads, Chain(of_before, of_blocks, read[:, 0], of_stoch)


def weight_gradients(
    cell: CellWeights,
    w: ScanWeights,
    step: CellStep,
    seen: Seen,
    before: tuple[Tensor, Tensor],
    going: Tensor,
    grads: StepGrads,
) -> tuple[Tensor, ...]:
    """Gradients of all fields of `cell` and `w` from those of the rows of all steps.

    `before` are state and latents before each row, in the precision of the weights.
    """
    blocks, narrow = cell.mixing.shape[0], w.state.dtype
    deter, stoch = before
    of_read, of_input_scale = activated_grads(
        step.read, cell.input_scale, grads.inputs.view_as(step.read)
    )
    of_mixing_scale = activated_grads(step.mixing, cell.mixing_scale, out_of_blocks(grads.mixed))[1]
    of_posterior_scale = activated_grads(seen.hidden, w.posterior_scale, grads.activated)[1]
    masked = (grads.mixing * going).to(narrow)
    wide = cell.gate_bias.dtype
    return (
        grads.read[:, 1].t() @ stoch,
        of_read.sum(0),
        of_input_scale.sum(0),
        torch.bmm(in_blocks(deter, blocks).transpose(1, 2), in_blocks(masked, blocks)),
        grads.mixing.t() @ step.inputs,
        of_mixing_scale.sum(0),
        torch.bmm(in_blocks(step.mixed, blocks).transpose(1, 2), grads.gates),
        grads.gates.to(wide).sum(1, keepdim=True),
        torch.cat([grads.read[:, 0].t() @ deter, grads.hidden.t() @ step.rounded]),
        of_posterior_scale.sum(0),
        grads.logits.t() @ seen.activated,
        grads.logits.to(wide).sum(0),
    )


PLAIN = Kernels(forward_step, backward_step, weight_gradients)


class SeeChain(torch.autograd.Function):
    """The chain as one function of its inputs and weights; see `see_chain`."""

    @staticmethod
    def forward(ctx: Any, kernels: Kernels, state: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        going, fed, looked, wait, *weights = inputs
        count = len(CellWeights._fields)
        cell, w = CellWeights(*weights[:count]), ScanWeights(*weights[count:])
        deter, stoch = state
        rounded, stoch = deter.to(w.state.dtype), stoch.flatten(1).to(w.state.dtype)
        # strides are those of all later steps, so that a compiled step is compiled once
        read = (rounded @ w.state.t())[:, : w.state.shape[0] // 2]
        kept = []
        before = [(deter, rounded, stoch)]
        for given in zip(going, fed, looked, wait, strict=True):
            step, seen = kernels.forward(cell, w, (deter, rounded, read, stoch), given)
            kept.append((step, seen))
            deter, rounded, stoch = step.deter, step.rounded, seen.stoch.flatten(1)
            read = seen.joint[:, : seen.joint.shape[-1] // 2]
            before.append((deter, rounded, stoch))
        ctx.kernels, ctx.cell, ctx.w, ctx.going = kernels, cell, w, going
        ctx.kept, ctx.before = kept, before
        deters = torch.stack([step.deter for step, _ in kept])
        stochs = torch.stack([seen.stoch for _, seen in kept]).to(deters.dtype)
        return deters, stochs, torch.stack([seen.probs for _, seen in kept])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Any, ...]:
        kernels, cell, w, going = ctx.kernels, ctx.cell, ctx.w, ctx.going
        last_step, last_seen = ctx.kept[-1]
        rows, units = last_seen.hidden.shape
        narrow = last_seen.joint
        chain = Chain(
            torch.zeros_like(last_step.deter),
            narrow.new_zeros(cell.mixing.shape[0], rows, cell.mixing.shape[1]),
            narrow.new_zeros(rows, 2, units)[:, 0],
            narrow.new_zeros(rows, cell.stoch.shape[1]),
        )
        grads: list[StepGrads] = []
        going_next = torch.zeros_like(going[0])
        for t in reversed(range(len(ctx.kept))):
            step, seen = ctx.kept[t]
            own = tuple(grad[t] for grad in outer)
            masks = (going[t], going_next)
            found, chain = kernels.backward(
                cell, w, step, seen, ctx.before[t][0], masks, own, chain
            )
            grads.append(found)
            going_next = going[t]
        steps, sights = zip(*ctx.kept, strict=True)
        all_grads = _rows_of(grads[::-1], StepGrads, ("gates", "mixed"))
        of_weights = kernels.weights(
            cell,
            w,
            _rows_of(steps, CellStep, ("gates",)),
            _rows_of(sights, Seen, ()),
            (
                torch.cat([rounded for _, rounded, _ in ctx.before[:-1]]),
                torch.cat([stoch for _, _, stoch in ctx.before[:-1]]),
            ),
            going.flatten(0, 1),
            all_grads,
        )
        leading = going.shape[:2]
        of_fed = all_grads.mixing.view(*leading, -1)
        of_looked = all_grads.hidden.view(*leading, -1)
        return None, None, None, of_fed, of_looked, None, *of_weights


def _rows_of(steps: Any, kind: Any, in_blocks_first: tuple[str, ...]) -> Any:
    """The rows of all steps one after another; some fields have the blocks before the rows."""
    columns = zip(kind._fields, zip(*steps, strict=True), strict=True)
    return kind(*(torch.cat(parts, int(name in in_blocks_first)) for name, parts in columns))


def see_chain(
    kernels: Kernels,
    state: tuple[Tensor, Tensor],
    inputs: ChainInputs,
    cell: CellWeights,
    w: ScanWeights,
) -> tuple[Tensor, Tensor, Tensor]:
    """(T, B, ...) deterministic states, latents and posteriors after each of T steps.

    `state`, (B, D) and (B, latents, classes), gets no gradient.
    """
    chain: Any = SeeChain.apply
    found: tuple[Tensor, Tensor, Tensor] = chain(kernels, state, *inputs, *cell, *w)
    return found
