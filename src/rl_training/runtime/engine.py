"""Executes updates: eager, compiled, or as a CUDA graph."""

from __future__ import annotations

import importlib
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.fx import GraphModule

from rl_training.algorithms.functional import Metrics
from rl_training.envs.global_random import untouched_randomness
from rl_training.execution import LONGEST_CYCLE, in_phase, is_tiled
from rl_training.experiment.errors import ConfigError
from rl_training.runtime.agents import Learner, SingleLearner, VmapLearner
from rl_training.runtime.compiling import COMPILER_OPTIONS
from rl_training.runtime.graphs import WARM_UP, CaptureError, capture, no_host_sync
from rl_training.runtime.products import FEWEST, refuse_untileable, tile_products
from rl_training.runtime.recording import Compiled
from rl_training.runtime.scripting import Scripted, ScriptedTogether, can_be_scripted
from rl_training.runtime.signals import RunLink

COMPILE_FROM_UPDATES = 50_000
"""Number of updates from which compiling pays off. On the CPU it saves up to a third of the time
(BC, IQL, AWAC; CRR and CQL gain little) for about 40 seconds at the start; on an H200 it halves
the time of a graph for about 9 seconds."""

COMPILE_PIECES_FROM_UPDATES = 5_000
"""The same on a GPU for an update that is compiled in pieces, Dreamer's: on an H200 they take a
minute or two at the start and 23 of 51 milliseconds off an update of size 12m."""

RECORD_FROM_UPDATES = 2_000
"""Number of updates from which recording an update pays off on the CPU: it takes a second or two,
and saves a third of the time of small networks, which is spent on bookkeeping."""

MANY = 10
"""Updates captured in one graph if as many are due: between two graphs the device is idle for some
microseconds, a tenth of a small update."""

CHUNK_SECONDS = 0.02
"""Approximate time of updates between two checks whether the run should end."""


class Recording(NamedTuple):
    """Captured updates and the tensors with the metrics of the last one."""

    pieces: list[Callable[[], None]]
    """Replays of graphs, with what `between_graphs` was called with in between."""
    metrics: Metrics


