"""Malformed data: refused in a sentence, or loaded as exactly what they say.

Damage to bytes must be noticed where the format has checksums (npz, compressed hdf5); elsewhere
what is loaded has to be valid in itself. Changed arrays and headers are drawn together with what is
right for them: a refusal, the same data, or other data that are valid.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import random
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import torch

from rl_training.data.convert import save_dataset
from rl_training.data.dataset import TransitionDataset
from rl_training.data.sources import load_transition_dataset
from rl_training.data.summary import summarize
from rl_training.data.summary_tables import render
from rl_training.envs.spaces import Spaces
from rl_training.experiment.errors import RLTrainingError
from tests.fuzz.runner import Verdict, bad_ending, command

LONG, SHORT = 300, 40
SPACES = Spaces(3, "box", 1, (-2.0,), (2.0,))
ENV_ID = "Pendulum-v1"
MINARI_ID = "toy/a-v0"
Right = Literal["refuse", "same", "valid"]
"""What may come of an attempt: no data, the data as they were, or any that are valid."""
Arrays = dict[str, Any]
ROWS, LENGTH = 60, 12


def pristine() -> Arrays:
    """Five episodes of twelve rows, each row followed by its successor."""
    generator = np.random.default_rng(11)
    states = generator.normal(size=(ROWS // LENGTH, LENGTH + 1, 3)).astype(np.float32)
    ends = np.arange(ROWS) % LENGTH == LENGTH - 1
    terminated = ends & (np.arange(ROWS) // LENGTH % 2 == 0)
    return {
        "observations": states[:, :-1].reshape(ROWS, 3),
        "actions": generator.uniform(-2.0, 2.0, (ROWS, 1)).astype(np.float32),
        "rewards": generator.normal(size=ROWS).astype(np.float32),
        "next_observations": states[:, 1:].reshape(ROWS, 3),
        "terminations": terminated,
        "truncations": ends & ~terminated,
    }


def prepare(folder: Path) -> None:
    """One whole data set in every form."""
    data = load_transition_dataset(pristine(), spaces=SPACES)
    np.savez(folder / "plain.npz", **pristine())
    save_dataset(data, folder / "compressed.npz")
    save_dataset(data, folder / "compressed.h5")
    _write_hdf5(folder / "plain.h5", pristine())
    with _minari_in(folder / "minari"):
        save_dataset(data, f"minari:{MINARI_ID}")


class _minari_in:  # noqa: N801  (used as a function)
    """Minari's data sets lie in `folder` inside."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.before = folder, os.environ.get("MINARI_DATASETS_PATH")

    def __enter__(self) -> None:
        os.environ["MINARI_DATASETS_PATH"] = str(self.folder)

    def __exit__(self, *_: object) -> None:
        if self.before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = self.before


def _write_hdf5(path: Path, arrays: Arrays) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


def _valid(data: TransitionDataset) -> str | None:
    """What is wrong with a data set that was accepted, whatever it was made from."""
    arrays = data.to_arrays()
    if {len(array) for array in arrays.values()} != {len(data)} or not len(data):
        return "arrays of unequal length"
    kinds = {name: str(array.dtype) for name, array in arrays.items()}
    flags = {"terminations": "bool", "truncations": "bool"}
    if kinds != {name: flags.get(name, "float32") for name in arrays}:
        return f"dtypes {kinds}"
    shapes = {name: arrays[name].shape[1:] for name in arrays}
    wide = {"observations": (3,), "next_observations": (3,), "actions": (1,)}
    if shapes != {name: wide.get(name, ()) for name in arrays}:
        return f"shapes {shapes}"
    if not all(np.isfinite(arrays[name]).all() for name in kinds if name not in flags):
        return "numbers that are not finite"
    if np.abs(data.actions).max() > 2.0 + 1e-3:
        return "actions out of bounds"
    if (data.terminations & data.truncations).any() or not (
        data.terminations[-1] or data.truncations[-1]
    ):
        return "flags that close no episode, or one twice"
    return None


# --- arrays with one thing changed ------------------------------------------------------------


