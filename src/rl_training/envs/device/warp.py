"""Worlds of a MuJoCo model, stepped by MuJoCo Warp on the tensors of PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_training.experiment.errors import ConfigError, EnvironmentSetupError, MissingExtraError


class WarpWorlds:
    """N copies of a model. Its arrays are torch tensors that share memory with Warp's.

    `model` is a `mujoco.MjModel`. On a GPU a step runs in torch's stream; while torch captures a
    graph, it becomes a part of that graph, and otherwise it is a graph of Warp's own. With
    `deterministic` sums are made in a fixed order, so that a run repeats bit for bit, which
    costs some speed.
    """

    def __init__(
        self,
        env_id: str,
        model: Any,
        num_worlds: int,
        device: torch.device,
        *,
        contacts: int,
        deterministic: bool,
        after_steps: tuple[str, ...] = (),
    ) -> None:
        """`contacts` is the most per world; `after_steps` are functions of MuJoCo Warp that are
        called after the last step."""
        self._wp, self._mjw = _modules(env_id)
        self.device, self._after = device, after_steps
        self._tensors: dict[str, Tensor] = {}
        self._graphs: dict[str, Any] = {}  # of Warp's own; None where the work was done once
        self._captured: list[Any] = []  # what torch's graphs hold of Warp's memory
        try:
            with self._wp.ScopedDevice(self._wp.device_from_torch(device)):
                self.model = self._mjw.put_model(model)
                self.model.opt.deterministic = deterministic
                rows = 4 * contacts + 2 * model.nv
                sizes = {"nworld": num_worlds, "nconmax": contacts, "njmax": rows}
                self.data = self._mjw.make_data(model, **sizes)
            self._wp.synchronize_device(self._wp.device_from_torch(device))
        except NotImplementedError as error:
            raise EnvironmentSetupError(
                f"env_id: MuJoCo Warp cannot simulate the model of '{env_id}' ({error}); use "
                f"env_id={env_id.rpartition('/')[2]}, which is simulated on the CPU"
            ) from None
        except RuntimeError as error:
            if "alloc" not in str(error).lower() and "memory" not in str(error).lower():
                raise
            raise ConfigError(
                f"num_envs: {num_worlds:,} worlds of '{env_id}' do not fit into the memory of "
                f"{device}; lower it"
            ) from None

    def tensor(self, name: str) -> Tensor:
        """An array of the simulation, (N, ...), without a copy."""
        if name not in self._tensors:
            self._tensors[name] = self._wp.to_torch(getattr(self.data, name))
        return self._tensors[name]

    def step(self, count: int) -> None:
        """Take `count` steps of the integrator in all worlds."""
        self._run(f"{count} steps", lambda: self._steps(count))

    def call(self, *names: str) -> None:
        """Call functions of MuJoCo Warp in all worlds, such as `kinematics`."""
        if names:
            self._run(" ".join(names), lambda: self._calls(names))

    def _steps(self, count: int) -> None:
        for _ in range(count):
            self._mjw.step(self.model, self.data)
        self._calls(self._after)

    def _calls(self, names: Sequence[str]) -> None:
        for name in names:
            getattr(self._mjw, name)(self.model, self.data)

    def _run(self, name: str, work: Callable[[], None]) -> None:
        """Do `work`, which is always the same for one name."""
        wp = self._wp
        if self.device.type == "cpu":
            with wp.ScopedDevice("cpu"):
                work()
            return
        stream = wp.stream_from_torch(torch.cuda.current_stream(self.device))
        if torch.cuda.is_current_stream_capturing():
            mode = wp.CaptureMode.GLOBAL  # torch's
            with (
                wp.ScopedStream(stream, sync_enter=False),
                wp.ScopedCapture(stream=stream, external=True, capture_mode=mode) as capture,
            ):
                work()
            self._captured.append(capture.graph)
        elif name not in self._graphs:  # kernels are loaded before anything is captured
            with wp.ScopedStream(stream, sync_enter=False):
                work()
            self._graphs[name] = None
        else:
            if self._graphs[name] is None:
                own = wp.Stream(wp.device_from_torch(self.device))  # torch's cannot be captured
                with (
                    wp.ScopedStream(own, sync_enter=False),
                    wp.ScopedCapture(stream=own) as capture,
                ):
                    work()
                self._graphs[name] = capture.graph
            wp.capture_launch(self._graphs[name], stream=stream)


def _modules(env_id: str) -> tuple[Any, Any]:
    try:
        warp = importlib.import_module("warp")
        warp.config.quiet = True
        if hasattr(warp, "LOG_WARNING"):  # later versions read this instead
            warp.config.log_level = warp.LOG_WARNING
        warp.init()
        return warp, importlib.import_module("mujoco_warp")
    except ImportError:
        raise MissingExtraError("mujoco-warp", "warp", f"environment '{env_id}'") from None
