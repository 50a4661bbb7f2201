"""CUDA graphs: work on a GPU that is captured once and then repeated with one launch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TypeVar

import torch

from rl_training.execution import interrupted_by

WARM_UP = 3
"""Times that work is done before a capture, in which libraries initialise; they are undone."""

R = TypeVar("R")


class CaptureError(Exception):
    """Work cannot be captured; says why."""


def capture(
    warm_up: Callable[[], object],
    work: Callable[[], R],
    undone: Callable[[], AbstractContextManager[None]],
) -> tuple[list[Callable[[], None]], R]:
    """What repeats `work`, and the tensors with its results, which every repetition overwrites.

    Both calls are made inside of `undone`, which takes back what they change. The random state is
    as before, so that a run, resumed or not, goes on with the same numbers. Raises `CaptureError`.
    """
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    random = generator.clone_state()
    try:
        with undone():
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                warm_up()
            torch.cuda.current_stream().wait_stream(stream)
        with undone(), captured() as pieces:
            found = work()
    except BaseException as error:
        torch.cuda.synchronize()
        # An aborted capture would leave the generator in capture mode.
        generator.graphsafe_set_state(random)
        if not isinstance(error, RuntimeError):  # such as a signal during an evaluation
            raise
        why = (str(error).strip().splitlines() or ["no reason given"])[0]
        raise CaptureError(why) from None
    return pieces, found


@contextmanager
def captured() -> Iterator[list[Callable[[], None]]]:
    """Capture what is done inside in CUDA graphs; gives what replays them, complete on exit.

    One graph, or as many as `between_graphs` divides the work into. They share one memory: the
    tensors of one are still there in the next, because they are always replayed in this order.
    """
    pieces: list[Callable[[], None]] = []
    pool = torch.cuda.graph_pool_handle()

    def begin() -> torch.cuda.graph:
        graph = torch.cuda.CUDAGraph()
        pieces.append(graph.replay)
        capture = torch.cuda.graph(graph, pool=pool)
        capture.__enter__()
        return capture

    capture = begin()

    def interruption(work: Callable[[], None]) -> None:
        nonlocal capture
        capture.__exit__(None, None, None)
        pieces.append(work)
        capture = begin()

    try:
        with interrupted_by(interruption):
            yield pieces
    except BaseException as error:
        with suppress(RuntimeError):  # must not hide the first error
            capture.__exit__(type(error), error, None)
        raise
    capture.__exit__(None, None, None)


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Raise an error if the host waits for the device, which cannot be captured; between graphs
    it may."""
    before = torch.cuda.get_sync_debug_mode()

    def unwatched(work: Callable[[], None]) -> None:
        torch.cuda.set_sync_debug_mode(before)
        work()
        torch.cuda.set_sync_debug_mode("error")

    with warnings.catch_warnings():  # that this mode of PyTorch is a prototype
        warnings.simplefilter("ignore", UserWarning)
        torch.cuda.set_sync_debug_mode("error")
    try:
        with interrupted_by(unwatched):
            yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
