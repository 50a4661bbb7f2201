"""The replay against a reference made of Python lists."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rl_training.envs.spaces import Spaces
from rl_training.experiment import memory
from rl_training.experiment.errors import CheckpointError, ConfigError
from rl_training.replay.replay import Priorities, ReplayBuffer

from ..each import each

CPU = torch.device("cpu")
GAMMA = 0.9
BOX = Spaces(3, "box", 2, (-1.0, -1.0), (1.0, 1.0))
DISCRETE = Spaces(3, "discrete", 5)
N_STEPS = (1, 2, 3, 5)


class Step(NamedTuple):
    """One environment step of one environment, as plain values."""

    obs: list[float]
    action: Any
    reward: float
    next_obs: list[float]
    terminated: bool
    truncated: bool


class Expected(NamedTuple):
    obs: list[float]
    action: Any
    reward: float
    next_obs: list[float]
    discount: float


class Stream:
    """Environments whose episodes last 1 to 9 steps and end by termination, truncation or both;
    observations are (environment, episode, step), so each is unique."""

    def __init__(self, num_envs: int, spaces: Spaces, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.spaces, self.num_envs = spaces, num_envs
        self.history: list[list[Step]] = [[] for _ in range(num_envs)]
        self.episode = [0] * num_envs
        self.time = [0] * num_envs
        self.length = [self._length() for _ in range(num_envs)]

    def _length(self) -> int:
        return int(self.rng.integers(1, 10))

    def vector_step(self) -> tuple[np.ndarray, ...]:
        for env in range(self.num_envs):
            obs = [float(env), float(self.episode[env]), float(self.time[env])]
            self.time[env] += 1
            next_obs = [float(env), float(self.episode[env]), float(self.time[env])]
            terminated = truncated = False
            if self.time[env] == self.length[env]:
                terminated, truncated = [(True, False), (False, True), (True, True)][
                    int(self.rng.choice(3, p=[0.45, 0.45, 0.1]))
                ]
                self.episode[env] += 1
                self.time[env], self.length[env] = 0, self._length()
            if self.spaces.is_discrete:
                action: Any = int(self.rng.integers(5))
            else:
                action = self.rng.uniform(-1, 1, 2).astype(np.float32).tolist()
            reward = float(self.rng.normal())
            step = Step(obs, action, reward, next_obs, terminated, truncated)
            self.history[env].append(step)
        steps = [env_history[-1] for env_history in self.history]
        action_type = np.int64 if self.spaces.is_discrete else np.float32
        return (
            np.array([s.obs for s in steps], np.float32),
            np.array([s.action for s in steps], action_type),
            np.array([s.reward for s in steps], np.float64),
            np.array([s.next_obs for s in steps], np.float32),
            np.array([s.terminated for s in steps]),
            np.array([s.truncated for s in steps]),
        )


def reference(history: list[Step], start: int, n: int) -> Expected:
    """The n-step transition from `start`, by the definition."""
    total, discount = 0.0, 1.0
    for k in range(n):
        step = history[start + k]
        total += GAMMA**k * step.reward
        discount = GAMMA ** (k + 1)
        if step.terminated:
            discount = 0.0
        if step.terminated or step.truncated:
            break
    first = history[start]
    return Expected(first.obs, first.action, total, step.next_obs, discount)


def expected_rows(stream: Stream, steps: int, n: int) -> dict[int, Expected]:
    """Row -> transition: the newest `steps` vector steps with a window of n steps."""
    complete = len(stream.history[0]) - n + 1
    return {
        (start % steps) * stream.num_envs + env: reference(stream.history[env], start, n)
        for start in range(max(complete - steps, 0), complete)
        for env in range(stream.num_envs)
    }


def assert_rows(buffer: ReplayBuffer, rows: dict[int, Expected]) -> None:
    assert len(buffer) == len(rows)
    if not rows:
        return
    index = sorted(rows)
    batch = buffer.gather(torch.tensor(index))
    assert batch.obs.tolist() == [rows[i].obs for i in index]
    assert batch.next_obs.tolist() == [rows[i].next_obs for i in index]
    assert batch.action.tolist() == [rows[i].action for i in index]
    rewards = torch.tensor([rows[i].reward for i in index])
    torch.testing.assert_close(batch.reward, rewards, rtol=1e-6, atol=1e-6)
    assert batch.discount.equal(torch.tensor([rows[i].discount for i in index]))


def make(
    num_envs: int, n_step: int, spaces: Spaces = BOX, steps: int = 11, prioritised: bool = False
) -> ReplayBuffer:
    priorities = Priorities(steps * num_envs, CPU) if prioritised else None
    return ReplayBuffer(
        steps * num_envs, num_envs, spaces, CPU, gamma=GAMMA, n_step=n_step, priorities=priorities
    )


@each("n_step", N_STEPS)
@each("num_envs", [1, 3])
@each("spaces", [BOX, DISCRETE], ids=["box", "discrete"])
def test_every_row_equals_the_reference_at_every_step(
    spaces: Spaces, num_envs: int, n_step: int
) -> None:
    stream, buffer = Stream(num_envs, spaces), make(num_envs, n_step, spaces)
    for _ in range(60):  # five times around
        buffer.add(*stream.vector_step())
        assert_rows(buffer, expected_rows(stream, buffer.steps, n_step))
    batch = buffer.sample(4)
    assert batch.action.dtype == (torch.int64 if spaces.is_discrete else torch.float32)
    assert batch.index is None
    assert batch.weight is None
    assert all(getattr(batch, name).dtype == torch.float32 for name in ("obs", "reward"))


def test_stream_covers_the_awkward_cases() -> None:
    """What the reference is compared on: both ends, inside and at the edges of windows."""
    stream = Stream(3, BOX)
    for _ in range(60):
        stream.vector_step()
    discounts = {
        round(reference(history, start, 3).discount, 6)
        for history in stream.history
        for start in range(58)
    }
    assert discounts == {0.0, 0.9, 0.81, 0.729}
    steps = [step for history in stream.history for step in history]
    ends = {(s.terminated, s.truncated) for s in steps}
    assert ends == {(False, False), (True, False), (False, True), (True, True)}


@each("prioritised", [False, True])
@each("n_step", N_STEPS)
@each("num_envs", [1, 3])
def test_only_valid_transitions_are_drawn(num_envs: int, n_step: int, prioritised: bool) -> None:
    torch.manual_seed(0)
    stream, buffer = Stream(num_envs, BOX, seed=1), make(num_envs, n_step, prioritised=prioritised)
    for step in range(40):
        buffer.add(*stream.vector_step())
        if step + 1 < n_step:
            with pytest.raises(ConfigError, match=r"^algo_kwargs\.learning_starts: "):
                buffer.sample(1)
            continue
        rows = expected_rows(stream, buffer.steps, n_step)
        known = {tuple(row.obs): row for row in rows.values()}
        batch = buffer.sample(500)
        drawn = [tuple(obs) for obs in batch.obs.tolist()]
        assert set(drawn) <= set(known)
        assert batch.next_obs.tolist() == [known[obs].next_obs for obs in drawn]
        if len(known) <= 33:
            assert len(set(drawn)) == len(known), "everything that is stored can be drawn"
        if prioritised:
            assert batch.index is not None
            buffer.feed_back(batch.index, torch.randn(500))


@each("filled", [1, 7, 20, 50])
def test_draws_are_uniform(filled: int) -> None:
    torch.manual_seed(filled)
    stream, buffer = Stream(2, BOX), make(2, 1, steps=20)
    for _ in range(filled):
        buffer.add(*stream.vector_step())
    buffer.rows[:, 0] = torch.arange(40)
    counts = np.bincount(buffer.sample(40_000).obs[:, 0].long().numpy(), minlength=40)
    rows = min(filled, 20) * 2
    assert counts[rows:].sum() == 0
    expected = 40_000 / rows
    chi_square = ((counts[:rows] - expected) ** 2 / expected).sum()
    freedom = rows - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom) + 4


@each("prioritised", [False, True])
@each("n_step", [1, 3])
@each("steps", [1, 2, 4, 10, 11, 29])
def test_save_and_load_go_on_bit_for_bit(steps: int, n_step: int, prioritised: bool) -> None:
    def more(buffer: ReplayBuffer, stream: Stream, seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        seen = []
        for _ in range(25):
            buffer.add(*stream.vector_step())
            if len(buffer):
                batch = buffer.sample(16)
                seen += [field for field in batch if field is not None]
                if batch.index is not None:
                    buffer.feed_back(batch.index, batch.reward)
        return seen

    def streams() -> tuple[Stream, Stream]:
        return Stream(2, BOX, seed=3), Stream(2, BOX, seed=3)

    first, second = make(2, n_step, prioritised=prioritised), None
    one, two = streams()
    for _ in range(steps):
        first.add(*one.vector_step())
        two.vector_step()
        if prioritised and len(first):
            batch = first.sample(8)
            assert batch.index is not None
            first.feed_back(batch.index, batch.reward)
    if first.priorities is not None:
        first.priorities.set_beta(0.7)
    file = io.BytesIO()
    torch.save(first.training_state(), file)
    second = make(2, n_step, prioritised=prioritised)
    other = Stream(2, BOX, seed=9)
    for _ in range(17):  # what is loaded replaces all of it
        second.add(*other.vector_step())
    second.load_training_state(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    assert len(second) == len(first)
    again = io.BytesIO()
    torch.save(second.training_state(), again)
    assert len(again.getvalue()) == len(file.getvalue())
    for mine, theirs in zip(more(first, one, 5), more(second, two, 5), strict=True):
        assert mine.equal(theirs)
    assert_rows(second, expected_rows(two, second.steps, n_step))


def test_only_the_filled_part_is_saved() -> None:
    def saved_bytes(buffer: ReplayBuffer) -> int:
        file = io.BytesIO()
        torch.save(buffer.training_state(), file)
        return len(file.getvalue())

    stream, buffer = Stream(2, BOX), make(2, 3, steps=5_000, prioritised=True)
    for _ in range(50):
        buffer.add(*stream.vector_step())
    state = buffer.training_state()
    assert len(state["rows"]) == len(buffer) == 96
    assert saved_bytes(buffer) < 20_000 < buffer.memory_needed(10_000, BOX, prioritised=True) / 20


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"steps": 12}, "capacity"),
        ({"n_step": 2}, "n_step"),
        ({"prioritised": True}, "prioritised"),
    ],
)
def test_a_foreign_state_is_refused(change: dict[str, Any], key: str) -> None:
    state = make(2, 1).training_state()
    other = make(**{"num_envs": 2, "n_step": 1, **change})
    with pytest.raises(CheckpointError, match=f"replay has {key} "):
        other.load_training_state(state)


def test_arrays_may_be_reused_by_the_caller() -> None:
    stream, buffer = Stream(3, BOX), make(3, 3)
    for _ in range(20):
        arrays = stream.vector_step()
        buffer.add(*arrays)
        for array in arrays:
            array[...] = 1
    assert_rows(buffer, expected_rows(stream, buffer.steps, 3))


@pytest.mark.parametrize("n_step", [1, 3])
def test_cut_ends_windows_like_a_truncation(n_step: int) -> None:
    def one(value: float) -> tuple[np.ndarray, ...]:
        obs = np.full((2, 3), value, np.float32)
        flags = np.zeros(2, bool)
        return obs, np.zeros((2, 2), np.float32), np.full(2, value), obs + 0.5, flags, flags

    buffer = make(2, n_step)
    for value in range(1, 9):
        buffer.add(*one(value))
        if value == 4:
            buffer.cut(np.array([True, False]))
    cut, whole = buffer.gather(torch.tensor([2 * 2, 2 * 2 + 1])).reward.tolist()  # from step 3
    assert whole == pytest.approx(sum(GAMMA**k * (3 + k) for k in range(n_step)))
    assert cut == pytest.approx(sum(GAMMA**k * (3 + k) for k in range(min(n_step, 2))))
    last = buffer.gather(torch.tensor([3 * 2]))  # step 4, the last before the cut
    assert last.next_obs[0, 0] == 4.5
    assert last.discount.item() == pytest.approx(GAMMA)


def test_capacity_is_rounded_down_to_whole_vector_steps() -> None:
    buffer = ReplayBuffer(35, 3, BOX, CPU, gamma=GAMMA)
    assert (buffer.capacity, buffer.steps) == (33, 11)


@pytest.mark.parametrize(("capacity", "num_envs", "n_step"), [(11, 3, 3), (1, 1, 1)])
def test_too_small_a_capacity_is_refused(capacity: int, num_envs: int, n_step: int) -> None:
    message = r"^algo_kwargs\.buffer_capacity: .* set at least (\d+)$"
    with pytest.raises(ConfigError, match=message) as error:
        ReplayBuffer(capacity, num_envs, BOX, CPU, gamma=GAMMA, n_step=n_step)
    least = int(re.match(message, str(error.value))[1])  # type: ignore[index]
    assert least == num_envs * (n_step + 1)
    ReplayBuffer(least, num_envs, BOX, CPU, gamma=GAMMA, n_step=n_step)


@pytest.mark.parametrize("prioritised", [False, True])
def test_what_does_not_fit_is_refused_with_what_would(
    free_memory: Callable[[int | None], None], prioritised: bool
) -> None:
    capacity = 1_000_000
    priorities = Priorities(capacity, CPU) if prioritised else None
    needed = ReplayBuffer.memory_needed(capacity, BOX, prioritised=prioritised)
    held = 0 if priorities is None else priorities.tree.nbytes
    assert needed == capacity * 4 * (3 + 3 + 2 + 1 + 1) + held
    free_memory(needed - held - 1)
    message = (
        r"^algo_kwargs\.buffer_capacity: a replay of 1,000,000 transitions would take "
        r"0\.0 GB, but 0\.0 GB are free on cpu; ([\d,]+) would fit$"
    ).replace("0\\.0", f"{needed / 1e9:.1f}".replace(".", "\\."))
    with pytest.raises(ConfigError, match=message) as error:
        ReplayBuffer(capacity, 1, BOX, CPU, gamma=GAMMA, priorities=priorities)
    fits = int(re.match(message, str(error.value))[1].replace(",", ""))  # type: ignore[index]
    assert 0.75 * capacity < fits < 0.85 * capacity
    ReplayBuffer(fits, 1, BOX, CPU, gamma=GAMMA)
    free_memory(needed - held)
    ReplayBuffer(capacity, 1, BOX, CPU, gamma=GAMMA, priorities=priorities)


@pytest.mark.skipif(memory.available_memory(CPU) is None, reason="free memory is not told here")
def test_real_memory_is_asked() -> None:
    free = memory.available_memory(CPU)
    assert free is not None
    assert 10**7 < free < 10**14
    with pytest.raises(ConfigError, match=r"^algo_kwargs\.buffer_capacity: a replay of "):
        ReplayBuffer(10**13, 1, BOX, CPU, gamma=GAMMA)
    with pytest.raises(ConfigError, match=r"^algo_kwargs\.buffer_capacity: the priorities of "):
        Priorities(10**14, CPU)


def test_unknown_memory_refuses_nothing(free_memory: Callable[[int | None], None]) -> None:
    assert memory.available_memory(torch.device("meta")) is None
    free_memory(None)
    make(1, 1)


def test_too_few_priorities_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="10 priorities for 11"):
        ReplayBuffer(11, 1, BOX, CPU, gamma=GAMMA, priorities=Priorities(10, CPU))


class OperationLog(TorchDispatchMode):
    """Records every operation with its output's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[str, Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        shape = tuple(out.shape) if isinstance(out, torch.Tensor) else None
        self.operations.append((func.overloadpacket.__name__, shape))
        return out


