"""Acts with an exported policy. Needs NumPy and ONNX Runtime, and nothing else.

python run_policy.py                    repeats the sample that was stored with the policy
python run_policy.py "[0.1, 0.2, 0.3]"  prints the action for one observation

policy = Policy("FOLDER")
action, state = policy(observation, state)  # state=None where all episodes begin

An observation of several parts is a dict by their names, with text for categories; of a batch,
each part has one value per row. Where the contract has a mask, it is given as action_mask.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
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
        self.seen = [Part(entry) for entry in inputs if entry["role"] in ("observation", "mask")]
        self.masked = any(part.role == "mask" for part in self.seen)
        self.states = [entry for entry in inputs if entry["role"] == "state"]
        self.noises = [entry for entry in inputs if entry["role"] == "noise"]
        self.names = [entry["name"] for entry in self.contract["outputs"]]
        self.action = next(e for e in self.contract["outputs"] if e["name"] == "action")

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

    def feeds(self, observation: Any, action_mask: Any = None) -> tuple[State, bool]:
        """One observation or a batch as inputs of the model, and whether it was one.

        What is no observation is refused by a ValueError.
        """
        if isinstance(observation, list) and isinstance((observation or [0])[0], (Mapping, tuple)):
            return self.joined(observation, action_mask), False
        if isinstance(observation, Mapping) and set(observation) == {"observation", "action_mask"}:
            observation, action_mask = observation["observation"], observation["action_mask"]
        found: State = {}
        rows, alone = 0, False
        for part in self.seen:
            given = action_mask if part.role == "mask" else part.at(observation)
            values, one = part.read(given)
            if found and (rows, alone) != (len(values), one):
                raise ValueError(f"'{part.name}' has {len(values)} rows, others have {rows}")
            found[part.name], rows, alone = values, len(values), one
        return found, alone

    def joined(self, observations: Sequence[Any], action_masks: Any = None) -> State:
        """A list of observations as one batch."""
        masks = [None] * len(observations) if action_masks is None else action_masks
        if len(masks) != len(observations):
            raise ValueError(f"{len(observations)} observations have {len(masks)} action masks")
        found = [self.feeds(*pair) for pair in zip(observations, masks, strict=True)]
        if not all(alone for _, alone in found):
            raise ValueError("a list of observations must hold one observation per entry")
        return {
            part.name: np.concatenate([feeds[part.name] for feeds, _ in found])
            for part in self.seen
        }

    def outputs(self, feeds: State, state: State, noise: State) -> dict[str, Array]:
        """Every output of the model for a batch, by name."""
        found = self.session.run(self.names, {**feeds, **state, **noise})
        return dict(zip(self.names, found, strict=True))

    def label(self, action: Any) -> Any:
        """The name of a Discrete action, or of several; None where actions have no names."""
        names = self.action.get("categories")
        return None if names is None else np.asarray(names)[action - self.action["low"]]

    def next_state(self, outputs: Mapping[str, Array]) -> State:
        return {entry["name"]: outputs[entry["next"]] for entry in self.states}

    def __call__(
        self,
        observation: Any,
        state: State | None = None,
        rng: np.random.Generator | None = None,
        noise: State | None = None,
        action_mask: Any = None,
    ) -> tuple[Array, State]:
        """Actions in the environment's units, and the state for the next call."""
        feeds, alone = self.feeds(observation, action_mask)
        outputs = self.run(feeds, state, rng, noise)
        action = outputs["action"]
        return (action[0] if alone else action), self.next_state(outputs)

    def run(
        self,
        feeds: State,
        state: State | None = None,
        rng: np.random.Generator | None = None,
        noise: State | None = None,
    ) -> dict[str, Array]:
        """Every output for inputs that are as the model takes them."""
        rows = len(next(iter(feeds.values())))
        if noise is None:
            noise = self.drawn(rows, rng or np.random.default_rng()) if self.noises else {}
        return self.outputs(feeds, self.initial_state(rows) if state is None else state, noise)


