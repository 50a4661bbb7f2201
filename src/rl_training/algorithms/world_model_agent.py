"""An agent with a world model: what it observes, predicts and remembers, and how it acts."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Act, Algorithm
from rl_training.algorithms.learner import P
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import EnvironmentSetupError
from rl_training.models import Carry, OwnNetwork, Policy
from rl_training.models.dreamer import (
    RSSM,
    DreamerSize,
    Head,
    ImaginedPolicy,
    LatentState,
    ObservationDecoder,
    ObservationEncoder,
    Sight,
    TwoHotHead,
    exponential_noise,
    image_stages,
    mask_state,
    one_hot,
    sample_one_hot,
)
from rl_training.replay.sequences import Context, SequenceBatch


class OpenLoop(NamedTuple):
    """(B, T, ...) open-loop predictions after some observed steps."""

    obs: Tensor  # images as `seen` returns them, vectors unchanged
    reward: Tensor
    continues: Tensor


class DreamerCarry(NamedTuple):
    """The recurrent state for acting: the latent state and the last action."""

    deter: Tensor  # (B, D)
    stoch: Tensor  # (B, latents, classes), one-hot
    action: Tensor  # (B, A), one-hot for Discrete


class WorldModelAgent(Algorithm[P, SequenceBatch]):
    """A world model and a policy on its latent states; a subclass trains them."""

    action_kinds: ClassVar[frozenset[str]] = frozenset({"box", "discrete"})
    takes_masks: ClassVar[bool] = False
    observation_kinds: ClassVar[frozenset[str]] = frozenset({"vector", "image"})
    acts_by_tensors: ClassVar[bool] = True
    recurrent = True

    def __init__(
        self, spaces: Spaces, params: P, size: DreamerSize, normalize_observations: bool
    ) -> None:
        super().__init__(spaces, params, normalize_observations)
        self.sight = Sight(spaces, self.name())
        own = self.own_network("encoder", self.sight.in_shape, None)
        self.encoder: ObservationEncoder | OwnNetwork = own or self.sight.encoder(size)
        self.rssm = RSSM(size, spaces.action_dim, self.encoder.out_dim)
        width = self.rssm.feature_dim
        self.decoder: ObservationDecoder = self.sight.decoder(width, size)
        self.reward = TwoHotHead(width, size.units, 1)
        self.continues = Head(width, size.units, 1, 1)
        actions = spaces.action_dim
        outputs = actions if spaces.is_discrete else 2 * actions
        head = self.own_network("policy", (width,), outputs)
        self.actor = ImaginedPolicy(width, size.units, actions, spaces.is_discrete, head)

    @classmethod
    def takes_task(cls, spaces: Spaces) -> bool:
        if not super().takes_task(spaces):
            return False
        try:
            image = Sight(spaces, cls.name()).image
            if image is not None:
                image_stages(*image[1:])
        except EnvironmentSetupError:  # stacked colour images, or a size that cannot be halved
            return False
        return True

    def seen(self, obs: Tensor) -> Tensor:
        """Convert observations to the encoder's input, which is also the decoder's target."""
        return self.sight.seen(obs)

    def images(self, seen: Tensor) -> Tensor:
        """(..., channels, height, width) of what `seen` gave, where there are images."""
        return self.sight.images(seen)

    @property
    def policy(self) -> Policy:
        """The policy on the model's features, not on observations."""
        return self.actor

    def acting_networks(self) -> dict[str, nn.Module]:
        return {"policy": self.actor, "encoder": self.encoder, "sequence model": self.rssm}

    def latent(self, context: Context) -> LatentState:
        """A stored state in the model's format."""
        stoch = one_hot(context.stoch, self.rssm.size.classes)
        return LatentState(context.deter, stoch.to(context.deter.dtype))

    def initial_carry(self, rows: int) -> DreamerCarry:
        state = self.rssm.initial(rows)
        return DreamerCarry(*state, state.deter.new_zeros(rows, self.spaces.action_dim))

    @torch.no_grad()
    def act(self, obs: Tensor, *, explore: bool, carry: Carry | None = None) -> Act:
        """Act; without exploration neither the latent state nor the action is sampled."""
        before = self.initial_carry(len(obs)) if carry is None else carry
        state = LatentState(before.deter, before.stoch)
        deter = self.rssm.recur(state, self.rssm.read_action(before.action))
        posterior = self.rssm.posterior(deter, self.rssm.look(self.encoder(self.seen(obs))))
        if explore:
            state = LatentState(
                deter, sample_one_hot(posterior, exponential_noise(torch.rand_like(posterior)))
            )
            action = self.actor.sample(state.features)
        else:
            likeliest = one_hot(posterior.argmax(-1), self.rssm.size.classes)
            state = LatentState(deter, likeliest.to(deter.dtype))
            action = self.actor.mode(state.features)
        if self.spaces.is_discrete:
            return Act(action.argmax(-1), DreamerCarry(*state, action))
        action = action.clamp(-1.0, 1.0)
        return Act(action, DreamerCarry(*state, action))

    def with_action(self, carry: Carry, action: Tensor) -> Carry:
        action = action.to(carry.deter.device)
        if self.spaces.is_discrete:
            action = one_hot(action, self.spaces.action_dim)
        return carry._replace(action=action.to(carry.deter.dtype))

    def context(self, carry: DreamerCarry) -> Context:
        """The latent state of a carry in the replay's format."""
        return Context(carry.deter, carry.stoch.argmax(-1))

    @torch.no_grad()
    def open_loop(self, batch: SequenceBatch, shown: int) -> OpenLoop:
        """Predict the steps of a batch open loop, after observing the first few.

        From then on the model gets only the actions and takes the most likely latent state in
        each step. Where another episode starts, it gets only that information.
        """
        rssm, embed = self.rssm, self.encoder(self.seen(batch.obs))
        going = (~batch.first).to(embed.dtype).unsqueeze(-1)
        acted, looked = rssm.read_action(batch.action * going), rssm.look(embed)
        state, states = self.latent(batch.context), []
        for t in range(embed.shape[1]):
            deter = rssm.recur(mask_state(state, going[:, t]), acted[:, t])
            expected = rssm.posterior(deter, looked[:, t]) if t < shown else rssm.prior(deter)
            likeliest = one_hot(expected.argmax(-1), rssm.size.classes)
            state = LatentState(deter, likeliest.to(deter.dtype))
            states.append(state.features)
        features = torch.stack(states, 1)
        obs: Tensor = self.decoder(features)
        return OpenLoop(
            self.sight.expected(obs),
            self.reward.mean(self.reward(features)),
            torch.sigmoid(self.continues(features).squeeze(-1)),
        )
