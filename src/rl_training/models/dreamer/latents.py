"""Categorical latents: probabilities with a uniform part, and one-hot samples of them."""

from __future__ import annotations

import torch
from torch import Tensor

UNIMIX = 0.01
"""Weight of the uniform distribution in every categorical, which keeps the KL finite."""


def sample_one_hot(probs: Tensor, wait: Tensor) -> Tensor:
    """Sample one-hot vectors with straight-through gradients of the probabilities.

    The sample is the argmin of exponential noise / probability; unlike `torch.multinomial`
    this has a fixed shape and needs no host sync.
    """
    chosen = (probs / wait).argmax(-1, keepdim=True)
    if torch.compiler.is_compiling():  # fused with what is around it
        hard = one_hot(chosen.squeeze(-1), probs.shape[-1]).to(probs.dtype)
    else:
        hard = torch.zeros_like(probs).scatter_(-1, chosen, 1.0)
    return hard + (probs - probs.detach())


def one_hot(index: Tensor, classes: int) -> Tensor:
    """Like torch's `one_hot`, but without its host sync."""
    return index.unsqueeze(-1) == torch.arange(classes, device=index.device)


def mixed_with_uniform(soft: Tensor) -> Tensor:
    """Probabilities of which 1% is uniform."""
    return (1.0 - UNIMIX) * soft + UNIMIX / soft.shape[-1]
