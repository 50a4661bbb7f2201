"""Images in the replay: every frame stored once, every stack the environment's own."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import ConfigError, EnvironmentSetupError
from rl_training.replay.frames import LARGEST_NUMBER, FrameStore
from rl_training.replay.replay import Priorities, ReplayBuffer
from tests.watching import watched

from ..each import each
from .test_replay import CPU, GAMMA, Stream, reference

PIXELS = (3, 2)
PADDINGS = ("reset", "zero")


def spaces_of(stack: int) -> Spaces:
    shape = (stack, *PIXELS) if stack > 1 else PIXELS
    return Spaces(int(np.prod(shape)), "discrete", 5, image_shape=shape, frame_stack=stack)


@functools.cache
def frame(env: int, episode: int, time: int) -> np.ndarray:
    """A different image at every step of every episode."""
    rng = np.random.default_rng([env, episode, time])
    return rng.integers(1, 256, PIXELS, dtype=np.uint8)


def observation(at: Any, stack: int, padding: str) -> np.ndarray:
    """What a stacking wrapper shows at (environment, episode, step)."""
    env, episode, time = (int(x) for x in at)
    frames = []
    for t in range(time - stack + 1, time + 1):
        if t < 0 and padding == "zero":
            frames.append(np.zeros(PIXELS, np.uint8))
        else:
            frames.append(frame(env, episode, max(t, 0)))
    return np.stack(frames) if stack > 1 else frames[0]


class ImageStream(Stream):
    """The stream of the vector tests, seen through a camera."""

    def __init__(self, num_envs: int, stack: int, padding: str, longest: int, seed: int = 0):
        self.stack, self.padding, self.longest = stack, padding, longest
        super().__init__(num_envs, spaces_of(stack), seed)

    def _length(self) -> int:
        return int(self.rng.integers(1, self.longest))

    def vector_step(self) -> tuple[np.ndarray, ...]:
        obs, action, reward, next_obs, terminated, truncated = super().vector_step()
        seen = [np.stack([self.show(at) for at in steps]) for steps in (obs, next_obs)]
        return seen[0], action, reward, seen[1], terminated, truncated

    def show(self, at: Any) -> np.ndarray:
        return observation(at, self.stack, self.padding)


def replay_for(
    stream: ImageStream, capacity: int, n_step: int, prioritised: bool = False
) -> ReplayBuffer:
    rows = capacity // stream.num_envs * stream.num_envs
    priorities = Priorities(rows, CPU) if prioritised else None
    return ReplayBuffer(
        capacity,
        stream.num_envs,
        stream.spaces,
        CPU,
        gamma=GAMMA,
        n_step=n_step,
        priorities=priorities,
    )


def rows_in_use(buffer: ReplayBuffer) -> list[int]:
    first = buffer._first * buffer.num_envs
    return [(first + i) % buffer.capacity for i in range(len(buffer))]


def assert_true_to(buffer: ReplayBuffer, stream: ImageStream, n_step: int) -> None:
    """Every row in use is the transition that the definition gives."""
    complete = len(stream.history[0]) - n_step + 1
    newest = [
        (start, env)
        for start in range(max(complete - len(buffer) // stream.num_envs, 0), complete)
        for env in range(stream.num_envs)
    ]
    rows = rows_in_use(buffer)
    assert len(rows) == len(newest)
    if not rows:
        return
    batch = buffer.gather(torch.tensor(rows))
    assert batch.obs.dtype == torch.uint8
    assert batch.obs.shape == (len(rows), *stream.spaces.image_shape)
    for i, (start, env) in enumerate(newest):
        expected = reference(stream.history[env], start, n_step)
        np.testing.assert_array_equal(batch.obs[i].numpy(), stream.show(expected.obs))
        np.testing.assert_array_equal(batch.next_obs[i].numpy(), stream.show(expected.next_obs))
        assert int(batch.action[i]) == expected.action
        assert float(batch.reward[i]) == pytest.approx(expected.reward, abs=1e-5)
        assert float(batch.discount[i]) == pytest.approx(expected.discount)


@each("padding", PADDINGS)
@each("n_step", [1, 3])
@each("num_envs", [1, 3])
@each("stack", [1, 4])
def test_every_transition_is_the_environments_own(
    stack: int, num_envs: int, n_step: int, padding: str
) -> None:
    stream = ImageStream(num_envs, stack, padding, longest=30)
    buffer = replay_for(stream, 60, n_step)
    for step in range(200):
        buffer.add(*stream.vector_step())
        if step % 17 == 0 or step > 190:
            assert_true_to(buffer, stream, n_step)
    assert len(buffer) > 30


@pytest.mark.parametrize("prioritised", [False, True])
def test_short_episodes_cost_the_oldest_transitions_and_nothing_else(prioritised: bool) -> None:
    stream = ImageStream(2, 4, "zero", longest=3)  # one or two steps, up to five frames each
    buffer = replay_for(stream, 400, 3, prioritised)
    assert buffer.frames is not None
    lengths = []
    for step in range(500):
        buffer.add(*stream.vector_step())
        lengths.append(len(buffer))
        if step % 50 == 49:
            assert_true_to(buffer, stream, 3)
            drawn = buffer.sample(256)
            if prioritised:
                assert set(drawn.index.tolist()) <= set(rows_in_use(buffer))
    assert 100 < lengths[-1] < 400, "frames ran out before rows did"
    assert buffer.frames.written > buffer.frames.capacity


@pytest.mark.parametrize("n_step", [1, 5])
def test_the_smallest_replay_holds_the_frames_of_its_windows(n_step: int) -> None:
    """Every step an episode of its own, with all the frames that a stack can have."""
    stream = ImageStream(2, 4, "zero", longest=2)
    buffer = replay_for(stream, 2 * (n_step + 1), n_step)
    for step in range(100):
        buffer.add(*stream.vector_step())
        assert_true_to(buffer, stream, n_step)
        assert len(buffer) == 2 * min(max(step + 2 - n_step, 0), n_step + 1)


def test_no_transition_goes_before_one_of_its_frames_does() -> None:
    stream = ImageStream(1, 4, "zero", longest=3)
    buffer = replay_for(stream, 60, 1)
    frames: Any = buffer.frames
    with watched(frames.add) as calls:
        for _ in range(300):
            buffer.add(*stream.vector_step())
            assert len(buffer) == min(sum(call.result[2] >= frames.oldest for call in calls), 60)
    assert len(buffer) < 60


def test_draws_reach_every_row_in_use_and_no_other() -> None:
    stream = ImageStream(1, 4, "zero", longest=3)
    buffer = replay_for(stream, 60, 1)
    for _ in range(200):
        buffer.add(*stream.vector_step())
    torch.manual_seed(0)
    held = {tuple(image.flatten().tolist()) for image in buffer.gather(_index(buffer)).obs}
    drawn = {tuple(image.flatten().tolist()) for image in buffer.sample(4000).obs}
    assert drawn == held


def _index(buffer: ReplayBuffer) -> torch.Tensor:
    return torch.tensor(rows_in_use(buffer))


@each("prioritised", [False, True])
@each(
    ("steps", "padding", "longest", "capacity"),
    [
        *((steps, "reset", 8, 90) for steps in (7, 61, 333)),
        (333, "zero", 3, 400),  # frames run out before rows do
    ],
)
def test_a_loaded_replay_goes_on_exactly(
    steps: int, padding: str, longest: int, capacity: int, prioritised: bool
) -> None:
    stream = ImageStream(2, 4, padding, longest)
    one, other = (replay_for(stream, capacity, 3, prioritised) for _ in range(2))
    for _ in range(steps):
        one.add(*stream.vector_step())
    state = one.training_state()
    other.load_training_state(state)
    for _ in range(200):
        step = stream.vector_step()
        one.add(*step)
        other.add(*step)
        assert len(other) == len(one)
    assert _written(other) == _written(one)
    assert_true_to(other, stream, 3)
    draws = []
    for buffer in (one, other):
        torch.manual_seed(1)
        draws.append(buffer.sample(64))
    for a, b in zip(*draws, strict=True):
        assert a is b is None or torch.equal(a, b)


def _written(buffer: ReplayBuffer) -> int:
    assert buffer.frames is not None
    return buffer.frames.written


def test_an_episode_given_up_is_cut() -> None:
    stream = ImageStream(1, 4, "reset", longest=30)
    buffer = replay_for(stream, 50, 1)
    for _ in range(3):
        buffer.add(*stream.vector_step())
    buffer.cut(np.ones(1, np.bool_))
    moment = (0, 99, 0)
    obs, following = stream.show(moment)[None], stream.show((0, 99, 1))[None]
    no = np.zeros(1, np.bool_)
    buffer.add(obs, np.zeros(1, np.int64), np.zeros(1), following, no, no)
    batch = buffer.gather(torch.tensor([3]))
    np.testing.assert_array_equal(batch.obs.numpy(), obs)
    np.testing.assert_array_equal(batch.next_obs.numpy(), following)


def test_frames_are_stored_once() -> None:
    spaces = spaces_of(4)
    store = FrameStore(1000, 1, spaces, CPU)
    stream = ImageStream(1, 4, "reset", longest=10**6)
    stream.length = [10**6]
    for _ in range(100):
        obs, _, _, next_obs, terminated, truncated = stream.vector_step()
        store.add(obs, next_obs, terminated | truncated)
    assert store.written == 101


def test_what_is_no_moving_stack_is_refused() -> None:
    stream = ImageStream(1, 4, "reset", longest=30)
    buffer = replay_for(stream, 50, 1)
    no = np.zeros(1, np.bool_)
    obs, other = stream.show((0, 0, 5))[None], stream.show((0, 1, 6))[None]
    with pytest.raises(EnvironmentSetupError, match="stack_size"):
        buffer.add(obs, np.zeros(1, np.int64), np.zeros(1), other, no, no)


def test_memory_is_that_of_single_frames() -> None:
    atari = Spaces(4 * 84 * 84, "discrete", 4, image_shape=(4, 84, 84), frame_stack=4)
    million = ReplayBuffer.memory_needed(1_000_000, atari)
    assert 7.0e9 < million < 7.7e9  # stacked on both sides it would be 56 GB
    with pytest.raises(ConfigError, match="buffer_capacity"):
        FrameStore(LARGEST_NUMBER + 1, 1, atari, CPU)
