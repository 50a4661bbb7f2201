"""Upper limits of knobs that multiply the work of one step or update.

They are far above any use: beyond them a run would seem to hang, or run out of memory.
"""

from __future__ import annotations

from typing import Any

LIMITS = {
    "gradient_updates_per_step": 1_000,
    "epochs": 1_000,
    "discriminator_updates": 10_000,
    "model_max_epochs": 100_000,
    "model_patience": 10_000,
    "rollout_length": 1_000_000,
    "final_rollout_length": 1_000_000,
    "batch_length": 100_000,
    "n_step": 100_000,
    "memory_size": 100_000,
    "sequence_length": 100_000,
    "burn_in": 100_000,
    "num_action_samples": 100_000,
    "num_action_quantiles": 100_000,
    "num_target_quantiles": 100_000,
    "num_quantiles": 100_000,
    "num_atoms": 100_000,
    "num_fractions": 100_000,
    "num_cosines": 100_000,
    "num_critics": 1_000,
    "num_members": 1_000,
    "batch_size": 10_000_000,
    "model_batch_size": 10_000_000,
    "hidden_sizes": 100_000,
    "policy_hidden_sizes": 100_000,
    "critic_hidden_sizes": 100_000,
    "model_hidden_sizes": 100_000,
}


def within_limit(knob: str, value: Any) -> Any:
    """`value` itself; a number, or a tuple with a number, above the limit of `knob` is refused."""
    limit = LIMITS.get(knob)
    if limit is not None and value is not None:
        asked = max(value) if isinstance(value, tuple) else value
        if asked > limit:
            raise ValueError(f"expected at most {limit:,}, got {asked:g}; lower it")
    return value
