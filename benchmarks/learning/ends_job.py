"""How many ends a learned termination finds in episodes that it has not seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.process import Request, answer_job
from rl_training import TransitionDataset, load_transition_dataset
from rl_training.algorithms.dynamics import ModelParams, ensemble_model, trained_parameters
from rl_training.algorithms.fitting import Fitting
from rl_training.algorithms.optim import FusedAdam
from rl_training.replay.batch import Batch
from rl_training.runtime.engine import Engine


def episodes(data: TransitionDataset) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The number of each row's episode."""
    ended = data.terminations | data.truncations
    return np.concatenate([[0], np.cumsum(ended)[:-1]])


def rows_of(data: TransitionDataset, device: str) -> Batch:
    discount = np.where(data.terminations, 0.0, 0.99)
    arrays = (data.observations, data.actions, data.rewards, data.next_observations, discount)
    return Batch(*(torch.tensor(x, dtype=torch.float32, device=device) for x in arrays))


def found_ends(batch: Batch, held: Tensor, params: ModelParams, seed: int) -> tuple[int, int, int]:
    """A fit to the rows that are not `held`; of those: ends, states taken for ends, both."""
    torch.manual_seed(seed)
    device = batch.obs.device
    model = ensemble_model(batch.obs.shape[1], batch.action.shape[1], params).to(device)
    parameters, decays = trained_parameters(model, params)
    optimizer = FusedAdam(parameters, params.model_lr, decays)
    fitting = Fitting(model, optimizer, params, len(batch.reward))
    engine = Engine(fitting, "graph" if device.type == "cuda" else "eager", 0)
    learned = Batch(*(x[~held] for x in batch if x is not None))
    report = fitting.fit(learned, engine.run)
    ended, found = batch.discount[held] == 0.0, model.ends(batch.next_obs[held])
    print(f"fold {seed}: {report}")
    return int(ended.sum()), int(found.sum()), int((ended & found).sum())


def work(request: Request) -> dict[str, Any]:
    spec = request.spec
    data = load_transition_dataset({"kind": "npz", "path": request.inputs["path"]})
    number = episodes(data)
    order = np.random.default_rng(request.seed).permutation(number[-1] + 1)
    params = ModelParams(termination="learned", **spec["knobs"])
    batch = rows_of(data, spec["device"])
    counts = []
    for fold in range(spec["folds"]):
        held = torch.from_numpy(np.isin(number, order[fold :: spec["folds"]]))
        counts.append(found_ends(batch, held.to(spec["device"]), params, fold))
    ends, found, both = (sum(column) for column in zip(*counts, strict=True))
    print(f"recall {both / ends:.3f}, precision {both / max(found, 1):.3f}")
    return {"ends": ends, "recall": both / ends, "precision": both / max(found, 1)}


if __name__ == "__main__":
    answer_job(work, ("rl-training", "torch", "numpy"))
