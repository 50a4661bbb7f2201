"""Data shared by the algorithm tests, made once, and one torch thread."""

import pytest
import torch

from rl_training.data.sources import load_transition_dataset


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Scripted data are made anew (a second) and leave nothing in the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def pendulum():
    """First half of the rows from an expert, second half random; all episodes are cut."""
    return load_transition_dataset("pendulum-mixed")


@pytest.fixture(scope="session")
def cartpole():
    """Discrete actions; expert episodes are cut, random ones fall."""
    return load_transition_dataset("cartpole-mixed")