@pytest.mark.parametrize("prioritised", [False, True])
def test_sampling_is_capturable(prioritised: bool) -> None:
    """No host sync, no data-dependent shape, the same operations at every fill level."""
    stream, buffer = Stream(2, BOX), make(2, 3, steps=60, prioritised=prioritised)
    logs = []
    for _ in range(3):
        for _ in range(17):
            buffer.add(*stream.vector_step())
        with OperationLog() as log:
            batch = buffer.sample(32)
            if batch.index is not None:
                buffer.feed_back(batch.index, batch.reward)
        logs.append(log.operations)
    assert logs[0] == logs[1] == logs[2]
    syncs = {"_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "unique"}
    assert not syncs & {name for name, _ in logs[0]}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("prioritised", [False, True])
def test_a_captured_graph_sees_what_is_added_later(prioritised: bool) -> None:
    cuda = torch.device("cuda")
    stream = Stream(2, BOX)
    buffer = ReplayBuffer(
        40,
        2,
        BOX,
        cuda,
        gamma=GAMMA,
        n_step=3,
        priorities=Priorities(40, cuda) if prioritised else None,
    )

    def draw() -> torch.Tensor:
        batch = buffer.sample(4096)
        if batch.index is not None:
            buffer.feed_back(batch.index, batch.reward.abs() + 1.0)
        return batch.obs

    for _ in range(5):
        buffer.add(*stream.vector_step())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        draw()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        obs = draw()
    for _ in range(50):
        buffer.add(*stream.vector_step())
        graph.replay()
        known = {tuple(row.obs) for row in expected_rows(stream, 20, 3).values()}
        assert {tuple(row) for row in obs.tolist()} == known


def test_adding_is_cheap() -> None:
    """A single environment's step costs a few microseconds; the bound is for busy machines."""
    buffer = ReplayBuffer(50_000, 1, BOX, CPU, gamma=GAMMA)
    arrays = Stream(1, BOX).vector_step()
    best = float("inf")
    for _ in range(5):
        begin = time.process_time()
        for _ in range(1_000):
            buffer.add(*arrays)
        best = min(best, (time.process_time() - begin) / 1_000)
    assert best < 30e-6