class Engine:
    """Runs updates of a learner, k per call.

    `mode` is how updates run and `reason` why; a resumed run keeps its mode. A captured update
    must not sync with the host; one that does is run eagerly instead, with a note. Metrics are
    valid until the next call; those of a delayed step are of the last update that took it. All
    engines of a run share its link.
    """

    def __init__(
        self, learner: Learner, mode: str, total_updates: int, link: RunLink | None = None
    ) -> None:
        self.learner = learner
        self.mode, self.reason = choose_mode(
            mode, learner.device, total_updates, learner.slow_to_compile, learner.fuses
        )
        self.link = link or RunLink()
        self.notes, self.pause = self.link.notes, self.link.pause
        self._graphs: dict[tuple[int, int], Recording] = {}  # by number of updates, first phase
        self._cycle = learner.cycle if learner.cycle <= LONGEST_CYCLE else 1
        self._many = MANY - MANY % self._cycle  # ends in the phase in which it began
        self._metrics: Metrics = {}
        self._uncompiled = False
        self._chunk = MANY if self.mode in ("graph", "compiled_graph") else 1
        if self.mode in ("compile", "compiled_graph"):
            # Not interrupted, because half an import cannot be repeated.
            importlib.import_module("torch._inductor.compile_fx")
            torch.compile(_nothing, dynamic=False, options=COMPILER_OPTIONS)
            tile = self._tile if self._is_tileable() else None
            learner.compile(lambda function: Compiled(function, self._taken_back, self.pause, tile))
            self._uncompiled = learner.fuses
        elif self._is_worth_recording(total_updates):
            self._record()

    def _is_tileable(self) -> bool:
        if not is_tiled() or self.learner.device.type != "cuda":
            return False
        refuse_untileable(self.learner.device)
        return True

    def _tile(self, recorded: GraphModule) -> None:
        replaced, kept = tile_products(recorded)
        if kept:
            self.link.note_once(
                f"products: {kept} of the {kept + replaced} products that 'tiled' would compute "
                "are left to PyTorch, because the kernel gave wrong results for them on this device"
            )
        elif not replaced:
            self.link.note_once(
                f"products: 'tiled' has no effect on a compiled update without batches of {FEWEST} "
                f"products in float32 or more, such as those of {FEWEST} seeds"
            )

    def _is_worth_recording(self, total_updates: int) -> bool:
        on_host = self.mode == "eager" and self.learner.device.type == "cpu"
        long = total_updates >= RECORD_FROM_UPDATES and not self.learner.slow_to_compile
        return on_host and long

    def _record(self) -> None:
        learner, how = self.learner, (self._taken_back, self.pause)
        if isinstance(learner, VmapLearner):
            learner.compile(lambda function: ScriptedTogether(function, *how))
        elif isinstance(learner, SingleLearner) and can_be_scripted(learner.algorithm):
            learner.script(lambda function: Scripted(function, learner.algorithm, *how))

    def run(self, updates: int) -> Metrics:
        """Run `updates` updates; returns the metrics of the last one.

        Raises `StepInterrupted` between two updates if the run should end.
        """
        metrics: Metrics = {}
        with self.learner.attached():
            while updates:
                self.pause.check()
                metrics, done = self._run_chunk(updates)
                updates -= done
        return metrics

    def run_until_due(self, updates: int) -> tuple[Metrics, int]:
        """Run up to `updates` updates, fewer once the pause is due; returns the metrics of the
        last one and the number of updates."""
        with self.learner.attached():
            metrics, done = self._run_chunk(updates)
            while done < updates and not self.pause.due():
                metrics, more = self._run_chunk(updates - done)
                done += more
        return metrics, done

    def _run_chunk(self, most: int) -> tuple[Metrics, int]:
        """Run as many updates, up to `most`, as take about `CHUNK_SECONDS`."""
        lasts = self.learner.prepare()
        count = min(most, self._chunk, most if lasts is None else lasts)
        began = time.monotonic()
        metrics = self._run(count)
        if count < most and self.learner.device.type == "cuda":
            torch.cuda.synchronize(self.learner.device)  # the host must not run far ahead
        elapsed = time.monotonic() - began
        if elapsed > 2.0 * CHUNK_SECONDS:
            self._chunk = max(1, self._chunk // 2)
        elif count == self._chunk and elapsed < 0.5 * CHUNK_SECONDS:
            self._chunk *= 2
        return metrics, count

    def _run(self, updates: int) -> Metrics:
        if self._uncompiled:
            with self._taken_back(), self.pause:
                self.learner.update()
            self._uncompiled = False
        # a run that was restored, or whose update was undone, is in another phase
        phase = self.learner.phase() if self._cycle > 1 else 0
        if self.mode in ("graph", "compiled_graph"):
            with torch.cuda.device(self.learner.device):
                updates, phase = self._replay(updates, phase)
        for i in range(updates):
            self._metrics = self._update(phase + i, self._metrics)
        return self._metrics

    def _update(self, phase: int, metrics: Metrics) -> Metrics:
        """One update; `metrics` are those before it."""
        if self._cycle == 1:
            return self.learner.update()
        with in_phase(phase % self._cycle):
            return {**metrics, **self.learner.update()}

    def _replay(self, updates: int, phase: int) -> tuple[int, int]:
        """Run captured updates; returns how many are left, and their phase, if none can be
        captured."""
        while updates:
            count = self._many if updates >= self._many else 1
            found = self._graphs.get((count, phase)) or self._capture(count, phase)
            if found is None:
                break
            for piece in found.pieces:
                piece()
            self._metrics = {**self._metrics, **found.metrics}
            updates, phase = updates - count, (phase + count) % self._cycle
        return updates, phase

    def _capture(self, updates: int, phase: int) -> Recording | None:
        """Capture some updates. Weights and random state are unchanged afterwards, so that every
        update of a run, resumed or not, is the same work."""

        def warm_up() -> None:
            for i in range(max(WARM_UP, self._cycle)):
                self._update(phase + i, {})
            with no_host_sync():
                for i in range(self._cycle):
                    self._update(phase + i, {})

        def work() -> Metrics:
            metrics: Metrics = {}
            for i in range(updates):
                metrics = self._update(phase + i, metrics)
            return metrics

        try:
            pieces, metrics = capture(warm_up, work, self._taken_back)
        except CaptureError as error:
            self.notes.append(f"the update cannot be captured, it runs eagerly ({error})")
            self.mode = "eager"
            return None
        self._graphs[updates, phase] = Recording(pieces, metrics)
        return self._graphs[updates, phase]

    @contextmanager
    def _taken_back(self) -> Iterator[None]:
        """Restore weights, statistics, optimisers and random state on exit."""
        tensors = self.learner.tensors()
        saved = [tensor.detach().clone() for tensor in tensors]
        with untouched_randomness():
            try:
                yield
            finally:
                with torch.no_grad():
                    for tensor, value in zip(tensors, saved, strict=True):
                        tensor.copy_(value)


def _nothing() -> None:
    """Compiled only to initialise the compiler."""


def choose_mode(
    wanted: str,
    device: torch.device,
    total_updates: int,
    slow_to_compile: bool = False,
    in_pieces: bool = False,
) -> tuple[str, str]:
    """The mode to run and the reason for it; on a GPU what is slow to compile as a whole may be
    compiled `in_pieces`."""
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
    graph, on_cuda = "one CUDA graph per update, sampling included", device.type == "cuda"
    by_pieces = slow_to_compile and in_pieces and on_cuda
    pays_from = COMPILE_PIECES_FROM_UPDATES if by_pieces else COMPILE_FROM_UPDATES
    if total_updates < pays_from:
        plain = f"compiling pays from {pays_from:,} updates on"
    elif slow_to_compile and not by_pieces:
        plain = "compiling an update of so many operations takes too long"
    elif not compiler:
        plain = "no C++ compiler (g++ or clang++) was found to compile with"
    else:
        worth = f"{total_updates:,} updates are worth the compilation"
        return ("compiled_graph", f"{graph}; {worth}") if on_cuda else ("compile", worth)
    return ("graph", f"{graph}; {plain}") if on_cuda else ("eager", plain)
