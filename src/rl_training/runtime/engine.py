"""How updates are executed between two ticks of the trainer: eager, compiled or as a graph."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.functional import Metrics
from rl_training.experiment.errors import ConfigError

COMPILE_FROM_UPDATES = 50_000
"""From here on compiling pays. On the CPU it was seen to save up to a third of the time (BC, IQL,
AWAC; CRR and CQL gain little) for about 40 seconds at the start; on an H200 it halves the time of
a graph for about 9 seconds."""

WARM_UP = 3
"""Updates before a capture, in which libraries set themselves up; they are taken back."""


class Engine:
    """Draws a batch and updates, k times per call; `learned` is told of each batch after it.

    `mode` is what runs and `reason` why; a run keeps its mode when it is resumed. `touched`
    are the tensors beside the algorithm's that `draw` and `learned` write to. As a graph,
    drawing, updating and `learned` are one captured piece of device work, so none of them may
    ask the host; one that does is run eagerly instead, with a sentence in `notes`. Metrics
    hold until the next call.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        draw: Callable[[], Any],
        mode: str,
        total_updates: int,
        learned: Callable[[Any], None] | None = None,
        touched: Sequence[Tensor] = (),
    ) -> None:
        self.algorithm, self.draw, self.learned = algorithm, draw, learned
        self.touched = touched
        self.mode, self.reason = choose_mode(mode, algorithm.update_count.device, total_updates)
        self.notes: list[str] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._metrics: Metrics = {}
        self._step = algorithm.step
        for name in algorithm.pieces:  # an engine before may have compiled them
            vars(algorithm).pop(name, None)
        if self.mode in ("compile", "compiled_graph"):
            dynamo = torch._dynamo.config
            if hasattr(dynamo, "trace_autograd_ops"):
                dynamo.trace_autograd_ops = True  # `minimize` in the same graph as the rest
            for name in algorithm.pieces:
                piece = torch.compile(getattr(algorithm, name), dynamic=False)
                setattr(algorithm, name, piece)
            if not algorithm.pieces:
                self._step = torch.compile(algorithm.step, dynamic=False)
        self._capture_due = self.mode in ("graph", "compiled_graph")

    def run(self, updates: int) -> Metrics:
        """`updates` updates; the metrics of the last one."""
        if self._capture_due and updates:
            self._capture_due = False
            with torch.cuda.device(self.algorithm.update_count.device):
                self._capture()
        if self._graph is not None:
            with torch.cuda.device(self.algorithm.update_count.device):
                for _ in range(updates):
                    self._graph.replay()
            return self._metrics
        metrics: Metrics = {}
        for _ in range(updates):
            metrics = self._update()
        return metrics

    def _update(self) -> Metrics:
        batch = self.draw()
        metrics = self._step(batch)
        if self.learned is not None:
            self.learned(batch)
        return metrics

    def _capture(self) -> None:
        """Record one update. Nothing has been learned and no random number used up afterwards,
        so that every update of a run, resumed or not, is the same piece of work."""
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        random = generator.clone_state()
        try:
            with self._taken_back():
                stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    for _ in range(WARM_UP):
                        self._update()
                    with no_host_sync():
                        self._update()
                torch.cuda.current_stream().wait_stream(stream)
            with self._taken_back(), torch.cuda.graph(graph):
                self._metrics = self._update()
        except RuntimeError as error:
            torch.cuda.synchronize()
            # A capture that broke off would leave the generator waiting for its end.
            generator.graphsafe_set_state(random)
            why = (str(error).strip().splitlines() or ["no reason given"])[0]
            self.notes.append(f"the update cannot be captured, it runs eagerly ({why})")
            self.mode = "eager"
            return
        self._graph = graph

    @contextmanager
    def _taken_back(self) -> Iterator[None]:
        """Undo what happens inside to weights, statistics, optimisers and random streams."""
        tensors = [*self._tensors()]
        saved = [tensor.detach().clone() for tensor in tensors]
        state = torch.cuda.get_rng_state()
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, value in zip(tensors, saved, strict=True):
                    tensor.copy_(value)
            torch.cuda.set_rng_state(state)

    def _tensors(self) -> Iterator[Tensor]:
        yield from self.algorithm.parameters()
        yield from self.algorithm.buffers()
        for optimizer in self.algorithm.optimizers.values():
            yield from (*optimizer.exp_avg, *optimizer.exp_avg_sq, optimizer.steps)
        yield from self.touched


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Raise where the host waits for the device, which cannot be captured."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def choose_mode(wanted: str, device: torch.device, total_updates: int) -> tuple[str, str]:
    """The mode to run and the reason for it."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if wanted in ("graph", "compiled_graph") and device.type != "cuda":
        raise ConfigError(
            f"engine: '{wanted}' needs a CUDA device, this run is on {device.type}; use "
            "engine=auto, or device=cuda"
        )
    if wanted in ("compile", "compiled_graph") and not compiler:
        raise ConfigError(
            f"engine: '{wanted}' needs a C++ compiler (g++ or clang++) on this machine; "
            "install one or use engine=auto"
        )
    if wanted != "auto":
        return wanted, "asked for"
    graph = "one CUDA graph per update, sampling included"
    if total_updates < COMPILE_FROM_UPDATES:
        plain = f"compiling pays from {COMPILE_FROM_UPDATES:,} updates on"
    elif not compiler:
        plain = "no C++ compiler (g++ or clang++) was found to compile with"
    else:
        worth = f"{total_updates:,} updates are worth the compilation"
        on_cuda = device.type == "cuda"
        return ("compiled_graph", f"{graph}; {worth}") if on_cuda else ("compile", worth)
    return ("graph", f"{graph}; {plain}") if device.type == "cuda" else ("eager", plain)