def _change_dtype(arrays: Arrays, random: random.Random) -> tuple[str, Right]:
    name = random.choice(list(arrays))
    flag, before = name in ("terminations", "truncations"), arrays[name]
    exact = (np.float64, np.longdouble, ">f4", ">f8", "F")
    kind, right = random.choice(
        (
            *((kind, "same") for kind in exact),
            (np.complex64, "refuse"),
            (object, "refuse"),
            ("S8", "refuse"),
            ("U8", "refuse"),
            ("M8[s]", "refuse"),
            ("m8[s]", "refuse"),
            (np.dtype([("a", "<f4")]), "refuse"),
            (np.int8, "same" if flag else "refuse" if name == "actions" else "valid"),
            (np.uint64, "same" if flag else "refuse" if name == "actions" else "valid"),
            (np.float16, "same" if flag else "valid"),
        )
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "F":
            arrays[name] = np.asfortranarray(before)
        elif kind in ("M8[s]", "m8[s]"):
            arrays[name] = before.astype(np.int64).astype(kind)
        else:
            arrays[name] = np.clip(before, 0, 1).astype(kind) if kind == np.uint64 else None
            if arrays[name] is None:
                arrays[name] = before.astype(kind)
    if kind == np.float16 and name == "actions":
        arrays[name] = arrays[name].clip(-2, 2)
    return f"{name} as {kind}", right  # type: ignore[return-value]


def _change_shape(arrays: Arrays, random: random.Random) -> tuple[str, Right]:
    name = random.choice(list(arrays))
    before = arrays[name]
    column = before.ndim == 1
    ways: dict[str, tuple[Callable[[], Any], Right]] = {
        "a row less": (lambda: before[:-1], "refuse"),
        "a row more": (lambda: np.concatenate([before, before[:1]]), "refuse"),
        "no rows": (lambda: before[:0], "refuse"),
        "transposed": (lambda: before.reshape(ROWS, -1).T, "refuse"),
        "flat": (lambda: before.reshape(-1), "same" if column else "refuse"),
        "a column each": (lambda: before.reshape(ROWS, -1), "same"),
        "another axis": (lambda: before.reshape(ROWS, -1)[:, :, None], "refuse"),
        "no width": (lambda: np.zeros((ROWS, 0), before.dtype), "refuse"),
        "wider": (lambda: np.concatenate([before.reshape(ROWS, -1)] * 2, axis=1), "refuse"),
        "a scalar": (lambda: before.ravel()[0], "refuse"),
    }
    way = random.choice(list(ways))
    make, right = ways[way]
    arrays[name] = make()
    return f"{name}: {way}", right


def _change_values(arrays: Arrays, random: random.Random) -> tuple[str, Right]:
    name = random.choice(list(arrays))
    flag = name in ("terminations", "truncations")
    values: tuple[tuple[Any, Right], ...] = (
        (math.nan, "refuse"),
        (math.inf, "refuse"),
        (-math.inf, "refuse"),
        (1e300, "refuse"),
        (2.5, "refuse" if flag or name == "actions" else "valid"),
        (0.5, "refuse" if flag else "valid"),
        (-1.0, "refuse" if flag else "valid"),
        (3e38, "refuse" if flag or name == "actions" else "valid"),
        (1e-45, "refuse" if flag else "valid"),
    )
    value, right = random.choice(values)
    array = arrays[name].astype(np.float64)
    rows = slice(None) if random.random() < 0.3 else random.randrange(ROWS)
    array[rows] = value
    arrays[name] = array
    return f"{name} holds {value} at {rows}", right


def _change_keys(arrays: Arrays, random: random.Random) -> tuple[str, Right]:
    name = random.choice(list(arrays))
    optional = name == "next_observations"
    way = random.choice(("remove", "rename", "twice", "extra", "near"))
    if way == "remove":
        del arrays[name]
        return f"{name} is missing", "valid" if optional or name == "rewards" else "refuse"
    if way == "rename":
        arrays[f"{name}_of_mine"] = arrays.pop(name)
        return f"{name} is called otherwise", (
            "valid" if optional or name == "rewards" else "refuse"
        )
    if way == "near":
        letter = random.randrange(len(name))
        arrays[name[:letter] + name[letter + 1 :]] = arrays.pop(name)
        return f"{name} without a letter", "refuse"
    if way == "twice":
        other = {"observations": "obs", "actions": "acts", "rewards": "reward"}
        other |= {"next_observations": "next_obs", "terminations": "terminals"}
        arrays[other.get(name, "timeouts")] = arrays[name]
        return f"{name} under two names", "refuse"
    arrays["extra"] = np.zeros((3, 3))
    return "an array that nothing reads", "same"


def _change_flags(arrays: Arrays, random: random.Random) -> tuple[str, Right]:
    way = random.choice(("none", "both", "all", "open"))
    if way == "none":
        arrays["terminations"] = arrays["truncations"] = np.zeros(ROWS, bool)
    elif way == "both":
        arrays["truncations"] = arrays["truncations"] | arrays["terminations"]
        return "both flags where the task ends", "same"
    elif way == "all":
        arrays["terminations"] = arrays["truncations"] = np.ones(ROWS, bool)
    else:
        arrays["terminations"] = arrays["terminations"].copy()
        arrays["terminations"][-1] = arrays["truncations"][-1] = False
    return f"flags: {way}", "valid"


CHANGES = (_change_dtype, _change_shape, _change_values, _change_keys, _change_flags)


def _exotic(arrays: Arrays, random: random.Random) -> tuple[str, Right]:
    """Python objects that only a mapping in memory can hold."""
    name = random.choice(("observations", "rewards", "terminations"))
    value = arrays[name]
    ways: dict[str, tuple[Callable[[], Any], Right]] = {
        "a list": (value.tolist, "same"),
        "a tensor": (lambda: torch.from_numpy(value.copy()), "same"),
        "a tensor with gradients": (
            lambda: torch.from_numpy(value.astype(np.float32)).requires_grad_(),
            "same",
        ),
        "masked": (lambda: np.ma.array(value, mask=np.arange(ROWS * value[0].size) == 3), "refuse"),
        "unmasked": (lambda: np.ma.array(value, mask=False), "same"),
        "masked rows": (
            lambda: [np.ma.array(row, mask=i == 3) for i, row in enumerate(value)],
            "refuse",
        ),
        "ragged": (lambda: [*value.tolist()[:-1], [1.0] * 7], "refuse"),
        "None": (lambda: None, "refuse"),
        "a dict": (lambda: {"a": value}, "refuse"),
        "a text": (lambda: "observations", "refuse"),
        "texts": (lambda: [str(row) for row in value], "refuse"),
        "a generator": (lambda: (row for row in value), "refuse"),
        "complex": (lambda: value + 1j, "refuse"),
        "a list with None": (lambda: [None, *value.tolist()[1:]], "refuse"),
        "a matrix": (lambda: np.asmatrix(value.reshape(ROWS, -1)), "same"),
        "sparse tensor": (lambda: torch.from_numpy(value * 1.0).to_sparse(), "refuse"),
    }
    way = random.choice(list(ways))
    make, right = ways[way]
    arrays[name] = make()
    return f"{name}: {way}", right


# --- headers and containers -------------------------------------------------------------------


def _hostile_npz(path: Path, random: random.Random) -> tuple[str, Right]:
    """One member whose header says something else than its bytes."""
    arrays = pristine()
    name = random.choice(list(arrays))
    shapes = "(True,) (60.0,) (-60,) (10**9,) (1000000000000,) (2,30) (0,) () 60 ((60,),) ('60',)"
    shape = random.choice([*shapes.split(), "(None,)", "[60]", "(1,)*40", "(61,)", "(59,)"])
    kind = random.choice(("'<f4'", "'<f4'", "'|O'", "'|V0'", "'|S0'", "[('a', '<f4')]", "'<f9'"))
    version = random.choice((1, 1, 1, 2, 3, 4, 9))
    junk = random.random() < 0.2
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}"
    if junk:
        text = random.choice(
            ("__import__('os').abort()", "{" * 500, "{'descr': 1}", "\x00" * 50, "")
        )
    header = text.encode().ljust(117) + b"\n"
    size = len(header).to_bytes(2 if version == 1 else 4, "little")
    with zipfile.ZipFile(path, "w") as archive:
        for key, array in arrays.items():
            buffer = io.BytesIO()
            if key == name:
                buffer.write(b"\x93NUMPY" + bytes([version, 0]) + size + header)
                buffer.write(array.tobytes())
            else:
                np.lib.format.write_array(buffer, array)
            archive.writestr(f"{key}.npy", buffer.getvalue())
    return f"{name}.npy says {version} {text[:70]}", "valid"


