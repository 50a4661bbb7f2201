"""Memory of earlier observations: a GRU or LSTM in front of an algorithm's networks.

Cho et al. 2014, arXiv:1406.1078; Hochreiter and Schmidhuber 1997. Networks get the hidden state,
followed by the observation, so that masks of actions stay the last components.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.encoders import Encoder, Observed

MemoryKind = Literal["none", "gru", "lstm"]


class GRUState(NamedTuple):
    hidden: Tensor  # (B, H)


class LSTMState(NamedTuple):
    hidden: Tensor  # (B, H)
    cell: Tensor  # (B, H)


MemoryState = GRUState | LSTMState


class Past(NamedTuple):
    """(B, T, ...) consecutive observations of B streams, which may span several episodes."""

    obs: Tensor
    first: Tensor  # whether each begins an episode
    state: MemoryState  # of the memory before the first one
    burn_in: int
    """How many only bring the state up to date: without gradients, and not among the outputs."""


class GRUGates(NamedTuple):
    """What a step of a GRU computes on its way: the gates reset and update, and the candidate."""

    both: Tensor  # (B, 2 H) reset and update
    candidate: Tensor


class LSTMGates(NamedTuple):
    """What a step of an LSTM computes on its way."""

    into: Tensor
    keep: Tensor
    candidate: Tensor
    out: Tensor
    squashed: Tensor  # tanh of the new cell


def gru_step(given: Tensor, own: Tensor, hidden: Tensor) -> tuple[Tensor, GRUGates]:
    """The hidden state after one step; `given` and `own` are the products, with biases, of the
    input and of the hidden state, (B, 3 H) in the order reset, update, candidate."""
    n = hidden.shape[-1]
    both = torch.sigmoid(given[..., : 2 * n] + own[..., : 2 * n])
    reset, update = both.chunk(2, -1)
    candidate = torch.tanh(torch.addcmul(given[..., 2 * n :], reset, own[..., 2 * n :]))
    return torch.lerp(candidate, hidden, update), GRUGates(both, candidate)


def lstm_step(given: Tensor, own: Tensor, cell: Tensor) -> tuple[LSTMState, LSTMGates]:
    """The state after one step; `given` and `own` are the products of the input and of the hidden
    state, (B, 4 H) in the order input, forget, candidate, output."""
    into, keep, candidate, out = (given + own).chunk(4, -1)
    into, keep, out = torch.sigmoid(into), torch.sigmoid(keep), torch.sigmoid(out)
    candidate = torch.tanh(candidate)
    cell = torch.addcmul(keep * cell, into, candidate)
    squashed = torch.tanh(cell)
    return LSTMState(out * squashed, cell), LSTMGates(into, keep, candidate, out, squashed)


class GRUScan(torch.autograd.Function):
    """`gru_step` over (T, B, ...) inputs, with the gradients of all steps' weights in one product.

    PyTorch's own gradient has a dozen small operations per step, most of the time of an update.
    """

    @staticmethod
    def forward(
        ctx: Any,
        given: Tensor,
        going: Tensor,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
    ) -> Tensor:
        steps, transposed = [], weight.t()
        after = []
        for now, goes_on in zip(given.unbind(0), going.unbind(0), strict=True):
            before = hidden * goes_on
            own = torch.addmm(bias, before, transposed)
            hidden, gates = gru_step(now, own, before)
            n = hidden.shape[-1]
            steps.append((before, own[..., 2 * n :], *gates))
            after.append(hidden)
        ctx.save_for_backward(going, weight, *map(torch.stack, zip(*steps, strict=True)))
        return torch.stack(after)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        going, weight, before, own, both, candidate = ctx.saved_tensors
        reset, update = both.chunk(2, -1)
        # what a gradient of the new hidden state is multiplied by, for each product's gradient
        of_candidate = (1.0 - update) * (1.0 - candidate.square())
        of_update = (before - candidate) * update * (1.0 - update)
        of_reset = of_candidate * own * reset * (1.0 - reset)
        factors = torch.stack([of_reset, of_update, of_candidate * reset], 2)  # (T, B, 3, H)
        hidden = torch.zeros_like(before[0])
        products, hiddens = [], []
        for t in range(len(going) - 1, -1, -1):
            hidden = hidden + gradients[0][t]
            product = (hidden.unsqueeze(1) * factors[t]).flatten(1)
            products.append(product)
            hiddens.append(hidden)
            hidden = torch.addmm(hidden * update[t], product, weight) * going[t]
        product, hidden = torch.stack(products[::-1]), torch.stack(hiddens[::-1])
        n = hidden.shape[-1]
        given = torch.cat([product[..., : 2 * n], hidden * of_candidate], -1)
        flat = product.flatten(0, 1)
        return given, None, None, flat.t() @ before.flatten(0, 1), flat.sum(0)


class LSTMScan(torch.autograd.Function):
    """`lstm_step` over (T, B, ...) inputs, as `GRUScan` is `gru_step`."""

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, going: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor
    ) -> Tensor:
        steps, transposed = [], weight.t()
        state = LSTMState(hidden, cell)
        after = []
        for now, goes_on in zip(given.unbind(0), going.unbind(0), strict=True):
            before = masked(state, goes_on)
            assert isinstance(before, LSTMState)
            state, gates = lstm_step(now, before.hidden @ transposed, before.cell)
            steps.append((*before, *gates))
            after.append(state.hidden)
        ctx.save_for_backward(going, weight, *map(torch.stack, zip(*steps, strict=True)))
        return torch.stack(after)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        going, weight, before, cell_before, into, keep, candidate, out, squashed = ctx.saved_tensors
        of_cell = out * (1.0 - squashed.square())
        of_out = squashed * out * (1.0 - out)
        factors = torch.stack(
            [
                candidate * into * (1.0 - into),
                cell_before * keep * (1.0 - keep),
                into * (1.0 - candidate.square()),
            ],
            2,
        )
        hidden = cell = torch.zeros_like(before[0])
        products = []
        for t in range(len(going) - 1, -1, -1):
            hidden = hidden + gradients[0][t]
            cell = torch.addcmul(cell, hidden, of_cell[t])
            inner = (cell.unsqueeze(1) * factors[t]).flatten(1)
            product = torch.cat([inner, hidden * of_out[t]], -1)
            products.append(product)
            hidden = (product @ weight) * going[t]
            cell = cell * keep[t] * going[t]
        given = torch.stack(products[::-1])
        return given, None, None, None, given.flatten(0, 1).t() @ before.flatten(0, 1)


class Cell(nn.Module):
    """The weights of a GRU or LSTM.

    Orthogonal weights gate by gate and no biases, except 1 for the LSTM's forget gate.
    """

    is_initialized = True

    def __init__(self, in_dim: int, size: int, kind: MemoryKind) -> None:
        super().__init__()
        self.size, self.is_lstm = size, kind == "lstm"
        gates = 4 if self.is_lstm else 3
        self.input = nn.Linear(in_dim, gates * size)
        # the GRU's own bias of its candidate is inside the reset gate
        self.recurrent = nn.Linear(size, gates * size, bias=not self.is_lstm)
        for layer in (self.input, self.recurrent):
            for gate in layer.weight.data.chunk(gates):
                nn.init.orthogonal_(gate)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        if self.is_lstm:
            nn.init.ones_(self.input.bias.data[size : 2 * size])

    def forward(self, given: Tensor, state: MemoryState) -> MemoryState:
        """The state after a step whose product of the input is `given`."""
        own = self.recurrent(state.hidden)
        if isinstance(state, LSTMState):
            return lstm_step(given, own, state.cell)[0]
        return GRUState(gru_step(given, own, state.hidden)[0])

    def scan(self, given: Tensor, going: Tensor, state: MemoryState) -> Tensor:
        """(T, B, H) hidden states of steps with such inputs; before a step the state is multiplied
        by `going`, (T, B, 1). No gradient reaches the first state."""
        weight, bias = self.recurrent.weight, self.recurrent.bias
        if isinstance(state, LSTMState):
            hidden: Tensor = LSTMScan.apply(given, going, *state, weight)  # type: ignore[no-untyped-call]
        else:
            hidden = GRUScan.apply(given, going, *state, weight, bias)  # type: ignore[no-untyped-call]
        return hidden


class RecurrentMemory(nn.Module):
    """The hidden state of a GRU or LSTM over the observations of an episode."""

    def __init__(self, observed: Observed, size: int, kind: MemoryKind) -> None:
        super().__init__()
        assert kind != "none"
        self.encoder = None if isinstance(observed, int) else observed
        in_dim = observed if isinstance(observed, int) else observed.out_dim
        self.size = size
        self.seen = in_dim if self.encoder is None else 0
        """Components of the observation that networks get beside the hidden state; none of an
        image, which the memory's own encoder has read."""
        self.cell = Cell(in_dim, size, kind)

    @property
    def out_dim(self) -> int:
        return self.size + self.seen

    def initial(self, rows: int) -> MemoryState:
        """The state at a reset."""
        zeros = self.cell.recurrent.weight.new_zeros(rows, self.size)
        return LSTMState(zeros, zeros.clone()) if self.cell.is_lstm else GRUState(zeros)

    def step(self, obs: Tensor, state: MemoryState) -> MemoryState:
        """The state after (B, ...) observations."""
        after: MemoryState = self.cell(self._inputs(obs), state)
        return after

    def scan(self, past: Past) -> Tensor:
        """(B, T - burn_in, H) hidden states; every episode begins with a state of zeros."""
        state, burn_in = past.state, past.burn_in
        # time first, so that every step is one block of memory
        given = self._inputs(past.obs).transpose(0, 1).contiguous()
        going = (~past.first).t().to(given.dtype).unsqueeze(-1)
        with torch.no_grad():
            for now, goes_on in zip(given[:burn_in], going[:burn_in], strict=True):
                state = self.cell(now, masked(state, goes_on))
        return self.cell.scan(given[burn_in:], going[burn_in:], state).transpose(0, 1)

    def _inputs(self, obs: Tensor) -> Tensor:
        layer = self.cell.input
        features = obs if self.encoder is None else self.encoder(obs)
        return F.linear(features, layer.weight, layer.bias)

    def beside(self, obs: Tensor, *hidden: Tensor) -> Tensor:
        """What networks get: hidden states, and the observation where it is a vector."""
        return torch.cat([*hidden, obs] if self.seen else hidden, -1)


