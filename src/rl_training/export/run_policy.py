"""Acts with an exported policy. Needs NumPy and ONNX Runtime, and nothing else.

python run_policy.py                    repeats the sample that was stored with the policy
python run_policy.py "[0.1, 0.2, 0.3]"  prints the action for one observation

policy = Policy("FOLDER")
action, state = policy(observation, state)  # state=None where all episodes begin
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

Array = np.ndarray[Any, Any]
State = dict[str, Array]


class Policy:
    """The policy of a folder; called with one observation or with a batch of them."""

    def __init__(self, folder: str | Path, threads: int = 1) -> None:
        folder = Path(folder)
        self.contract = json.loads((folder / "contract.json").read_text(encoding="utf-8"))
        model = (folder / self.contract["model"]["file"]).read_bytes()
        if hashlib.sha256(model).hexdigest() != self.contract["model"]["sha256"]:
            raise ValueError(f"'{folder}': policy.onnx is not the file that contract.json is for")
        refuse_foreign_parts(model)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        options.log_severity_level = 4  # what is wrong is raised
        self.session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
        inputs = self.contract["inputs"]
        self.seen = next(entry for entry in inputs if entry["role"] == "observation")
        self.states = [entry for entry in inputs if entry["role"] == "state"]
        self.noises = [entry for entry in inputs if entry["role"] == "noise"]
        self.names = [entry["name"] for entry in self.contract["outputs"]]
        self.shape, self.dtype = tuple(self.seen["shape"][1:]), np.dtype(self.seen["dtype"])

    def initial_state(self, rows: int) -> State:
        """What a recurrent policy gets where an episode begins; empty for other policies."""
        return {
            entry["name"]: np.full((rows, *entry["shape"][1:]), entry["initial"], entry["dtype"])
            for entry in self.states
        }

    def drawn(self, rows: int, rng: np.random.Generator) -> State:
        """Noise for a policy whose actions are drawn."""
        draw: dict[str, Any] = {"standard normal": rng.standard_normal, "uniform": rng.random}
        return {
            entry["name"]: draw[entry["distribution"]](
                (rows, *entry["shape"][1:]), dtype=np.float32
            )
            for entry in self.noises
        }

    def batch(self, observation: Any) -> Array:
        """Observations as the model takes them; what is no observation is refused."""
        given = np.asarray(observation)
        if given.dtype.kind not in "fiub" or (self.dtype == np.uint8 and given.dtype != np.uint8):
            raise ValueError(f"observations must be {self.dtype} numbers, got {given.dtype}")
        if given.shape != self.shape and given.shape[1:] != self.shape:
            raise ValueError(
                f"observations must have the shape {self.shape} or a batch of it, got {given.shape}"
            )
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(given, self.dtype).reshape(-1, *self.shape)
        if self.dtype != np.uint8 and not np.isfinite(rows).all():
            raise ValueError("the observation holds NaN, infinity or a number beyond float32")
        return rows

    def outputs(self, rows: Array, state: State, noise: State) -> dict[str, Array]:
        """Every output of the model for a batch, by name."""
        feeds = {self.seen["name"]: rows, **state, **noise}
        return dict(zip(self.names, self.session.run(self.names, feeds), strict=True))

    def next_state(self, outputs: Mapping[str, Array]) -> State:
        return {entry["name"]: outputs[entry["next"]] for entry in self.states}

    def __call__(
        self,
        observation: Any,
        state: State | None = None,
        rng: np.random.Generator | None = None,
        noise: State | None = None,
    ) -> tuple[Array, State]:
        """Actions in the environment's units, and the state for the next call."""
        rows = self.batch(observation)
        if noise is None:
            noise = self.drawn(len(rows), rng or np.random.default_rng()) if self.noises else {}
        before = self.initial_state(len(rows)) if state is None else state
        outputs = self.outputs(rows, before, noise)
        action = outputs["action"]
        alone = np.ndim(observation) == len(self.shape)
        return (action[0] if alone else action), self.next_state(outputs)


def refuse_foreign_parts(model: bytes) -> None:
    """Refuse a model that reads other files, or needs code that is not ONNX's own."""
    try:
        for path, value in _leaves(memoryview(model), ()):
            if path[-2:] == (TENSOR, 13) or (path[-2:] == (TENSOR, 14) and value == 1):
                raise ValueError("policy.onnx keeps weights in other files, which are never read")
            if path[-2:] in ((NODE, 7), (OPSET, 1)) and value not in (b"", b"ai.onnx"):
                name = bytes(value[:40]).decode(errors="replace")
                raise ValueError(f"policy.onnx needs operators of '{name}', which are not ONNX's")
    except (IndexError, TypeError, RecursionError):
        raise ValueError("policy.onnx is damaged: it is no ONNX model") from None


MODEL, GRAPH, NODE, ATTRIBUTE, TENSOR, SPARSE, FUNCTION, OPSET = range(100, 108)
NESTED = {  # kind of message -> number of a field -> kind of message in it
    MODEL: {7: GRAPH, 8: OPSET, 25: FUNCTION},
    GRAPH: {1: NODE, 5: TENSOR, 15: SPARSE},
    FUNCTION: {7: NODE, 9: OPSET, 11: ATTRIBUTE},
    NODE: {5: ATTRIBUTE},
    ATTRIBUTE: {5: TENSOR, 6: GRAPH, 10: TENSOR, 11: GRAPH, 22: SPARSE, 23: SPARSE},
    SPARSE: {1: TENSOR, 2: TENSOR},
}


def _leaves(data: memoryview, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Every field of a serialised model that holds no message, behind the kinds it lies in."""
    kind, at = (path[-1] if path else MODEL), 0
    path = path or (MODEL,)
    while at < len(data):
        key, at = _number(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _number(data, at)
            yield (*path, number), value
            continue
        size = {1: 8, 5: 4}.get(wire)
        if wire == 2:
            size, at = _number(data, at)
        if size is None or at + size > len(data):
            raise IndexError(at)
        part, at = data[at : at + size], at + size
        inner = NESTED.get(kind, {}).get(number) if wire == 2 else None
        if inner is None:
            yield (*path, number), part
        else:
            yield from _leaves(part, (*path, inner))


def _number(data: memoryview, at: int) -> tuple[int, int]:
    """A number of protobuf's variable length, and where the next field begins."""
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def repeat_sample(folder: Path) -> float:
    """The largest difference from the stored actions; their number for Discrete actions."""
    policy = Policy(folder)
    discrete = any(entry.get("kind") == "discrete" for entry in policy.contract["outputs"])
    state, worst = None, 0.0
    with np.load(folder / "sample.npz", allow_pickle=False) as sample:
        for step in range(len(sample["observations"])):
            noise = {entry["name"]: sample[entry["name"]][step] for entry in policy.noises}
            action, state = policy(sample["observations"][step], state, noise=noise)
            expected = sample["actions"][step]
            different = np.sum(action != expected) if discrete else np.abs(action - expected).max()
            worst = max(worst, float(different))
    return worst


if __name__ == "__main__":
    here = Path(__file__).parent
    if len(sys.argv) > 1:
        acting = Policy(here)
        print(acting(np.asarray(json.loads(sys.argv[1]), acting.dtype))[0].tolist())
    else:
        print(f"largest difference from the stored actions: {repeat_sample(here):g}")