def _hostile_zip(path: Path, random: random.Random) -> tuple[str, Right]:
    """Members that are no arrays, twice there, compressed beyond reason or in odd ways."""
    np.savez(path, **pristine())
    way = random.choice(("twice", "no array", "bomb", "bzip2", "lzma", "folder", "name"))
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")  # of duplicate names
        if way == "twice":
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, pristine()["rewards"][:-1])
            archive.writestr("rewards.npy", buffer.getvalue())
            return "two members rewards.npy of other lengths", "refuse"
        if way == "no array":
            archive.writestr("rewards.npy", "rewards")
            return "rewards.npy is a text", "refuse"
        if way == "bomb":
            archive.writestr("extra.npy", bytes(50_000_000), zipfile.ZIP_DEFLATED)
            return "50 MB of zeros that nothing reads", "same"
        if way == "folder":
            archive.writestr("rewards.npy/", "")
            return "a folder rewards.npy beside it", "same"
        if way == "name":
            archive.writestr("../rewards.npy", "rewards")
            return "a member that leads outside", "same"
    method = zipfile.ZIP_BZIP2 if way == "bzip2" else zipfile.ZIP_LZMA
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return f"compressed by {way}", "same"


def _hostile_hdf5(path: Path, random: random.Random) -> tuple[str, Right]:
    """One array that is something else, lies elsewhere or was never written."""
    _write_hdf5(path, pristine())
    name = random.choice(("observations", "rewards", "terminations"))
    links = ("external", "link out", "link to nowhere", "link to itself", "virtual")
    kinds = ("group", "scalar", "null", "texts", "references", "vlen", "enum", "compound")
    way = random.choice(("sparse", "sparse chunks", *links, *kinds))
    right: Right = "refuse"
    with h5py.File(path, "a") as file:
        del file[name]
        if way == "sparse":
            file.create_dataset(name, (1 << 29,), "f4")
        elif way == "sparse chunks":
            file.create_dataset(name, (1 << 27, 3), "f4", chunks=(1 << 16, 3), compression="gzip")
        elif way == "external":
            file.create_dataset(name, (ROWS,), "f4", external=[("/etc/passwd", 0, 240)])
        elif way == "link out":
            file[name] = h5py.ExternalLink("/etc/hostname", "x")
        elif way == "link to nowhere":
            file[name] = h5py.SoftLink("/nowhere")
        elif way == "link to itself":
            file[name] = h5py.SoftLink(f"/{name}")
        elif way == "group":
            file.create_group(name)["x"] = pristine()[name]
        elif way == "scalar":
            file[name] = 1.0
        elif way == "null":
            file[name] = h5py.Empty("f4")
        elif way == "texts":
            file[name] = [f"{i}" for i in range(ROWS)]
        elif way == "references":
            file.create_dataset(name, (ROWS,), h5py.ref_dtype)
        elif way == "vlen":
            stored = file.create_dataset(name, (ROWS,), h5py.vlen_dtype(np.float32))
            stored[0] = np.arange(3)
        elif way == "enum":
            kind = h5py.enum_dtype({"no": 0, "yes": 1}, "i1")
            file.create_dataset(name, data=pristine()[name].astype("i1"), dtype=kind)
            right = "same" if name == "terminations" else "valid"
        elif way == "compound":
            file[name] = np.zeros(ROWS, [("a", "f4"), ("b", "i4")])
        else:
            layout = h5py.VirtualLayout((ROWS,), "f4")
            layout[:] = h5py.VirtualSource("/tmp/other.h5", "x", (ROWS,))
            file.create_virtual_dataset(name, layout)
    return f"{name}: {way}", right


