"""When things happen: schedules, intervals, early stopping."""

from __future__ import annotations

import itertools
import math

import pytest

from rl_training.experiment.config import EarlyStoppingConfig, Schedule
from rl_training.experiment.seeding import derive_seed
from rl_training.runtime.controls import (
    EarlyStopping,
    crossed,
    lr_grid_step,
    owed_updates,
    schedule_factor,
    until_next,
)

from ..each import each


@each("stride", [1, 3, 7, 64])
def test_crossed_fires_once_per_multiple_for_any_stride(stride: int) -> None:
    ticks = range(0, 1000 + stride, stride)
    fired = sum(crossed(a, b, 50) for a, b in itertools.pairwise(ticks))
    assert fired == ticks[-1] // 50 if stride <= 50 else fired == len(ticks) - 1
    assert not crossed(0, 1000, 0)


def test_until_next() -> None:
    assert [until_next(now, 10) for now in (0, 1, 9, 10)] == [10, 9, 1, 10]
    assert until_next(5, 0) is None


@each("ratio", [0.25, 1.0, 1.5, 20.0])
def test_owed_updates_are_exact_for_fractions_and_after_a_resume(ratio: float) -> None:
    done = 0
    for env_steps in range(0, 1001, 3):
        done += owed_updates(ratio, 100, env_steps, done)
    assert done == int(ratio * 899)
    assert owed_updates(ratio, 100, 50, 0) == 0


def test_schedule_shapes() -> None:
    linear = Schedule(kind="linear", end=0.1)
    assert [linear(x) for x in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.55, 0.1])
    cosine = Schedule(kind="cosine")
    assert [cosine(x) for x in (0.0, 0.25, 1.0)] == pytest.approx(
        [1.0, 0.5 * (1 + math.cos(math.pi / 4)), 0.0]
    )
    warm = Schedule(kind="constant", warmup=0.2)
    assert [warm(x) for x in (0.0, 0.1, 0.2, 1.0)] == pytest.approx([0.0, 0.5, 1.0, 1.0])
    assert Schedule()(0.7) == 1.0
    assert cosine(1.5) == pytest.approx(0.0), "past its horizon a schedule stays at its end"


def test_a_schedule_has_its_own_horizon() -> None:
    schedule = Schedule(kind="linear", over=100)
    assert schedule_factor(schedule, 50, total=1000) == pytest.approx(0.5)
    assert schedule_factor(schedule, 500, total=1000) == 0.0


def test_the_rate_is_constant_within_a_grid_step_and_moves_a_thousand_times() -> None:
    schedule = Schedule(kind="linear")
    assert lr_grid_step(schedule, 20_000) == 20
    assert schedule_factor(schedule, 40, 20_000) == schedule_factor(schedule, 59, 20_000)
    assert schedule_factor(schedule, 60, 20_000) < schedule_factor(schedule, 59, 20_000)
    assert lr_grid_step(schedule, 10) == 1
    assert lr_grid_step(Schedule(), 20_000) == 0


def observe(stopping: EarlyStopping, values: list[float]) -> list[str | None]:
    return [stopping.observe({"eval/return_mean": value}) for value in values]


def test_patience_counts_evaluations_without_improvement() -> None:
    stopping = EarlyStopping(EarlyStoppingConfig(patience=2, min_delta=1.0))
    assert observe(stopping, [0.0, 5.0, 5.5])[-1] is None, "less than min_delta is no improvement"
    reasons = observe(stopping, [5.9])
    assert reasons[0] is not None
    assert "has not improved for 2 evaluations" in reasons[0]


def test_mode_min_and_target() -> None:
    stopping = EarlyStopping(EarlyStoppingConfig(mode="min", target=1.0))
    reasons = observe(stopping, [3.0, 2.0, 0.9])
    assert reasons[:2] == [None, None]
    assert reasons[2] is not None
    assert "target" in reasons[2]


def test_nan_is_never_an_improvement() -> None:
    stopping = EarlyStopping(EarlyStoppingConfig(patience=1))
    assert observe(stopping, [1.0, math.nan])[1] is not None


def test_patience_survives_a_resume() -> None:
    before = EarlyStopping(EarlyStoppingConfig(patience=3))
    observe(before, [2.0, 1.0, 1.0])
    after = EarlyStopping(EarlyStoppingConfig(patience=3))
    after.load_training_state(before.training_state())
    assert observe(after, [1.0])[0] is not None


def test_derived_seeds_differ_by_purpose_and_neighbouring_seeds() -> None:
    seeds = {derive_seed(s, p, i) for s in range(20) for p in ("init", "train") for i in range(20)}
    assert len(seeds) == 800
    assert all(0 <= seed < 2**63 for seed in seeds)
