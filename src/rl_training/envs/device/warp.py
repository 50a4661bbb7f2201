"""Worlds of a MuJoCo model, stepped by MuJoCo Warp on the tensors of PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_training.execution import between_graphs
from rl_training.experiment.errors import ConfigError, EnvironmentSetupError, MissingExtraError

_LEFT_OUT = 0b11111
"""Flags of mujoco_warp.OverflowType: constraints, their entries, and contacts of three kinds."""


class WarpWorlds:
    """N copies of a model. Its arrays are torch tensors that share memory with Warp's.

    `model` is a `mujoco.MjModel`. On a GPU a step is a graph of Warp's own, launched in torch's
    stream. It cannot be a part of torch's graphs: the solver's loop ends a capture and begins it
    again, which torch's allocator does not follow. With `deterministic` contacts and constraints
    are sorted and sums made in a fixed order, at a quarter of the speed or less.
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
        self._env_id, self._contacts, self._has_room = env_id, contacts, True
        if device == torch.device("cuda"):  # the current one
            device = torch.device("cuda", torch.cuda.current_device())
        self.device, self._after = device, after_steps
        self._notes: list[str] = []
        self._captures = True  # until Warp could not capture something
        self._tensors: dict[str, Tensor] = {}
        self._graphs: dict[str, Any] = {}  # of Warp's own; None where the work was done once
        self._streams: dict[int, Any] = {}  # Warp's objects for torch's streams
        try:
            with self._wp.ScopedDevice(self._wp.device_from_torch(device)):
                self.model = self._mjw.put_model(model)
                self.model.opt.deterministic = deterministic
                self.model.opt.warn_overflow = 0  # not printed by every world, but read below
                rows = 4 * contacts + model.nv  # of pyramids, and of limits
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

    def new_notes(self) -> list[str]:
        """What the user should know since the last call; waits for the device."""
        left_out = self.tensor("overflow") & _LEFT_OUT
        if self._has_room and bool(left_out.any()):
            self._has_room = False
            count = int((left_out != 0).sum())
            self._notes.append(
                f"MuJoCo Warp has no room for all contacts in {count:,} of {len(left_out):,} "
                f"worlds of '{self._env_id}' and leaves some out; raise train_env_kwargs.contacts, "
                f"which is {self._contacts}"
            )
        new, self._notes = self._notes, []
        return new

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
        if self.device.type == "cpu":
            with self._wp.ScopedDevice("cpu"):
                work()
        elif not self._captures:
            between_graphs(lambda: self._launch_each(work))
        elif name not in self._graphs:  # kernels are loaded before anything is captured
            self._launch_each(work)
            self._graphs[name] = None
        else:
            graph = self._graphs[name] or self._captured(name, work)
            if graph is None:
                between_graphs(lambda: self._launch_each(work))
            else:
                between_graphs(lambda: self._wp.capture_launch(graph, stream=self._stream()))

    def _captured(self, name: str, work: Callable[[], None]) -> Any:
        """A graph of Warp's own that does `work`; None where that is not possible."""
        wp = self._wp
        own = wp.Stream(wp.device_from_torch(self.device))  # torch's default one cannot be captured
        try:
            with wp.ScopedStream(own, sync_enter=False), wp.ScopedCapture(stream=own) as capture:
                work()
        except RuntimeError as error:
            why = (str(error).strip().splitlines() or ["no reason given"])[0]
            self._captures = False
            self._notes.append(
                f"MuJoCo Warp cannot capture its steps, so they run more slowly ({why})"
            )
            return None
        self._graphs[name] = capture.graph
        return capture.graph

    def _launch_each(self, work: Callable[[], None]) -> None:
        """Do `work` kernel by kernel, after what torch has launched and before what it will.

        In a stream of Warp's own, which waits for the default stream: what it allocates may be
        freed at any time.
        """
        wp, stream = self._wp, self._stream()
        own = wp.get_stream(wp.device_from_torch(self.device))
        own.wait_stream(stream)
        with wp.ScopedDevice(own.device):
            work()
        stream.wait_stream(own)

    def _stream(self) -> Any:
        """Torch's current stream, as Warp's object."""
        now = torch.cuda.current_stream(self.device)
        if now.cuda_stream not in self._streams:
            self._streams[now.cuda_stream] = self._wp.stream_from_torch(now)
        return self._streams[now.cuda_stream]


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