def _damaged_bytes(path: Path, random: random.Random) -> str:
    data = bytearray(path.read_bytes())
    at = random.randrange(len(data))
    way = random.choice(("bit", "bit", "bits", "cut", "zeros", "insert", "repeat", "swap"))
    if way == "bit":
        data[at] ^= 1 << random.randrange(8)
    elif way == "bits":
        for _ in range(8):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    elif way == "cut":
        del data[at:]
    elif way == "zeros":
        data[at : at + 32] = bytes(len(data[at : at + 32]))
    elif way == "insert":
        data[at:at] = random.randbytes(random.choice((1, 3, 64)))
    elif way == "repeat":
        data[at:at] = data[at : at + 200]
    else:
        other = random.randrange(len(data))
        data[at : at + 16], data[other : other + 16] = data[other : other + 16], data[at : at + 16]
    path.write_bytes(data)
    return f"{way} at {at} of {len(data)}"


def _damaged_minari(root: Path, random: random.Random) -> tuple[str, Right]:
    """A field of the metadata, an array of an episode, or a file."""
    data = root / MINARI_ID / "data"
    (stored,) = data.glob("*.hdf5")
    way = random.choice(("metadata", "metadata", "episode", "episode", "episode", "file", "bytes"))
    if way == "metadata":
        path = data / "metadata.json"
        values = json.loads(path.read_text())
        key = random.choice(list(values))
        odd = random.choice((None, -1, 0, 10**12, 1.5, "x", [], {}, True, "remove"))
        if odd == "remove":
            del values[key]
        else:
            values[key] = odd
        path.write_text(json.dumps(values))
        return f"metadata {key} = {odd!r}", "valid"
    if way == "episode":
        with h5py.File(stored, "a") as file:
            episode = random.choice([key for key in file if key.startswith("episode")])
            name = random.choice(list(file[episode]))
            if not isinstance(file[episode][name], h5py.Dataset):
                del file[episode][name]
                return f"{episode}/{name} is missing", "valid"
            before = file[episode][name][()]
            del file[episode][name]
            values = {name: before}
            kind = random.choice(("missing", "dtype", "values", "short", "wide"))
            if kind == "missing":
                return f"{episode}/{name} is missing", "refuse"
            if kind == "dtype":
                values[name] = np.array([b"False"] * len(before))
            elif kind == "values":
                values[name] = before.astype(np.float64)
                values[name][0] = random.choice((math.nan, math.inf, 1e300))
            elif kind == "short":
                values[name] = before[:-1]
            else:
                values[name] = np.stack([before, before], axis=1)
            file[episode][name] = values[name]
        return f"{episode}/{name}: {kind}", "refuse"
    if way == "bytes":
        return _damaged_bytes(stored, random), "valid"
    victim = random.choice(sorted(path for path in data.rglob("*") if path.is_file()))
    victim.write_bytes(b"") if random.random() < 0.5 else victim.unlink()
    return f"{victim.name} is gone or empty", "refuse"