class Part:
    """An input of the model that is read from what the caller observes."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.name, self.role, self.path = entry["name"], entry["role"], entry.get("path") or []
        self.shape, self.dtype = tuple(entry["shape"][1:]), np.dtype(entry["dtype"])
        self.codes = {label: code for code, label in enumerate(entry.get("categories") or [])}
        self.chosen = bool(entry.get("choices"))
        if self.chosen:
            self.first = np.reshape(entry["low"], -1)
            self.last = np.reshape(entry["high"], -1)

    def at(self, observation: Any) -> Any:
        """What an observation holds for this part."""
        for step in self.path:
            try:
                observation = observation[step]
            except (KeyError, IndexError, TypeError):
                raise ValueError(
                    f"the observation has no '{'.'.join(map(str, self.path))}'; give every part "
                    "of the contract"
                ) from None
        return observation

    def read(self, given: Any) -> tuple[Array, bool]:
        """One value or a batch as the model takes it, and whether it was one."""
        if given is None:
            raise ValueError(f"'{self.name}' is missing; the policy needs it at every step")
        try:
            values = np.asarray(given)
            if values.dtype == object and self.shape:  # a column of lists
                values = np.asarray(values.tolist())
        except (ValueError, TypeError, OverflowError):  # such as lists of several lengths
            values = np.asarray("")
        values = self._coded(values) if self.codes else values
        kinds, wanted = ("iu", BYTES) if self.dtype == np.uint8 else ("fiub", "numbers")
        if values.dtype.kind not in kinds:
            raise ValueError(f"'{self.name}' must hold {wanted}, got {values.dtype}")
        alone = values.shape == self.shape
        if not alone and values.shape[1:] != self.shape:
            shape = list(self.shape)
            raise ValueError(
                f"'{self.name}' must have the shape {shape} or a batch of it, got "
                f"{list(values.shape)}"
            )
        return self.checked(values.reshape(-1, *self.shape)), alone

    def checked(self, values: Array) -> Array:
        """A batch as the model takes it; values that mean nothing are refused."""
        if self.chosen:
            self._refuse_other_choices(values)
        elif self.role == "mask" and not np.asarray(values, bool).any(-1).all():
            raise ValueError(f"'{self.name}' must allow an action in every row")
        elif self.dtype == np.uint8:
            if values.dtype != np.uint8 and not ((values >= 0) & (values <= 255)).all():
                raise ValueError(f"'{self.name}' must hold {BYTES}")
        elif not np.abs(values).max(initial=0) <= LARGEST:
            raise ValueError(f"'{self.name}' holds NaN, infinity or a number beyond float32")
        return np.ascontiguousarray(values, self.dtype)

    def _coded(self, values: Array) -> Array:
        """The numbers of categories."""
        try:
            codes = [self.codes[str(value)] for value in values.reshape(-1).tolist()]
        except KeyError as missing:
            known = ", ".join(list(self.codes)[:8]) + (", ..." if len(self.codes) > 8 else "")
            raise ValueError(
                f"'{self.name}' has the unknown category {str(missing.args[0])[:40]!r}; known are "
                f"{known}"
            ) from None
        return np.asarray(codes, np.int64).reshape(values.shape)

    def _refuse_other_choices(self, values: Array) -> None:
        flat = values.reshape(len(values), -1)
        wrong = ~((flat >= self.first) & (flat <= self.last) & (flat % 1 == 0))
        if wrong.any():
            row, at = np.argwhere(wrong)[0]
            raise ValueError(
                f"'{self.name}' holds {flat[row, at]:g}, expected a whole number from "
                f"{self.first[at]} to {self.last[at]}"
            )


LARGEST, BYTES = float(np.finfo(np.float32).max), "whole numbers from 0 to 255"


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
        raise ValueError("policy.onnx is damaged: it is not an ONNX model") from None


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
    discrete = policy.action["kind"] != "box"
    state, worst = None, 0.0
    with np.load(folder / "sample.npz", allow_pickle=False) as sample:
        for step in range(len(sample["actions"])):
            noise = {entry["name"]: sample[entry["name"]][step] for entry in policy.noises}
            feeds = {part.name: sample[part.name][step] for part in policy.seen}
            outputs = policy.run(feeds, state, noise=noise)
            action, state = outputs["action"], policy.next_state(outputs)
            expected = sample["actions"][step]
            different = np.sum(action != expected) if discrete else np.abs(action - expected).max()
            worst = max(worst, float(different))
    return worst


if __name__ == "__main__":
    here = Path(__file__).parent
    if len(sys.argv) > 1:
        acting = Policy(here)
        action = acting(json.loads(sys.argv[1]))[0]
        print(
            json.dumps((action if acting.label(action) is None else acting.label(action)).tolist())
        )
    else:
        print(f"largest difference from the stored actions: {repeat_sample(here):g}")