def masked(state: MemoryState, goes_on: Tensor) -> MemoryState:
    """Zeros in the rows where `goes_on`, (B, 1), is 0."""
    return type(state)(*(part * goes_on for part in state))


class RolloutCarry(NamedTuple):
    """What policy and value remember in a rollout."""

    policy: MemoryState
    value: MemoryState


class RolloutMemory(nn.Module):
    """A memory of the policy and one of the value; what each of the two networks gets of both is
    `for_policy` and `for_value`."""

    def __init__(self, policy: RecurrentMemory, value: RecurrentMemory) -> None:
        super().__init__()
        self.policy, self.value = policy, value

    def initial(self, rows: int) -> RolloutCarry:
        """The carry at a reset."""
        return RolloutCarry(self.policy.initial(rows), self.value.initial(rows))

    def step(self, obs: Tensor, carry: RolloutCarry) -> tuple[Tensor, RolloutCarry]:
        """What the networks get of (B, ...) observations, and the carry after them."""
        policy, value = self.policy.step(obs, carry.policy), self.value.step(obs, carry.value)
        seen = self.policy.beside(obs, policy.hidden, value.hidden)
        return seen, RolloutCarry(policy, value)

    def scan(self, obs: Tensor, first: Tensor, carry: RolloutCarry) -> Tensor:
        """(S, L, ...) what the networks get of sequences of observations."""
        policy = self.policy.scan(Past(obs, first, carry.policy, burn_in=0))
        value = self.value.scan(Past(obs, first, carry.value, burn_in=0))
        return self.policy.beside(obs, policy, value)

    @property
    def for_policy(self) -> Encoder:
        return OwnMemory(self.policy, is_first=True)

    @property
    def for_value(self) -> Encoder:
        return OwnMemory(self.value, is_first=False)


class OwnMemory(Encoder):
    """One of several hidden states, and the observation that follows them: the first state where
    `is_first`, which may be the only one, else the last."""

    def __init__(self, memory: RecurrentMemory, is_first: bool) -> None:
        super().__init__()
        self.size, self.seen, self.is_first = memory.size, memory.seen, is_first
        self.out_dim = memory.out_dim

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_first:
            return x[..., x.shape[-1] - self.out_dim :]
        own = x[..., : self.size]
        return torch.cat([own, x[..., x.shape[-1] - self.seen :]], -1) if self.seen else own
