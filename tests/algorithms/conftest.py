"""Data shared by the algorithm tests, made once."""

import pytest

from rl_training.data.sources import load_transition_dataset


@pytest.fixture(scope="session")
def pendulum():
    """First half of the rows from an expert, second half random; all episodes are cut."""
    return load_transition_dataset("pendulum-mixed")


@pytest.fixture(scope="session")
def cartpole():
    """Discrete actions; expert episodes are cut, random ones fall."""
    return load_transition_dataset("cartpole-mixed")