# --- one attempt ------------------------------------------------------------------------------


def attempt(random: random.Random, prepared: Path, folder: Path) -> Verdict:
    """One malformed data set, loaded and inspected."""
    form = random.choice(("bytes", "bytes", "arrays", "arrays", "file", "file", "header", "minari"))
    if form == "arrays":
        arrays = pristine()
        change = random.choice((*CHANGES, _exotic, _exotic))
        what, right = change(arrays, random)
        return _judged(f"arrays, {what}", right, arrays)
    if form == "minari":
        shutil.copytree(prepared / "minari", folder / "minari")
        what, right = _damaged_minari(folder / "minari", random)
        with _minari_in(folder / "minari"):
            return _judged(f"minari, {what}", right, f"minari:{MINARI_ID}")
    suffix = random.choice(("npz", "h5"))
    path = folder / f"data.{suffix}"
    if form == "bytes":
        kind = random.choice(("plain", "compressed"))
        shutil.copy(prepared / f"{kind}.{suffix}", path)
        what = _damaged_bytes(path, random)
        right: Right = "same" if suffix == "npz" else "valid"
        return _judged(f"{kind} {suffix}, {what}", right, path, may_refuse=True)
    if form == "file":
        arrays = pristine()
        what, right = random.choice(CHANGES)(arrays, random)
        if not _written(path, arrays):
            return Verdict(f"{suffix}, {what}", "not writable")
        return _judged(f"{suffix}, {what}", right, path)
    if suffix == "h5":
        what, right = _hostile_hdf5(path, random)
    else:
        what, right = random.choice((_hostile_npz, _hostile_npz, _hostile_zip))(path, random)
    return _judged(f"{suffix}, {what}", right, path)


def _written(path: Path, arrays: Arrays) -> bool:
    """Whether the format can hold these arrays at all."""
    try:
        np.savez(path, **arrays) if path.suffix == ".npz" else _write_hdf5(path, arrays)
    except (TypeError, ValueError, OSError):
        return False
    return True


def _judged(what: str, right: Right, source: Any, may_refuse: bool = False) -> Verdict:
    """Load and inspect `source`; data that are `valid`, or damaged bytes, may be refused."""
    may_refuse = may_refuse or right == "valid"
    try:
        data = load_transition_dataset(source, spaces=SPACES, needs_rewards=False)
    except RLTrainingError as error:
        if "\n" in str(error):
            return Verdict(what, "refused", f"more than a sentence: {error}")
        problem = (
            f"refused, though it is right: {error}" if right == "same" and not may_refuse else None
        )
        return Verdict(what, "refused", problem or _inspected(source, refused=True))
    problem = _valid_or_same(data, right)
    if problem is None and isinstance(source, dict):
        render(summarize(data))
    return Verdict(what, "accepted", problem or _inspected(source, refused=False))


def _valid_or_same(data: TransitionDataset, right: Right) -> str | None:
    if right == "refuse":
        return "accepted in silence"
    whole = load_transition_dataset(pristine(), spaces=SPACES)
    if right == "same" and data.fingerprint() != whole.fingerprint():
        return "accepted, but the values are others"
    if not data.has_rewards:  # which imitation does without
        data = dataclasses.replace(data, rewards=np.zeros(len(data), np.float32), has_rewards=True)
    return _valid(data)


def _inspected(source: Any, refused: bool) -> str | None:
    """What is wrong with how the command line looks at a file."""
    if isinstance(source, dict):
        return None
    outcome = command("data", "inspect", source, "--env", ENV_ID)
    if outcome.code != (2 if refused else 0):
        return f"data inspect ended with {outcome.code}: {outcome.err[-500:]!r}"
    return bad_ending(outcome)
