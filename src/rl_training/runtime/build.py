"""Builds the objects of a run from its configuration."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.loops import loop_family
from rl_training.data.dataset import TransitionDataset
from rl_training.data.inference import stored_spaces
from rl_training.envs.global_random import (
    seed_global_generators,
    sole_learner,
    untouched_randomness,
)
from rl_training.envs.make import env_spaces
from rl_training.envs.spaces import Spaces
from rl_training.execution import tiling, usual_torch
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.errors import ConfigError
from rl_training.experiment.registry import algorithm_class
from rl_training.experiment.seeding import derive_seed
from rl_training.runtime import loops
from rl_training.runtime.engine import Engine
from rl_training.runtime.loops import Loop, SeedsClock
from rl_training.runtime.loops.data import read_data

ONE_THREAD_UP_TO_WIDTH = 512
"""Layers this narrow are fastest on one core: threads cost more than they save."""
MOST_THREADS = 16
"""Batches of this package are too small to keep more cores busy."""


def resolve_device(name: str) -> torch.device:
    """The configured device; raises an error if it does not exist."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: '{name}' is not known; use auto, cpu, cuda or cuda:N") from None
    if device.type == "mps":
        raise ConfigError(
            f"device: '{name}' is not supported, because replays and statistics are computed in "
            "float64, which Apple's GPUs do not have; use device=cpu"
        )
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise ConfigError(f"device: '{name}' is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device: '{name}' does not exist, {torch.cuda.device_count()} CUDA devices were "
            "found; use device=cpu"
        )
    return device


def build_algorithm(config: TrainConfig, spaces: Spaces) -> Algorithm:
    """The algorithm, initialised from the run's seed; the global generators keep their state."""
    normalize = config.dataset is not None and config.dataset.normalize_observations
    with usual_torch(), untouched_randomness(), torch.device(resolve_device(config.device)):
        torch.manual_seed(derive_seed(config.seed, "init"))
        algorithm: Algorithm = algorithm_class(config.algo)(spaces, config.params, normalize)
    unknown = set(config.lr_schedule.optimizers or ()) - set(algorithm.optimizers)
    if unknown:
        raise ConfigError(
            f"lr_schedule.optimizers: {config.algo} has no optimiser '{min(unknown)}'; "
            f"it has {', '.join(algorithm.optimizers)}"
        )
    return algorithm


def build_loop(
    config: TrainConfig, algorithm: Algorithm, dataset: TransitionDataset | None = None
) -> Loop:
    """Build and check the run's loop and its parts.

    `dataset` is data in memory; the config's processing applies to them.
    """
    family = loop_family(algorithm.loop_of(config))
    family.refuse_unfit(algorithm)
    loop: Loop = family.builder(loops.__name__)(config, algorithm, dataset)
    _note_untiled(config, loop.engine)
    return loop


def build_clock(
    config: TrainConfig, agents: Sequence[Algorithm], dataset: TransitionDataset | None = None
) -> SeedsClock:
    """Build and check what moves the loops of several seeds, one algorithm per seed."""
    family = loop_family(agents[0].loop_of(config))
    family.refuse_unfit(agents[0])
    clock: SeedsClock = family.seeds_builder(loops.__name__)(config, agents, dataset)
    _note_untiled(config, clock.engine)
    return clock


def _note_untiled(config: TrainConfig, engine: Engine) -> None:
    """Say it if a run asks for tiled products where there are none."""
    if config.products == "library":
        return
    device, why = engine.learner.device.type, ""
    if device != "cuda":
        why = f"on {device}, because it is for compiled updates on a CUDA device"
    elif engine.mode not in ("compile", "compiled_graph"):
        why = f"with engine '{engine.mode}', which does not compile updates as compiled_graph does"
    if why:
        engine.link.note_once(f"products: '{config.products}' has no effect {why}")


def task_spaces(config: TrainConfig) -> Spaces:
    """The spaces of a run, from its environment or its data."""
    if config.env_id is not None:
        return env_spaces(config.env_id, config.task_kwargs)
    return spaces_in_full(config) or read_data(config, None).spaces


def spaces_in_full(config: TrainConfig) -> Spaces | None:
    """The spaces that a config defines; None if the data are needed for some of them."""
    return stored_spaces(None if config.dataset is None else config.dataset.spaces)


def choose_threads(config: TrainConfig, images: bool) -> int:
    """CPU threads for tensor operations; convolutions over `images` gain from all that PyTorch
    may take, which are the cores unless OMP_NUM_THREADS or the caller says otherwise."""
    if config.threads:
        return config.threads
    if not images and config.params.widest_layer <= ONE_THREAD_UP_TO_WIDTH:
        return 1
    return min(torch.get_num_threads(), MOST_THREADS)


def keep_freed_memory() -> None:
    """Let the C allocator keep large freed blocks instead of returning them to the system.

    By default glibc maps memory for each large tensor, and clearing its pages costs more than
    the arithmetic on it: without that a CQL update takes a third less time. A no-op elsewhere.

    It affects the whole process permanently, so only the command line calls it; other programs
    decide for themselves.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return  # another C library
    m_trim_threshold, m_mmap_threshold, one_gib = -1, -3, 1 << 30
    mallopt(m_mmap_threshold, one_gib)
    mallopt(m_trim_threshold, one_gib)


def flushes_denormals() -> bool:
    """Whether this thread flushes denormal numbers to 0."""
    return not bool(torch.full((1,), 1e-38, dtype=torch.float32) * 0.01)


@contextmanager
def run_scope(config: TrainConfig, spaces: Spaces) -> Iterator[None]:
    """Set threads, precision and random state of a run; the caller's are restored on exit."""
    with sole_learner():
        yield from _run_scope(config, spaces)


def _run_scope(config: TrainConfig, spaces: Spaces) -> Iterator[None]:
    threads, deterministic = torch.get_num_threads(), torch.backends.cudnn.deterministic
    products = torch.backends.cuda.matmul
    tf32, short_sums = products.allow_tf32, products.allow_bf16_reduced_precision_reduction
    products.allow_tf32 = config.tf32
    # Otherwise parts of a long sum may be added up in bfloat16, as in gradients of weights.
    products.allow_bf16_reduced_precision_reduction = False
    torch.set_num_threads(choose_threads(config, spaces.is_image))
    # Otherwise gradients of convolutions differ in the last bit from run to run.
    torch.backends.cudnn.deterministic = True
    flushed = flushes_denormals()
    # Adam's moments of weights without a gradient decay to denormal numbers, which are slow on a
    # CPU: a fifth of a DQN update on CartPole.
    torch.set_flush_denormal(True)
    try:
        with usual_torch(), untouched_randomness(), tiling(config.products == "tiled"):
            seed_global_generators(derive_seed(config.seed, "train"))
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.deterministic = deterministic
        products.allow_tf32 = tf32
        products.allow_bf16_reduced_precision_reduction = short_sums
        torch.set_flush_denormal(flushed)
