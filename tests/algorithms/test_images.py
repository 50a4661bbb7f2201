"""Networks on images: layouts, and every algorithm that takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_training import ManagedAlgorithm, TrainConfig, learn_seeds
from rl_training.envs.spaces import Spaces
from rl_training.envs.toys.catch import CATCH_ID
from rl_training.experiment.errors import (
    ConfigError,
    DataError,
    EnvironmentSetupError,
    RLTrainingError,
)
from rl_training.experiment.registry import algorithm_class, algorithm_names
from rl_training.models import ImageEncoder

from ..contract.small_runs import LOOP_KNOBS, known_knobs
from ..each import each

ON_IMAGES = [n for n in algorithm_names() if "image" in algorithm_class(n).observation_kinds]
OF_CHOICES = [n for n in ON_IMAGES if "discrete" in algorithm_class(n).action_kinds]


def agent(algo: str, env_id: str = CATCH_ID, **changes: Any) -> ManagedAlgorithm:
    family = algorithm_class(algo).loop
    plain = {"hidden_sizes": [16], **LOOP_KNOBS[family], **changes.pop("algo_kwargs", {})}
    knobs = known_knobs(algo, plain)
    values: dict[str, Any] = {
        "tensorboard": False,
        "device": "cpu",
        "eval_episodes": 2,
        "threads": 1,
    }
    if family == "offline":
        values |= {"total_updates": 3, "dataset": {"kind": "random", "steps": 60}}
    else:
        values["total_timesteps"] = 64
    return ManagedAlgorithm(
        TrainConfig(algo=algo, env_id=env_id, **{**values, **changes}, algo_kwargs=knobs)
    )


def encoder(shape: tuple[int, ...], stack: int) -> ImageEncoder:
    torch.manual_seed(0)
    return ImageEncoder(shape, stack).double()


def test_colours_first_and_last_are_one_image() -> None:
    images = torch.randint(0, 256, (5, 3, 40, 44), dtype=torch.uint8)
    first, last = encoder((3, 40, 44), 1), encoder((40, 44, 3), 1)
    torch.testing.assert_close(first(images), last(images.movedim(1, -1)))


def test_stacked_colours_are_channels() -> None:
    images = torch.randint(0, 256, (5, 2, 40, 44, 3), dtype=torch.uint8)
    stacked, flat = encoder((2, 40, 44, 3), 2), encoder((6, 40, 44), 1)
    channels = images.movedim(-1, 2).reshape(5, 6, 40, 44)
    torch.testing.assert_close(stacked(images), flat(channels))


def test_encoder_equals_plain_convolutions_of_bytes_over_255() -> None:
    images = torch.randint(0, 256, (2, 3, 4, 84, 84), dtype=torch.uint8)
    net = encoder((4, 84, 84), 4)
    x = images.flatten(0, 1).double() / 255
    for layer, stride in zip(net.convolutions, (4, 2, 1), strict=True):
        x = torch.relu(torch.nn.functional.conv2d(x, layer.weight, layer.bias, stride))
    assert net.out_dim == 7 * 7 * 64
    torch.testing.assert_close(net(images), x.reshape(2, 3, -1))


@each("size", [9, 16, 35, 36, 64, 96])
def test_sizes_of_images(size: int) -> None:
    net = encoder((size, size), 1)
    assert net(torch.zeros(1, size, size, dtype=torch.uint8)).shape == (1, net.out_dim)


@each("algo", OF_CHOICES)
def test_learns_acts_and_comes_back(algo: str, tmp_path: Any) -> None:
    learner = agent(algo, output_dir=str(tmp_path))
    before = {k: v.clone() for k, v in learner.algorithm.state_dict().items()}
    learner.learn(progress=False)
    after = learner.algorithm.state_dict()
    moved = [k for k in after if "convolutions" in k and not torch.equal(before[k], after[k])]
    assert moved, "the convolutions learn"
    images = np.random.default_rng(0).integers(0, 256, (7, 16, 16), dtype=np.uint8)
    actions, _ = learner.predict(images)
    assert actions.shape == (7,)
    assert learner.predict(images[0])[0] == actions[0]
    loaded = ManagedAlgorithm.load(learner.run_dir)
    np.testing.assert_array_equal(loaded.predict(images)[0], actions)
    assert loaded.evaluate(3).return_mean == learner.evaluate(3).return_mean


def test_several_seeds_at_once_are_runs_of_their_own(tmp_path: Any) -> None:
    """Batched convolutions, which cannot choose the order of their axes in memory."""
    config = agent("bc", output_dir=str(tmp_path), seed=1).config
    alone = ManagedAlgorithm(config).learn(progress=False).run_dir
    together = learn_seeds(config, [0, 1], progress=False).results[1].run_dir
    expected = ManagedAlgorithm.load(alone).algorithm.state_dict()
    for name, value in ManagedAlgorithm.load(together).algorithm.state_dict().items():
        torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=1e-4, msg=name)


def test_predict_refuses_other_images() -> None:
    learner = agent("dqn")
    with pytest.raises(DataError, match="whole numbers from 0 to 255, got float64;"):
        learner.predict(np.zeros((16, 16)))
    with pytest.raises(EnvironmentSetupError, match=r"\(n, 16, 16\)"):
        learner.predict(np.zeros((16, 17), np.uint8))
    for wrong in (256, -1):
        with pytest.raises(DataError, match=f"whole numbers from 0 to 255, got {wrong};"):
            learner.predict(np.full((16, 16), wrong))
    images = np.random.default_rng(0).integers(0, 256, (7, 16, 16), dtype=np.uint8)
    expected = learner.predict(images)[0]
    np.testing.assert_array_equal(learner.predict(images.astype(np.int64))[0], expected)
    np.testing.assert_array_equal(learner.predict(images.tolist())[0], expected)


@each("algo", sorted(set(algorithm_names()) - set(ON_IMAGES)))
def test_other_algorithms_refuse_images(algo: str) -> None:
    kind = min(algorithm_class(algo).action_kinds)
    bounds = ((-1.0,), (1.0,)) if kind == "box" else ((), ())
    spaces = Spaces(256, kind, 1, *bounds, image_shape=(16, 16))  # type: ignore[arg-type]
    cls = algorithm_class(algo)
    with pytest.raises(RLTrainingError, match=r"vector observations.*for images \(") as refused:
        cls(spaces, cls.Params())
    # what is advised takes this kind of actions, which DQN would not for a Box
    advised = str(refused.value).partition("for images (")[2].partition(")")[0].split(", ")
    assert set(advised) <= {n for n in ON_IMAGES if kind in algorithm_class(n).action_kinds}
    assert "bc" in advised or not cls.loop.startswith("offline")


def test_statistics_of_pixels_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^algo_kwargs\.normalize_observations: "):
        agent("ppo", algo_kwargs={"normalize_observations": True})
